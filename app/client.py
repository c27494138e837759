"""A typed client of the HTTP API, for programs and for the `dataloader` command. Standard library only.

service = Client("http://127.0.0.1:8081")
triggered = service.trigger(Request(queue="etl.default", task="noop", lock_key="noop"))
for state in service.watch(triggered.job_id):
    print(state.status, state.progress)

DataloaderError
└── ClientError
    ├── ServiceUnavailable    no answer, or "not now", until the patience ran out
    ├── ServiceFault          an answer that no dataloader in order would give
    └── Refused               a problem+json answer: code, detail, errors
        ├── NotFound
        ├── Conflict
        └── NotAllowed        it takes an API key, or another one
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit
from uuid import UUID

from app.errors import DataloaderError
from app.queue.job import Status

DEFAULT_URL = "http://127.0.0.1:8081"
PATIENCE_SEC = 6.0  # enough for one Retry-After of a service whose database is away
MAX_ANSWER_BYTES = 64 * 1024 * 1024
NOT_NOW = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
FULL_PAGE = 1000  # lines of a log in one answer
FOLLOW_SEC = 5.0  # how long one question waits for the next line of a log
FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.2, 2.0


class ClientError(DataloaderError):
    """A request to the service did not end as it was meant to."""


class ServiceUnavailable(ClientError):
    """The service could not be reached, or said that it cannot answer now."""

    def __init__(self, detail: str, *, sent: bool, retry_after_sec: float | None = None) -> None:
        super().__init__(detail)
        self.sent = sent  # False: the request never left, so sending it again cannot double anything
        self.retry_after_sec = retry_after_sec


class ServiceFault(ClientError):
    """The service failed, or something else answers at this address."""


@dataclass(frozen=True)
class FieldError:
    """One thing wrong with a request."""

    field: str
    message: str


class Refused(ClientError):
    """The service answered, and the answer was no."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code") or f"http_{status}")
        self.detail = str(problem.get("detail") or problem.get("title") or f"the service answered {status}")
        self.errors = tuple(_field_errors(problem.get("errors")))
        super().__init__(self.detail)


class NotFound(Refused):
    pass


class Conflict(Refused):
    pass


class NotAllowed(Refused):
    """It takes a key, or another key."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A job to trigger. `None` leaves the choice to the service."""

    task: str
    queue: str | None = None  # the service knows one for tasks that have a default; likewise the next
    lock_key: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None  # without one, a trigger whose answer is lost is not sent again
    partition_key: str | None = None
    priority: int | None = None
    available_at: datetime | None = None
    max_attempts: int | None = None
    lease_ttl_sec: int | None = None
    producer: str | None = None
    consumer_group: str | None = None
    live_key: str | None = None  # unique among waiting and running jobs
    time_limit_sec: int | None = None
    retry: Mapping[str, Any] | None = None

    def body(self) -> dict[str, Any]:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if self.available_at is not None:
            given["available_at"] = self.available_at.astimezone(UTC).isoformat()
        return given


@dataclass(frozen=True)
class Triggered:
    """The job that now stands for the request, new or as the idempotency key found it."""

    job_id: UUID
    status: Status
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class JobState:
    """How a job does. `said` is the whole answer, for fields that are not named here."""

    job_id: UUID
    status: Status
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    heartbeat_at: datetime | None
    error: str | None
    progress: dict[str, Any]
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class JobLine:
    """A job in a list of jobs."""

    job_id: UUID
    status: Status
    queue: str
    task: str
    attempt: int
    max_attempts: int
    created_at: datetime
    error: str | None
    progress: dict[str, Any]
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class JobLogLine:
    """A line that a job said."""

    log_id: int
    at: datetime
    attempt: int
    level: str
    stream: str
    line: str
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class JobLogs:
    """Lines of a job's log, oldest first."""

    lines: list[JobLogLine]
    next: int  # `after` for the lines that follow
    complete: bool  # nothing follows
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """A line of a job's journal."""

    at: datetime
    kind: str
    payload: dict[str, Any]
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class AuditLine:
    """Something that somebody did."""

    audit_id: int
    at: datetime
    action: str
    actor: str
    via: str
    address: str | None
    request_id: str | None
    subject: str
    subject_id: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class AuditPage:
    """Lines of the audit, newest first."""

    lines: list[AuditLine]
    next: int | None  # `before` for the page after this one
    said: dict[str, Any] = field(repr=False)


class Client:
    """One service, asked one question at a time.

    `key` is the API key that the service asks for, if it does; no error repeats it.
    A request is sent again while `patience_sec` lasts if that cannot do anything twice: it never left, or it changes
    nothing, or it carries an idempotency key. No proxy from the environment is used and no redirect followed.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout_sec: float = 10.0,
        patience_sec: float = PATIENCE_SEC,
        key: str | None = None,
        wait: Callable[[float], None] = time.sleep,
        on_pause: Callable[[ServiceUnavailable], None] = lambda _: None,
    ) -> None:
        self.url = service_url(url)
        self._address = urlsplit(self.url)
        self._timeout_sec = timeout_sec
        self._patience_sec = patience_sec
        self._key = None if key is None else api_key(key)
        self._wait = wait
        self._on_pause = on_pause  # told before each pause that precedes another try

    def trigger(self, request: Request) -> Triggered:
        """Put a job into the queue. Raises `Conflict` if the idempotency key belongs to another request."""
        keyed = request.idempotency_key is not None
        said = self._ask("POST", "/api/v1/jobs/trigger", body=request.body(), repeatable=keyed)
        with _understood(self.url):
            return Triggered(UUID(said["job_id"]), Status(said["status"]), said)

    def status(self, job_id: UUID) -> JobState:
        return self._state("GET", f"/api/v1/jobs/{job_id}/status", repeatable=True)

    def cancel(self, job_id: UUID) -> JobState:
        """Cancel a job: at once if it is queued; a running one is `running` until it comes to a safe point."""
        return self._state("POST", f"/api/v1/jobs/{job_id}/cancel", repeatable=True)

    def retry(self, job_id: UUID) -> JobState:
        """Queue a failed, canceled or lost job again, with a fresh budget. Raises `Conflict` for any other."""
        return self._state("POST", f"/api/v1/jobs/{job_id}/retry", repeatable=False)

    def jobs(
        self, *, queue: str | None = None, status: Status | None = None, task: str | None = None, limit: int = 50
    ) -> list[JobLine]:
        """The newest jobs first."""
        asked = {"queue": queue, "status": status, "task": task, "limit": limit}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        said = self._ask("GET", f"/api/v1/jobs?{query}", repeatable=True)
        with _understood(self.url):
            return [_line(job) for job in said["jobs"]]

    def audit(
        self,
        *,
        actor: str | None = None,
        key_id: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        subject_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> AuditPage:
        """Who did what, newest first. Takes a key with the scope `operate`."""
        asked = {
            "actor": actor, "key_id": key_id, "action": action, "subject": subject, "subject_id": subject_id,
            "since": since and since.astimezone(UTC).isoformat(), "until": until and until.astimezone(UTC).isoformat(),
            "before": before, "limit": limit,
        }  # fmt: skip
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        said = self._ask("GET", f"/api/v1/audit?{query}", repeatable=True)
        with _understood(self.url):
            return AuditPage([_audit_line(line) for line in said["lines"]], said["next"], said)

    def events(self, job_id: UUID) -> list[JobEvent]:
        """The job's journal, oldest first."""
        said = self._ask("GET", f"/api/v1/jobs/{job_id}/events", repeatable=True)
        with _understood(self.url):
            return [_event(event) for event in said["events"]]

    def logs(
        self,
        job_id: UUID,
        *,
        tail: int | None = None,
        after: int = 0,
        level: str | None = None,
        attempt: int | None = None,
        stream: str | None = None,
        wait: float = 0,
    ) -> JobLogs:
        """What the job said: the first thousand lines after `after`, or the last `tail` ones. With none there yet the
        service waits up to `wait` seconds for one."""
        asked = {
            "tail": tail, "after": after or None, "level": level, "attempt": attempt, "stream": stream,
            "wait": wait or None,
        }  # fmt: skip
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        said = self._ask("GET", f"/api/v1/jobs/{job_id}/logs?{query}", repeatable=True)
        with _understood(self.url):
            return JobLogs([_log_line(line) for line in said["lines"]], int(said["next"]), bool(said["complete"]), said)

    def follow(
        self,
        job_id: UUID,
        *,
        tail: int | None = None,
        outage_sec: float = 300.0,
        on_outage: Callable[[ServiceUnavailable], None] = lambda _: None,
        **which: Any,
    ) -> Iterator[JobLogLine]:
        """Each line of the job's log, until the job has ended and said its last one.

        A service that goes away meanwhile is waited for, as by `watch`.
        """
        page = self.logs(job_id, tail=tail, **which)
        wait = longest = min(FOLLOW_SEC, self._timeout_sec / 2)
        seen_at = time.monotonic()
        while page.lines or not page.complete:
            yield from page.lines
            try:
                page = self.logs(job_id, after=page.next, wait=wait, **which)
            except ServiceUnavailable as outage:
                if time.monotonic() - seen_at > outage_sec:
                    raise
                on_outage(outage)
                page, wait = JobLogs([], page.next, False, {}), 0.0  # too many may be waiting already
                self._wait(LONGEST_PAUSE_SEC)
                continue
            seen_at, wait = time.monotonic(), longest

    def watch(
        self,
        job_id: UUID,
        *,
        outage_sec: float = 300.0,
        on_outage: Callable[[ServiceUnavailable], None] = lambda _: None,
    ) -> Iterator[JobState]:
        """Each state of the job that differs from the one before, until it is final.

        A service that goes away meanwhile is waited for, up to `outage_sec`; `on_outage` is told of every failed look.
        """
        last: JobState | None = None
        pause, seen_at = FIRST_PAUSE_SEC, time.monotonic()
        while last is None or not last.status.final:
            if last is not None:
                self._wait(pause)
                pause = min(pause * 1.2, LONGEST_PAUSE_SEC)
            try:
                state = self.status(job_id)
            except ServiceUnavailable as outage:
                # Never once seen: more likely a wrong address than an outage.
                if last is None or time.monotonic() - seen_at > outage_sec:
                    raise
                on_outage(outage)
                continue
            seen_at = time.monotonic()
            if state != last:
                yield state
                last, pause = state, FIRST_PAUSE_SEC

    def _state(self, method: str, path: str, *, repeatable: bool) -> JobState:
        said = self._ask(method, path, repeatable=repeatable)
        with _understood(self.url):
            return _state(said)

    def _ask(self, method: str, path: str, *, body: dict[str, Any] | None = None, repeatable: bool) -> Any:
        deadline = time.monotonic() + self._patience_sec
        pause = FIRST_PAUSE_SEC
        while True:
            try:
                return self._exchange(method, path, body)
            except ServiceUnavailable as outage:
                rest = pause if outage.retry_after_sec is None else outage.retry_after_sec
                if (outage.sent and not repeatable) or time.monotonic() + rest > deadline:
                    raise
                self._on_pause(outage)
            self._wait(rest)
            pause = min(pause * 2, LONGEST_PAUSE_SEC)

    def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Accept": "application/json", "User-Agent": "dataloader-client"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            data = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            try:
                connection.connect()
            except (OSError, UnicodeError) as error:
                raise ServiceUnavailable(f"cannot connect to {self.url}: {_why(error)}", sent=False) from error
            try:
                connection.request(method, self._address.path + path, data, headers)
                answer = connection.getresponse()
                text = answer.read(MAX_ANSWER_BYTES)
                if answer.length:  # a read with a limit does not say when the answer breaks off
                    raise http.client.IncompleteRead(text, answer.length)
            except (OSError, http.client.HTTPException) as error:
                raise ServiceUnavailable(f"no answer from {self.url}: {_why(error)}", sent=True) from error
        finally:
            connection.close()
        return self._judge(answer, text, path)

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_sec, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_sec)

    def _judge(self, answer: http.client.HTTPResponse, text: bytes, path: str) -> Any:
        said = _json(text)
        if answer.status == HTTPStatus.OK and isinstance(said, dict):
            return said
        problem = said if isinstance(said, dict) else {}
        if answer.status in NOT_NOW:
            detail = problem.get("detail") or answer.reason or "not now"
            raise ServiceUnavailable(
                f"{self.url} answered {answer.status}: {detail}", sent=True, retry_after_sec=_retry_after(answer)
            )
        if answer.status == HTTPStatus.NOT_FOUND:
            if problem.get("code") == "job_not_found":
                raise NotFound(answer.status, problem)
            raise ServiceFault(
                f"{self.url} has nothing at {path.partition('?')[0]}: not a dataloader, or another version of it"
            )
        if answer.status == HTTPStatus.CONFLICT:
            raise Conflict(answer.status, problem)
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) and "code" in problem:
            raise NotAllowed(answer.status, problem)
        if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and "code" in problem:
            raise Refused(answer.status, problem)
        told = problem.get("detail") or f"{answer.status} {answer.reason}".strip()
        raise ServiceFault(f"{self.url} gave an answer that was not expected: {told}")


def service_url(url: str) -> str:
    """The address of a service, without the slashes at its end. ValueError, if it is none."""
    try:
        address = urlsplit(url)
        _ = address.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no address of a service: {error}") from error
    if address.username is not None or address.password is not None:
        raise ValueError("an address of a service has no user name or password in it")
    if address.scheme not in ("http", "https") or not address.hostname or address.query or address.fragment:
        raise ValueError(f"{url!r} is no address of a service; one looks like {DEFAULT_URL}")
    if not all("!" <= character <= "~" for character in url):
        raise ValueError(f"{url!r} has characters that do not belong in an address")
    return url.rstrip("/")


def api_key(told: str) -> str:
    """A key as it can be sent. ValueError, which does not repeat it, if it is none."""
    key = told.strip()
    if not key or not all("!" <= character <= "~" for character in key):
        raise ValueError("the API key is empty, or has characters that no key has; one looks like dlk_…_…")
    return key


@contextmanager
def _understood(url: str) -> Iterator[None]:
    """An answer that lacks what the contract promises is the service's fault, told with its address."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        told = f"{type(error).__name__}: {error}"
        raise ServiceFault(f"{url} gave an answer that was not understood: {told}") from error


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _retry_after(answer: http.client.HTTPResponse) -> float | None:
    told = answer.getheader("Retry-After", "")
    return float(told) if told.isascii() and told.isdigit() else None


def _field_errors(errors: Any) -> Iterator[FieldError]:
    for error in errors if isinstance(errors, list) else []:
        if isinstance(error, dict):
            yield FieldError(str(error.get("field", "")), str(error.get("message") or ""))


def _state(said: dict[str, Any]) -> JobState:
    return JobState(
        job_id=UUID(said["job_id"]),
        status=Status(said["status"]),
        attempt=int(said["attempt"]),
        started_at=_time(said["started_at"]),
        finished_at=_time(said["finished_at"]),
        heartbeat_at=_time(said["heartbeat_at"]),
        error=said["error"],
        progress=dict(said["progress"]),
        said=said,
    )


def _line(said: dict[str, Any]) -> JobLine:
    return JobLine(
        job_id=UUID(said["job_id"]),
        status=Status(said["status"]),
        queue=str(said["queue"]),
        task=str(said["task"]),
        attempt=int(said["attempt"]),
        max_attempts=int(said["max_attempts"]),
        created_at=datetime.fromisoformat(said["created_at"]),
        error=said["error"],
        progress=dict(said["progress"]),
        said=said,
    )


def _event(said: dict[str, Any]) -> JobEvent:
    return JobEvent(
        at=datetime.fromisoformat(said["ts"]), kind=str(said["kind"]), payload=dict(said["payload"]), said=said
    )


def _audit_line(said: dict[str, Any]) -> AuditLine:
    names = [name for name in AuditLine.__dataclass_fields__ if name not in ("at", "said")]
    return AuditLine(at=datetime.fromisoformat(said["at"]), said=said, **{name: said[name] for name in names})


def _log_line(said: dict[str, Any]) -> JobLogLine:
    return JobLogLine(
        log_id=int(said["log_id"]),
        at=datetime.fromisoformat(said["ts"]),
        attempt=int(said["attempt"]),
        level=str(said["level"]),
        stream=str(said["stream"]),
        line=str(said["line"]),
        said=said,
    )


def _time(told: str | None) -> datetime | None:
    return None if told is None else datetime.fromisoformat(told)
