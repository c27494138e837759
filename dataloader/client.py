"""A client of the HTTP API.

Trigger a job and wait for its end::

    service = Client("http://127.0.0.1:8081")
    job = service.trigger("noop", {"sleep1": 1}, idempotency_key="noop-2026-11-21")
    print(service.wait(job["job_id"])["status"])
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Unpack
from urllib.parse import quote
from uuid import UUID

import requests
import urllib3

from dataloader._address import DEFAULT_URL, RETRY_TIMEOUT_SEC, parse_api_key, parse_url
from dataloader._job_fields import TriggerOptions
from dataloader._transport import SystemTrustAdapter, causes_of
from dataloader.errors import Conflict, NotAllowed, NotFound, Refused, ServiceFault, ServiceUnavailable

Payload = dict[str, Any]
Fields = Mapping[str, Any]
JobId = UUID | str
_OnOutage = Callable[[ServiceUnavailable], None]

FINAL_STATUSES = frozenset({"succeeded", "failed", "canceled", "lost"})
_FIRST_RETRY_SEC, _MAX_RETRY_SEC = 0.2, 2.0
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024
_RETRYABLE = frozenset({429, 502, 503, 504})
_REFUSALS = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 409: Conflict}
_NOT_SENT = (requests.ConnectTimeout, urllib3.exceptions.NewConnectionError, urllib3.exceptions.LocationValueError)
_STREAM_TIMEOUT_SEC = 40.0  # the event stream sends a comment every fifteen seconds
_LOG_WAIT_SEC = 5.0
_WATCH_BACKOFF = 1.2
_OUTAGE_TIMEOUT_SEC = 300.0


class Client:
    """One service. Responses are JSON objects as docs/http-api.md describes them; `request` reaches every operation.

    A request is repeated until `retry_timeout_sec` has passed if that cannot do anything twice: it never reached the
    service, or it is `repeatable`. Proxies of the environment and redirects are not followed. No error shows the key.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        key: str | None = None,
        timeout_sec: float = 10.0,
        retry_timeout_sec: float = RETRY_TIMEOUT_SEC,
        sleep: Callable[[float], None] = time.sleep,
        on_retry: Callable[[ServiceUnavailable], None] = lambda _: None,
    ) -> None:
        self.url = parse_url(url)
        self.etag: str | None = None  # of the last response; a value for `if_match`
        self._timeout_sec, self._retry_timeout_sec = timeout_sec, retry_timeout_sec
        self._sleep, self._on_retry = sleep, on_retry
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers.clear()
        # A kept connection may be closed by the service just as a request is sent, which would then count as sent.
        self._session.headers.update({"User-Agent": "dataloader-client", "Connection": "close"})
        if key is not None:
            self._session.headers["Authorization"] = f"Bearer {parse_api_key(key)}"
        if self.url.startswith("https:"):
            self._session.mount("https://", SystemTrustAdapter())

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Fields | None = None,
        body: Fields | None = None,
        headers: Mapping[str, str | None] | None = None,
        repeatable: bool | None = None,
    ) -> Any:
        """Send a request, such as `request("GET", "/api/v1/workers")`, and return the JSON of the response.

        Query parameters and headers that are None are left out; None in a body is null. Times, UUIDs and flags are
        converted. By default only a GET is `repeatable`.
        """
        can_repeat = method == "GET" if repeatable is None else repeatable
        content: dict[str, Any] = {"headers": dict(headers or {}), "timeout": self._timeout_sec}
        if body is not None:
            content["data"] = json.dumps(body, allow_nan=False, default=_encode).encode()
            content["headers"]["Content-Type"] = "application/json"
        deadline, pause = time.monotonic() + self._retry_timeout_sec, _FIRST_RETRY_SEC
        while True:
            try:
                with self._open(method, path, query, **content) as response:
                    payload = self._parse_response(response, path)
            except ServiceUnavailable as outage:
                delay = pause if outage.retry_after_sec is None else outage.retry_after_sec
                if (outage.sent and not can_repeat) or time.monotonic() + delay > deadline:
                    raise
                self._on_retry(outage)
            else:
                self.etag = response.headers.get("ETag")
                return payload
            self._sleep(delay)
            pause = min(pause * 2, _MAX_RETRY_SEC)

    def trigger(
        self, task: str, args: Fields | None = None, *, strict: bool = False, **options: Unpack[TriggerOptions]
    ) -> Payload:
        """Put a job into the queue; return its `job_id`, `status` and, if it may never run, `warnings`.

        Without an idempotency key a request whose answer is lost is not repeated. Raises `Conflict` if the idempotency
        key belongs to a different job, and with `strict` if no live worker would run the job.
        """
        body = {"task": task, "args": args or {}, **{n: value for n, value in options.items() if value is not None}}
        path, repeatable = "/api/v1/jobs/trigger", options.get("idempotency_key") is not None
        return self._job(self.request("POST", path, query={"strict": strict or None}, body=body, repeatable=repeatable))

    def trigger_many(self, jobs: Sequence[Fields], *, all_or_none: bool = False) -> Payload:
        """Put up to 10,000 jobs into the queue at once; `items` of the answer has an outcome for each, in order.

        Repeated when the answer is lost if every job has an idempotency key. With `all_or_none` no job is created
        unless all can be, and the outcomes show which cannot.
        """
        repeatable = all(job.get("idempotency_key") is not None for job in jobs)
        body = {"jobs": list(jobs), "mode": "all_or_none" if all_or_none else "best_effort"}
        try:
            payload: Payload = self.request("POST", "/api/v1/jobs/batch", body=body, repeatable=repeatable)
        except Conflict as conflict:
            if conflict.code != "batch_refused":
                raise
            payload = conflict.problem
        self._list(payload, "items")
        return payload

    def trigger_graph(
        self,
        jobs: Sequence[Fields],
        *,
        name: str = "",
        on_failure: str = "cancel",
        idempotency_key: str | None = None,
    ) -> Payload:
        """Trigger jobs that wait for one another; return `graph_id` and the job of each key.

        Each has a `key`, the keys it waits for, such as `"after": [{"job": "extract", "on": "succeeded"}]`, and the
        fields of a trigger. All are created, or none.
        """
        body = {"jobs": list(jobs), "name": name, "on_failure": on_failure, "idempotency_key": idempotency_key}
        path, repeatable = "/api/v1/graphs", idempotency_key is not None
        payload: Payload = self.request("POST", path, body=body, repeatable=repeatable)
        if not isinstance(payload.get("graph_id"), str):
            raise ServiceFault(f"{self.url} gave an unexpected answer: it has no graph_id")
        return payload

    def graph(self, graph_id: JobId) -> Payload:
        """Return a graph: its state, its jobs by key, and what they wait for."""
        payload: Payload = self.request("GET", f"/api/v1/graphs/{graph_id}")
        return payload

    def cancel_graph(self, graph_id: JobId) -> Payload:
        """Cancel the jobs of a graph that have not ended."""
        payload: Payload = self.request("POST", f"/api/v1/graphs/{graph_id}/cancel", repeatable=True)
        return payload

    def graphs(self, **filters: Any) -> list[Payload]:
        """List graphs, those with open jobs first. Filters: `name`, `limit`, `before`."""
        return self._list(self.request("GET", "/api/v1/graphs", query=filters), "graphs")

    def status(self, job_id: JobId) -> Payload:
        """Return status, attempt, times, progress and error of a job."""
        return self._job(self.request("GET", f"/api/v1/jobs/{job_id}/status"))

    def progress(self, job_id: JobId, **query: Any) -> Payload:
        """Return the progress of a job over time, its rate and the time left. Parameters: `attempt`, `limit`."""
        return self._job(self.request("GET", f"/api/v1/jobs/{job_id}/progress", query=query))

    def job(self, job_id: JobId) -> Payload:
        """Return everything about a job: args, result, attempts, related jobs."""
        return self._job(self.request("GET", f"/api/v1/jobs/{job_id}"))

    def jobs(self, **filters: Any) -> list[Payload]:
        """List jobs, newest first, by the filters of `GET /api/v1/jobs`, such as `queue`, `status`, `task`, `limit`."""
        return [job for page in self.job_pages(**filters) for job in page["jobs"]]

    def job_pages(self, *, limit: int = 50, after: str | None = None, **filters: Any) -> Iterator[Payload]:
        """Yield the pages of such a search until `limit` jobs are found or all are searched. A page has `jobs`, and
        `scanned_to`: the creation time of the last searched job."""
        while True:
            page: Payload = self.request("GET", "/api/v1/jobs", query={**filters, "limit": limit, "after": after})
            limit, after = limit - len(self._list(page, "jobs")), page.get("next")
            yield page
            if limit <= 0 or after is None:
                return

    def failures(self, **filters: Any) -> list[Payload]:
        """List groups of failed and lost jobs, by task and fingerprint. Filters: `task`, `queue`, `limit`."""
        return self._list(self.request("GET", "/api/v1/failures", query=filters), "failures")

    def events(self, job_id: JobId) -> list[Payload]:
        """List the events of a job, oldest first."""
        return self._list(self.request("GET", f"/api/v1/jobs/{job_id}/events"), "events")

    def cancel(self, job_id: JobId) -> Payload:
        """Cancel a job: at once if it is queued, at its next safe point if it runs."""
        return self._job(self.request("POST", f"/api/v1/jobs/{job_id}/cancel", repeatable=True))

    def retry(self, job_id: JobId) -> Payload:
        """Queue a failed, canceled or lost job again, with all its attempts. Raises `Conflict` for any other."""
        return self._job(self.request("POST", f"/api/v1/jobs/{job_id}/retry"))

    def wait(self, job_id: JobId, **options: Any) -> Payload:
        """Wait until a job is final, and return its last state; options as for `watch`."""
        *_, state = self.watch(job_id, **options)
        return state

    def watch(
        self, job_id: JobId, *, outage_timeout_sec: float = _OUTAGE_TIMEOUT_SEC, on_outage: _OnOutage = lambda _: None
    ) -> Iterator[Payload]:
        """Yield each new state of a job until it is final.

        Once a state was seen, outages up to `outage_timeout_sec` are waited out; `on_outage` gets each failed request.
        """
        last: Payload | None = None
        pause, last_seen_at = _FIRST_RETRY_SEC, time.monotonic()
        while last is None or last["status"] not in FINAL_STATUSES:
            if last is not None:
                self._sleep(pause)
                pause = min(pause * _WATCH_BACKOFF, _MAX_RETRY_SEC)
            try:
                state = self.status(job_id)
            except ServiceUnavailable as outage:
                # A service that was never seen is more likely a wrong address than an outage.
                if last is None or time.monotonic() - last_seen_at > outage_timeout_sec:
                    raise
                on_outage(outage)
                continue
            last_seen_at = time.monotonic()
            if state != last:
                yield state
                last, pause = state, _FIRST_RETRY_SEC

    def logs(self, job_id: JobId, **query: Any) -> Payload:
        """Return a page of a job's log: `lines`, `next` for the parameter `after`, and whether it is `complete`.

        Parameters: `tail`, `after`, `level`, `attempt`, `stream`, `limit`, and `wait`, the seconds to wait for a line.
        """
        payload: Payload = self.request("GET", f"/api/v1/jobs/{job_id}/logs", query=query)
        self._list(payload, "lines")
        return payload

    def follow_logs(
        self,
        job_id: JobId,
        *,
        tail: int | None = None,
        outage_timeout_sec: float = _OUTAGE_TIMEOUT_SEC,
        on_outage: _OnOutage = lambda _: None,
        **query: Any,
    ) -> Iterator[Payload]:
        """Yield each line of a job's log until the job has ended; outages are waited out as by `watch`."""
        page = self.logs(job_id, tail=tail, **query)
        wait = max_wait = min(_LOG_WAIT_SEC, self._timeout_sec / 2)
        last_seen_at = time.monotonic()
        while page["lines"] or not page["complete"]:
            yield from page["lines"]
            try:
                page = self.logs(job_id, after=page["next"] or None, wait=wait or None, **query)
            except ServiceUnavailable as outage:
                if time.monotonic() - last_seen_at > outage_timeout_sec:
                    raise
                on_outage(outage)
                # Without a wait: too many requests may be waiting at the service already.
                page, wait = {"lines": [], "next": page["next"], "complete": False}, 0.0
                self._sleep(_MAX_RETRY_SEC)
                continue
            last_seen_at, wait = time.monotonic(), max_wait

    def stream(
        self, *, queue: str | None = None, kind: str | None = None, after: str | None = None
    ) -> Generator[Payload]:
        """Yield the events of all jobs as they happen, without end, across lost connections.

        `cursor` of an event is the value for `after` that continues behind it; None inside a group of events. After a
        connection is lost inside a group, its events come twice.
        """
        cursor = after
        while True:
            fields: dict[str, str] = {}
            query = {"queue": queue, "kind": kind, "after": cursor}
            try:
                for line in self._stream_lines("/api/v1/stream", query):
                    if line:
                        name, _, value = line.partition(": ")
                        fields[name] = value
                        continue
                    cursor = fields.get("id", cursor)
                    if "data" in fields:
                        yield {**json.loads(fields["data"]), "cursor": fields.get("id")}
                    fields = {}
            except ServiceUnavailable as outage:
                if not outage.sent:
                    raise
            self._sleep(_MAX_RETRY_SEC)

    def bulk(self, action: str, filters: Fields, *, expected: int, **fields: Any) -> Payload:
        """Start a bulk operation on all jobs that match the filters, such as `redrive` with `per_minute`; fields as in
        `POST /api/v1/bulk`."""
        body = {"action": action, "filter": dict(filters), "expected": expected, **fields}
        payload: Payload = self.request("POST", "/api/v1/bulk", body=body)
        return payload

    def queues(self) -> list[Payload]:
        """List the queues with their limits, jobs and statistics of the last hour."""
        return self._list(self.request("GET", "/api/v1/queues"), "queues")

    def limits(self) -> list[Payload]:
        """List the limits with the jobs that they count."""
        return self._list(self.request("GET", "/api/v1/limits"), "limits")

    def scaling(self, *, queue: str | None = None, target_wait_sec: float | None = None) -> Payload:
        """Return what an autoscaler needs to know of one queue, or of all: `wanted_threads`, waits, what is due soon,
        and the same for each of `queues`."""
        query = {"queue": queue, "target_wait_sec": target_wait_sec}
        payload: Payload = self.request("GET", "/api/v1/scaling", query=query)
        self._list(payload, "queues")
        return payload

    def datasets(self, **filters: Any) -> list[Payload]:
        """List datasets with their last update, by the filters of `GET /api/v1/datasets`."""
        return self._list(self.request("GET", "/api/v1/datasets", query=filters), "datasets")

    def schedules(self, *, task: str | None = None) -> list[Payload]:
        """List the schedules with what applies, their last time and the next one."""
        return self._list(self.request("GET", "/api/v1/schedules", query={"task": task}), "schedules")

    def run_schedule(self, name: str, *, at: datetime | None = None, again: bool = False) -> Payload:
        """Make the job of a nominal time now; by default of this moment.

        Raises `Conflict` if the time has fired, unless `again`.
        """
        body = {"at": None if at is None else at.isoformat(), "again": again}
        payload: Payload = self.request("POST", f"/api/v1/schedules/{quote(name, safe='')}/run", body=body)
        return payload

    def pause_schedule(self, name: str, reason: str | None = None) -> Payload:
        """Make no jobs until it is resumed."""
        path = f"/api/v1/schedules/{quote(name, safe='')}/pause"
        payload: Payload = self.request("POST", path, body={"reason": reason}, repeatable=True)
        return payload

    def resume_schedule(self, name: str, *, catch_up: bool = False) -> Payload:
        """Make jobs again; `catch_up` treats the times of the pause as missed ones."""
        path = f"/api/v1/schedules/{quote(name, safe='')}/resume"
        payload: Payload = self.request("POST", path, query={"catch_up": catch_up}, repeatable=True)
        return payload

    def backfill(
        self, task: str, first: str | None = None, last: str | None = None, *, keys: Sequence[str] = (), **fields: Any
    ) -> Payload:
        """Load slices of a task from the first to the last, or those of `keys`. Returns the `plan` and the `backfill`.

        Fields are those of `POST /api/v1/backfills`, such as `mode`, `concurrency` and `dry_run`.
        """
        slices = {"list": list(keys)} if keys else {"from": first, "to": last}
        payload: Payload = self.request("POST", "/api/v1/backfills", body={"task": task, "slices": slices, **fields})
        return payload

    def backfills(self, **filters: Any) -> list[Payload]:
        """List backfills, newest first, by the filters of `GET /api/v1/backfills`."""
        return self._list(self.request("GET", "/api/v1/backfills", query=filters), "backfills")

    def slices(self, task: str, **filters: Any) -> list[Payload]:
        """List the slices of a task by key; filters of `GET /api/v1/tasks/{task}/slices`, such as `state`."""
        return self._list(self.request("GET", f"/api/v1/tasks/{quote(task, safe='')}/slices", query=filters), "slices")

    def metrics(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        return "\n".join(self._stream_lines("/metrics"))

    def _stream_lines(self, path: str, query: Fields | None = None) -> Iterator[str]:
        """Yield the lines of a text response as they arrive."""
        with self._open("GET", path, query, timeout=max(self._timeout_sec, _STREAM_TIMEOUT_SEC)) as response:
            if response.status_code != requests.codes.ok:
                self._parse_response(response, path)
            # Without a length and without chunks a larger read would wait for data that comes much later.
            has_frames = {"Content-Length", "Transfer-Encoding"} & {name.title() for name in response.headers}
            for line in response.iter_lines(chunk_size=None if has_frames else 1):
                yield line.decode("utf-8", "replace")

    @contextmanager
    def _open(self, method: str, path: str, query: Fields | None, **content: Any) -> Iterator[requests.Response]:
        parameters = {name: _encode(value) for name, value in (query or {}).items() if value is not None}
        try:
            with self._session.request(
                method, self.url + path, params=parameters, allow_redirects=False, stream=True, **content
            ) as response:
                yield response
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            *_, first = causes = list(causes_of(error))
            reason = "timed out" if isinstance(first, TimeoutError) else getattr(first, "strerror", None) or str(first)
            sent = not any(isinstance(cause, _NOT_SENT) for cause in causes)
            problem = f"no answer from {self.url}" if sent else f"cannot connect to {self.url}"
            raise ServiceUnavailable(f"{problem}: {reason or type(first).__name__}", sent=sent) from error

    def _parse_response(self, response: requests.Response, path: str) -> Any:
        """Return the JSON of a successful response; raise the error that any other one means."""
        status = response.status_code
        try:
            payload = json.loads(response.raw.read(_MAX_RESPONSE_BYTES, decode_content=True))
        except (ValueError, RecursionError):
            payload = None
        problem = payload if isinstance(payload, dict) else {}
        if status == requests.codes.ok and payload is problem:
            return payload
        if status in _RETRYABLE:
            message = f"{self.url} answered {status}: {problem.get('detail') or response.reason or 'not now'}"
            seconds = response.headers.get("Retry-After", "")  # or a date, which counts as none
            retry_after_sec = float(seconds) if seconds.isascii() and seconds.isdigit() else None
            raise ServiceUnavailable(message, sent=True, retry_after_sec=retry_after_sec)
        if status == requests.codes.not_found and not str(problem.get("code", "")).endswith("_not_found"):
            raise ServiceFault(f"{self.url} has nothing at {path}: not a dataloader, or another version of it")
        if status == requests.codes.conflict or (status // 100 == 4 and "code" in problem):  # noqa: PLR2004
            raise _REFUSALS.get(status, Refused)(status, problem)
        detail = problem.get("detail") or f"{status} {response.reason}".strip()
        raise ServiceFault(f"{self.url} gave an unexpected answer: {detail}")

    def _job(self, payload: Payload) -> Payload:
        if not isinstance(payload.get("job_id"), str) or not isinstance(payload.get("status"), str):
            raise ServiceFault(f"{self.url} gave an unexpected answer: it has no job_id and status")
        return payload

    def _list(self, payload: Payload, name: str) -> list[Payload]:
        items = payload.get(name)
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ServiceFault(f"{self.url} gave an unexpected answer: it has no list of {name}")
        return items


def _encode(value: Any) -> str:
    """Convert what JSON and a query lack: times to UTC, flags to lower case, anything else, such as a UUID, to text."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)
