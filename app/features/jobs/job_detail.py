"""One job with its attempts, its events and the jobs it is related to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import from_row
from dataloader.app.db.statements import Executor
from dataloader.app.errors import JobNotFound
from dataloader.app.features.jobs.job_search import JobSummary
from dataloader.app.features.quality.rows import CheckResult, DataQuality, JobDataset
from dataloader.app.log.masking import mask_secret_fields
from dataloader.app.queue.job import Job, Status
from dataloader.app.queue.job_records import JobEvent
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.wording import format_attempt

MAX_ATTEMPTS_SHOWN = 200
_MAX_FOLLOW_UPS_SHOWN = 100
_MASKED_FIELDS = ("args", "progress", "result", "checkpoint")  # values under the names of secrets are masked
_ATTEMPT_EVENT_FIELDS = {
    "status", "attempt", "run_id", "error", "reason", "pause_sec", "traceback", "error_fingerprint",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """An attempt of a job, from its events. `outcome` is the kind of the event that ended it; null while it runs. A
    release, or a retry by hand, uses the number again: `run` counts the attempts that have it."""

    attempt: int
    run_id: UUID | None
    worker: str | None
    release: str | None = None  # of the pipelines' code that the process had
    started_at: datetime
    finished_at: datetime | None
    outcome: str | None
    reason: str | None
    error: str | None
    traceback: str | None  # its end, if it is long
    error_fingerprint: str | None
    retry_in_sec: float | None
    event_fields: dict[str, Any]
    run: int = 1

    @property
    def label(self) -> str:
        return format_attempt(self.attempt, self.run)


def run_at(attempts: Sequence[AttemptRecord], attempt: int, at: datetime) -> int:
    """The run of the attempt that wrote a line at this time."""
    runs = [record.run for record in attempts if record.attempt == attempt and record.started_at <= at]
    return max(runs, default=1)


@dataclass(frozen=True)
class RelatedJob:
    """Another job related to this one. `since`: when it was created, or locked the key."""

    job_id: UUID
    queue: str
    task: str
    status: Status
    since: datetime


@dataclass(frozen=True)
class VersionedJob:
    """A job with the version of its row, another one after every change."""

    job: Job
    version: str
    wait_state: str
    unknown_task: bool


@dataclass(frozen=True, kw_only=True)
class JobDetail(JobSummary):
    """A job with its attempts and related jobs. `wait_state`: where a queued job waits: scheduled, ready, blocked,
    waiting (for other jobs of its graph) or limited, which is by the limit `waits_on`. `skipped`: it was canceled
    because a parent did not end as it asked. `logical_at` is the time it is for, and
    `interval_start` to `interval_end` the data it is to load. `unknown_task`: it is deferred, since no live worker
    knows its task. `lock_holder`: the job that has its lock key while it waits. `checks`: the data checks of its
    attempts, `datasets`: what its runs updated and read, `links`: addresses by name, as its task reported them."""

    args: dict[str, Any]
    lease_ttl_sec: int
    lease_expires_at: datetime | None
    run_id: UUID | None
    result: Any
    traceback: str | None
    live_key: str | None
    time_limit_sec: int | None
    limits: dict[str, int] | None
    waits_on: str | None
    graph_id: UUID | None
    graph_key: str | None
    need: str | None
    skipped: bool | None
    fair_key: str | None
    tags: list[str] | None
    expires_at: datetime | None
    error_fingerprint: str | None
    schedule_id: UUID | None
    backfill_id: UUID | None
    logical_at: datetime | None
    interval_start: datetime | None
    interval_end: datetime | None
    retry: dict[str, Any] | None
    parent_id: UUID | None
    crashes: int
    checkpoint: Any
    version: str
    attempts: list[AttemptRecord]
    parent: RelatedJob | None
    follow_up_jobs: list[RelatedJob]
    lock_holder: RelatedJob | None
    checks: list[CheckResult]
    datasets: list[JobDataset]
    links: dict[str, str]


class JobReader:
    """Reads single jobs."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute
        self._job_queue, self._quality = JobQueue(executor), DataQuality(executor)

    def by_idempotency_key(self, idempotency_key: str) -> RelatedJob | None:
        rows = self._execute("job_of_idempotency_key", {"idempotency_key": idempotency_key})
        return from_row(RelatedJob, rows[0]) if rows else None

    def get_with_version(self, job_id: UUID) -> VersionedJob:
        """Raises JobNotFound. If the job changes between the two reads, the version is the older one."""
        rows = self._execute("row_version", {"job_id": str(job_id)})
        job = self._job_queue.get(job_id) if rows else None
        if job is None:
            raise JobNotFound(job_id)
        return VersionedJob(job, *rows[0])

    def detail(self, job_id: UUID) -> JobDetail:
        """Raises JobNotFound."""
        found = self.get_with_version(job_id)
        job = found.job
        attempts = self.attempts(job_id)
        values = vars(job) | vars(found) | {"job_id": job.id, "duration_ms": _duration_ms(attempts)}
        parents = [] if job.parent_id is None else self._related_jobs("linked_job", job.parent_id)
        is_queued = job.status is Status.QUEUED
        lock_holders = self._related_jobs("key_holder", job_id, lock_key=job.lock_key) if is_queued else []
        return JobDetail(
            **{name: value for name, value in values.items() if name in JobDetail.__dataclass_fields__},
            attempts=attempts,
            parent=next(iter(parents), None),
            follow_up_jobs=self._related_jobs("children", job_id, limit=_MAX_FOLLOW_UPS_SHOWN),
            lock_holder=next(iter(lock_holders), None),
            checks=self._quality.checks_of_job(job_id),
            datasets=self._quality.datasets_of_job(job_id),
            links=_links_in(job.progress),
        )

    def _related_jobs(self, statement: str, job_id: UUID, **parameters: Any) -> list[RelatedJob]:
        return [from_row(RelatedJob, row) for row in self._execute(statement, parameters | {"job_id": str(job_id)})]

    def attempts(self, job_id: UUID) -> list[AttemptRecord]:
        """The last attempts of a job, oldest first."""
        rows = self._execute("attempt_events", {"job_id": str(job_id), "limit": 2 * MAX_ATTEMPTS_SHOWN})
        return _pair_attempt_events([from_row(JobEvent, row) for row in rows])

    def last_events(self, job_id: UUID, *, limit: int) -> list[JobEvent]:
        """The job's last events, oldest first."""
        rows = self._execute("last_events", {"job_id": str(job_id), "limit": limit})
        return [from_row(JobEvent, row) for row in rows]


def masked_detail(job: JobDetail) -> JobDetail:
    return replace(job, **masked_values(job, _MASKED_FIELDS))


def masked_values(job: JobSummary, names: Iterable[str]) -> dict[str, Any]:
    values = vars(job)
    return {name: mask_secret_fields(values[name]) if name in _MASKED_FIELDS else values[name] for name in names}


def _duration_ms(attempts: Sequence[AttemptRecord]) -> int | None:
    if not attempts:
        return None
    end = attempts[-1].finished_at or datetime.now(UTC)
    return max(0, round((end - attempts[-1].started_at).total_seconds() * 1000))


def _links_in(progress: Any) -> dict[str, str]:
    """The links that a job reported. Others write progress too: only web addresses may become links of a page."""
    links = progress.get("links") if isinstance(progress, dict) else None
    if not isinstance(links, dict):
        return {}
    return {
        n: url for n, url in links.items() if isinstance(url, str) and url.lower().startswith(("http://", "https://"))
    }


def _pair_attempt_events(events: Iterable[JobEvent]) -> list[AttemptRecord]:
    """Pair each `picked` event with the event that ended the attempt."""
    pairs: list[tuple[JobEvent, JobEvent | None]] = []
    for event in events:
        if event.kind == "picked":
            pairs.append((event, None))
        elif pairs and pairs[-1][1] is None and event.kind not in ("cancel_requested", "stop_pending"):
            pairs[-1] = (pairs[-1][0], event)
    attempts, used = [], Counter[int]()
    for started, ended in pairs:
        attempt = _attempt_from_events(started, ended)
        used[attempt.attempt] += 1
        attempts.append(replace(attempt, run=used[attempt.attempt]))
    return attempts


def _attempt_from_events(started: JobEvent, ended: JobEvent | None) -> AttemptRecord:
    """Other services write events too: what has another type is shown as text, or left out."""
    attempt, payload = started.payload.get("attempt"), {} if ended is None else ended.payload
    pause = payload.get("pause_sec")
    return AttemptRecord(
        attempt=attempt if isinstance(attempt, int) else 0,
        run_id=_as_run_id(started.payload.get("run_id")),
        worker=_as_text(started.payload.get("worker")),
        release=_as_text(started.payload.get("release")),
        started_at=started.ts,
        finished_at=None if ended is None else ended.ts,
        outcome=None if ended is None else ended.kind,
        reason=_as_text(payload.get("reason")),
        error=_as_text(payload.get("error")),
        traceback=_as_text(payload.get("traceback")),
        error_fingerprint=_as_text(payload.get("error_fingerprint")),
        retry_in_sec=pause if isinstance(pause, int | float) else None,
        event_fields={name: value for name, value in payload.items() if name not in _ATTEMPT_EVENT_FIELDS},
    )


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_run_id(value: Any) -> UUID | None:
    try:
        return UUID(value)
    except (ValueError, TypeError, AttributeError):
        return None
