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
from typing import Any, Unpack
from uuid import UUID

from dataloader._enqueue import TriggerOptions
from dataloader._request import FIRST_RETRY_SEC, MAX_RETRY_SEC, Transport
from dataloader.errors import Conflict, ServiceFault, ServiceUnavailable

Payload = dict[str, Any]
JobId = UUID | str
OnOutage = Callable[[ServiceUnavailable], None]

FINAL_STATUSES = frozenset({"succeeded", "failed", "canceled", "lost"})
MAX_LOG_LINES = 1000  # lines in one page of a log
_LOG_WAIT_SEC = 5.0
_WATCH_BACKOFF = 1.2
_OUTAGE_TIMEOUT_SEC = 300.0


class Client(Transport):
    """One service. Responses are JSON objects as docs/http-api.md describes them; `request` reaches every operation."""

    def trigger(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        strict: bool = False,
        **options: Unpack[TriggerOptions],
    ) -> Payload:
        """Put a job into the queue; return its `job_id`, `status` and, if it may never run, `warnings`.

        Without an idempotency key a request whose answer is lost is not repeated. Raises `Conflict` if the idempotency
        key belongs to a different job, and with `strict` if no live worker would run the job.
        """
        body = {"task": task, "args": args or {}, **{n: value for n, value in options.items() if value is not None}}
        path, repeatable = "/api/v1/jobs/trigger", options.get("idempotency_key") is not None
        return self._job(self.request("POST", path, query={"strict": strict or None}, body=body, repeatable=repeatable))

    def trigger_many(self, jobs: Sequence[Mapping[str, Any]], *, all_or_none: bool = False) -> Payload:
        """Put up to 10,000 jobs into the queue with one request; `items` of the answer has an outcome for each, in order.

        Repeated when the answer is lost if every job has an idempotency key. With `all_or_none` no job is created unless
        all can be, and the outcomes show which cannot.
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

    def status(self, job_id: JobId) -> Payload:
        """Return status, attempt, times, progress and error of a job."""
        return self._job(self.request("GET", f"/api/v1/jobs/{job_id}/status"))

    def job(self, job_id: JobId) -> Payload:
        """Return everything about a job: args, result, attempts, related jobs."""
        return self._job(self.request("GET", f"/api/v1/jobs/{job_id}"))

    def jobs(self, **filters: Any) -> list[Payload]:
        """List jobs, newest first, by the filters of `GET /api/v1/jobs`, such as `queue`, `status`, `task`, `limit`."""
        return self._list(self.request("GET", "/api/v1/jobs", query=filters), "jobs")

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
        self,
        job_id: JobId,
        *,
        outage_timeout_sec: float = _OUTAGE_TIMEOUT_SEC,
        on_outage: OnOutage = lambda _: None,
    ) -> Iterator[Payload]:
        """Yield each new state of a job until it is final.

        Once a state was seen, outages up to `outage_timeout_sec` are waited out; `on_outage` gets each failed request.
        """
        last: Payload | None = None
        pause, last_seen_at = FIRST_RETRY_SEC, time.monotonic()
        while last is None or last["status"] not in FINAL_STATUSES:
            if last is not None:
                self._sleep(pause)
                pause = min(pause * _WATCH_BACKOFF, MAX_RETRY_SEC)
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
                last, pause = state, FIRST_RETRY_SEC

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
        on_outage: OnOutage = lambda _: None,
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
                self._sleep(MAX_RETRY_SEC)
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
            self._sleep(MAX_RETRY_SEC)

    def queues(self) -> list[Payload]:
        """List the queues with their limits, jobs and statistics of the last hour."""
        return self._list(self.request("GET", "/api/v1/queues"), "queues")

    def metrics(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        return "\n".join(self._stream_lines("/metrics"))

    def _job(self, payload: Payload) -> Payload:
        if not isinstance(payload.get("job_id"), str) or not isinstance(payload.get("status"), str):
            raise ServiceFault(f"{self.url} gave an unexpected answer: it has no job_id and status")
        return payload

    def _list(self, payload: Payload, name: str) -> list[Payload]:
        items = payload.get(name)
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ServiceFault(f"{self.url} gave an unexpected answer: it has no list of {name}")
        return items
