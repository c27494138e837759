"""The client: what programs and the command line ask most, as methods that answer with values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from app.client.answers import (
    AuditPage,
    JobEvent,
    JobLine,
    JobLogLine,
    JobLogs,
    JobState,
    Request,
    Triggered,
    read_audit_line,
    read_event,
    read_line,
    read_log_line,
    read_state,
)
from app.client.batch import Batches
from app.client.errors import ServiceUnavailable
from app.client.operations import Api
from app.client.streaming import StreamEvent, follow
from app.client.transport import FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC, Transport, understood
from app.queue.job import Status
from app.telling import Telling

FULL_PAGE = 1000  # lines of a log in one answer
FOLLOW_SEC = 5.0  # how long one question waits for the next line of a log


class Client(Batches, Telling, Transport):
    """One service, asked one question at a time.

    `key` is the API key that the service asks for, if it does; no error repeats it.
    A request is sent again while `patience_sec` lasts if that cannot do anything twice: it never left, or it changes
    nothing, or it carries an idempotency key. No proxy from the environment is used and no redirect followed.
    """

    @cached_property
    def api(self) -> Api:
        """Every operation of the API, one method each; its answers are JSON as it came."""
        return Api(self._ask)

    def trigger(self, request: Request, *, strict: bool = False) -> Triggered:
        """Put a job into the queue. Raises `Conflict` if the idempotency key belongs to another request, and if no live
        worker would run the job and `strict` is set; without it the answer has `warnings`."""
        keyed = request.idempotency_key is not None
        path = "/api/v1/jobs/trigger?strict=true" if strict else "/api/v1/jobs/trigger"
        said = self._ask("POST", path, body=request.body(), repeatable=keyed)
        with understood(self.url):
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
        with understood(self.url):
            return [read_line(job) for job in said["jobs"]]

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
        with understood(self.url):
            return AuditPage([read_audit_line(line) for line in said["lines"]], said["next"], said)

    def events(self, job_id: UUID) -> list[JobEvent]:
        """The job's journal, oldest first."""
        said = self._ask("GET", f"/api/v1/jobs/{job_id}/events", repeatable=True)
        with understood(self.url):
            return [read_event(event) for event in said["events"]]

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
        with understood(self.url):
            return JobLogs(
                [read_log_line(line) for line in said["lines"]], int(said["next"]), bool(said["complete"]), said
            )

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

    def _told(self, method: str, path: str, body: dict[str, Any] | None, read: Callable[[Any], Any]) -> Any:
        said = self._ask(method, path, body=body, repeatable=method == "GET")
        with understood(self.url):
            return read(said)

    def stream(
        self, *, queue: str | None = None, kind: str | None = None, after: str | None = None
    ) -> Iterator[StreamEvent]:
        """What happens to jobs, as it happens, from now on or behind a place; without end, over lost connections."""
        asked = {name: value for name, value in (("queue", queue), ("kind", kind)) if value is not None}

        def lines(place: str | None) -> Iterator[str]:
            query = urlencode(asked | ({} if place is None else {"after": place}))
            return self._lines(f"/api/v1/stream?{query}" if query else "/api/v1/stream")

        return follow(lines, after=after, rest=lambda: self._wait(LONGEST_PAUSE_SEC))

    def metrics(self) -> str:
        """The service's numbers, in the text format of Prometheus."""
        return "\n".join(self._lines("/metrics"))

    def _state(self, method: str, path: str, *, repeatable: bool) -> JobState:
        said = self._ask(method, path, repeatable=repeatable)
        with understood(self.url):
            return read_state(said)
