"""JobQueue: the questions and moves of the queue, one method a statement."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from app.db.encoding import array, sanitize_json, sanitize_text, unquoted_array, validate_json, validate_texts
from app.db.rows import as_uuid, from_row
from app.errors import IdempotencyConflict, JobNotFound, NotRetryable
from app.queue.job import (
    SUCCEEDED,
    Claim,
    ClaimedJob,
    ClaimHint,
    Enqueued,
    ExpiredRuns,
    HostFacts,
    Job,
    JobEvent,
    JobLogLine,
    LogEntry,
    LogPage,
    NewJob,
    ReapedJob,
    ReleaseRequest,
    Renewal,
    RenewalRequest,
    RepairResult,
    Settlement,
    SettleResult,
    Status,
    WorkerInfo,
)

_MAX_ERROR_LENGTH = 8_000
_MAX_TRACEBACK_LENGTH = 64_000
_MAX_PROGRESS_BYTES = 64_000
_MAX_RETRY_DELAY_SEC = 366 * 86_400.0
CURSOR_START = array(("-1", "-infinity", "00000000-0000-0000-0000-000000000000"))  # before every ready job


_APPLIED_BY_STATUS = {status: SettleResult("applied", status) for status in Status}
_APPLIED_SUCCESS = _APPLIED_BY_STATUS[Status.SUCCEEDED]


class Executor(Protocol):
    """Where statements are sent: a Pool, a Session, or a connection that was handed in."""

    schema: str

    def execute(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]: ...


@dataclass(frozen=True)
class JobLimits:
    max_result_bytes: int = 1_000_000  # bytes of JSON
    min_lease_sec: int = 1  # what a worker can renew in time: two heartbeats


class JobQueue:
    """The queue in one schema of one database, spoken to through one source of connections."""

    def __init__(self, executor: Executor, *, limits: JobLimits | None = None) -> None:
        self.executor = executor
        self._execute: Callable[..., list[tuple[Any, ...]]] = executor.execute
        self._limits = limits or JobLimits()

    # ── by callers ──────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, job: NewJob) -> Enqueued:
        """Put a job into the queue, or find the one that its idempotency key already has.

        Raises IdempotencyConflict when that one was asked for with another queue, task or args.
        """
        parameters = _insert_parameters(job)
        rows: list[tuple[Any, ...]] = []
        while not rows:  # a key's job may be deleted, or not yet visible, between the insert and the look-up
            rows = self._execute("enqueue", parameters)
        job_id, status, created, same = rows[0]
        if not same:
            raise IdempotencyConflict(parameters["idempotency_key"] or "", as_uuid(job_id))
        return Enqueued(as_uuid(job_id), Status(status), created)

    def get(self, job_id: UUID) -> Job | None:
        rows = self._execute("get_job", {"job_id": str(job_id)})
        return from_row(Job, rows[0]) if rows else None

    def jobs(
        self, *, queue: str | None = None, status: Status | None = None, task: str | None = None, limit: int = 50
    ) -> list[Job]:
        """The newest jobs, newest first."""
        return [
            from_row(Job, row)
            for row in self._execute("latest_jobs", {"queue": queue, "status": status, "task": task, "limit": limit})
        ]

    def events(self, job_id: UUID, *, after: int = 0, limit: int = 1000) -> list[JobEvent]:
        """List the job's events after the given one, oldest first."""
        rows = self._execute("job_events", {"job_id": str(job_id), "after": after, "limit": limit})
        return [from_row(JobEvent, row) for row in rows]

    def logs(
        self,
        job_id: UUID,
        *,
        after: int = 0,
        tail: bool = False,
        levels: Iterable[str] | None = None,
        attempt: int | None = None,
        stream: str | None = None,
        limit: int = 1000,
    ) -> LogPage:
        """What a job said: the first lines after `after`, or with `tail` the last ones; oldest first."""
        asked = {"job_id": str(job_id), "after": after, "tail": tail, "attempt": attempt, "stream": stream}
        rows = self._execute("job_logs", asked | {"levels": None if levels is None else array(levels), "most": limit})
        if not rows:
            raise JobNotFound(job_id)
        return LogPage([JobLogLine(*row[1:]) for row in rows if row[1] is not None], rows[0][0])

    def cancel(self, job_id: UUID) -> Job:
        """Cancel a waiting job, ask a running one to stop, leave a finished one. Returns it as it is then."""
        self._execute("cancel", {"job_id": str(job_id)})
        return self._get_or_raise(job_id)

    def retry(self, job_id: UUID) -> Job:
        """Queue a failed, canceled or lost job again, with a fresh budget."""
        if not self._execute("retry", {"job_id": str(job_id)}):
            job = self._get_or_raise(job_id)
            blocked = job.status in (Status.FAILED, Status.CANCELED, Status.LOST)
            raise NotRetryable(job_id, job.status, job.live_key if blocked else None)
        return self._get_or_raise(job_id)

    def workers(self) -> list[WorkerInfo]:
        return [from_row(WorkerInfo, row, queue_threads={}) for row in self._execute("workers")]

    def ping(self) -> float:
        """How many seconds a round trip took."""
        began = time.monotonic()
        self._execute("ping")
        return time.monotonic() - began

    def _get_or_raise(self, job_id: UUID) -> Job:
        job = self.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    # ── by workers ──────────────────────────────────────────────────────────────────────────────────────────────

    def register_worker(
        self, info: WorkerInfo, *, heartbeat_sec: float, facts: HostFacts | None = None
    ) -> list[tuple[Any, ...]]:
        """Register a worker, or note that it lives. `WorkerLiveness.beat` reads the answer."""
        facts = facts or HostFacts()
        return self._execute(
            "register_worker",
            {
                "worker_id": str(info.id),
                "name": info.name,
                "version": info.version,
                "queues": array(info.queues),
                "tasks": array(info.tasks),
                "threads": info.threads,
                "heartbeat_sec": heartbeat_sec,
                "queue_threads": json.dumps(dict(info.queue_threads)),
                **vars(facts),
                "child_tasks": array(facts.child_tasks),
            },
        )

    def restore_unknown_tasks(self, queues: Iterable[str], tasks: Iterable[str]) -> None:
        """Make due again what was set aside for want of a worker that knows its task."""
        self._execute("restore_unknown_tasks", {"queues": array(queues), "tasks": array(tasks)})

    def deregister_worker(self, worker_id: UUID) -> None:
        self._execute("deregister_worker", {"worker_id": str(worker_id)})

    def claim(
        self,
        queue: str,
        tasks: Iterable[str],
        run_ids: Sequence[UUID | str],
        worker: str,
        *,
        scan: int = 0,
        lock_keys: bool = False,
        promote_due: bool = True,
        after: Sequence[str] | None = None,
        worker_id: UUID | None = None,
    ) -> tuple[list[ClaimedJob], ClaimHint]:
        """Take as many ready jobs as run ids were drawn, and learn when to look again. `look` at more than that where
        many are expected to be parked for their key. With `due` what has fallen due becomes ready first. What stands
        before `after`, the mark of an earlier claim, is passed over. With `guard` the keys' session locks are taken in
        the same stroke; after an error they may be held without a run, so that the session must be closed."""
        rows = self._execute(
            "promote_and_claim" if promote_due else "claim",
            {
                "queue": queue,
                "tasks": array(tasks),
                "most": len(run_ids),
                "look": max(scan, len(run_ids)),
                "run_ids": unquoted_array(run_ids),
                "worker": worker,
                "worker_id": None if worker_id is None else str(worker_id),
                "guard": lock_keys,
                "after": CURSOR_START if after is None else array(after),
                "min_lease_sec": self._limits.min_lease_sec,
            },
        )
        outlook = ClaimHint(*rows[0][-4:])
        return [_claimed_from_row(row) for row in rows if row[0] is not None], outlook

    def recover_claim(self, run_ids: Sequence[UUID | str]) -> list[ClaimedJob]:
        """What a claim has taken whose answer was lost."""
        return [_claimed_from_row(row) for row in self._execute("recover_claim", {"run_ids": unquoted_array(run_ids)})]

    def defer_unknown_tasks(self, queue: str, tasks: Iterable[str]) -> dict[str, int]:
        """Put off ready jobs that no live worker knows how to run; returns how many of each task."""
        rows = self._execute("defer_unknown_tasks", {"queue": queue, "tasks": array(tasks)})
        return {row[0]: row[1] for row in rows}

    def lock_keys(self, claims: Sequence[Claim]) -> list[tuple[bool, bool]]:
        """Take the session locks of the runs' keys: for each (locked, still ours)."""
        rows = self._execute(
            "lock_keys",
            {
                "job_ids": array(run.job_id for run in claims),
                "run_ids": array(run.run_id for run in claims),
                "key_hashes": array(run.key_hash for run in claims),
            },
        )
        return [(locked, owned) for _, locked, owned in sorted(rows)]

    def unlock_keys(self, key_hashes: Sequence[int]) -> None:
        self._execute("unlock_keys", {"key_hashes": array(key_hashes)})

    def renew(self, requests: Sequence[RenewalRequest], *, late_sec: float) -> list[Renewal]:
        """Extend the leases. A silence longer than `late_sec` is journaled."""
        news = [RenewalRequest(*run) for run in requests]
        rows = self._execute(
            "renew",
            {
                "job_ids": array(run.job_id for run in news),
                "run_ids": array(run.run_id for run in news),
                "progress": array(_progress_json(run.progress) for run in news),
                "checkpoints": array(self._result_json(run.checkpoint) for run in news),
                "late_sec": late_sec,
                "min_lease_sec": self._limits.min_lease_sec,
            },
        )
        return [Renewal(as_uuid(run_id), *said) for run_id, *said in rows]

    def record_stop_pending(self, job: ClaimedJob, *, reason: str, error: str) -> None:
        """Say that a run goes on although everything was tried to stop it."""
        self._execute(
            "record_stop_pending",
            {"job_id": str(job.id), "run_id": str(job.run_id), "reason": reason, "error": error},
        )

    def write_logs(self, lines: Sequence[LogEntry]) -> None:
        """Add lines to jobs' logs. An answer that is lost may mean that they are there all the same."""
        columns = ("job_ids", "attempts", "ages", "levels", "streams", "lines")
        self._execute("write_logs", {name: array(line[n] for line in lines) for n, name in enumerate(columns)})

    def settle(
        self, settlements: Sequence[tuple[ClaimedJob, Settlement]], *, unlock_keys: Sequence[int] = ()
    ) -> list[SettleResult]:
        """Write down how runs ended, and give back the session locks in `guards`, all in one transaction."""
        told = [(job.id_text, job.run_text, job.key_hash, end) for job, end in settlements]
        ((applied, otherwise, which, *_),) = self._execute(
            "settle", settle_parameters(told, max_result_bytes=self._limits.max_result_bytes, unlock_keys=unlock_keys)
        )
        if applied == len(settlements) and not otherwise:
            return [_APPLIED_SUCCESS if end is SUCCEEDED else _APPLIED_BY_STATUS[end.status] for _, end in settlements]
        statuses = dict(one.split(" ") for one in otherwise or ())
        ours = {job.run_text for job, _ in settlements} if which is None and applied else set(which or ())
        ended = {
            job.run_text: statuses.get(job.run_text, end.status) for job, end in settlements if job.run_text in ours
        }
        return self._settle_results([job for job, _ in settlements], ended)

    def release(self, requests: Sequence[ReleaseRequest], *, unlock_keys: Sequence[int] = ()) -> list[SettleResult]:
        """Hand runs back without costing an attempt."""
        handed = [ReleaseRequest(*run) for run in requests]
        rows = self._execute(
            "release",
            {
                "lock_keys": array(run.job.lock_key for run in handed),
                "job_ids": unquoted_array(run.job.id_text for run in handed),
                "run_ids": unquoted_array(run.job.run_text for run in handed),
                "reasons": array(run.reason.value for run in handed),
                "progress": array(_progress_json(run.progress) for run in handed),
                "checkpoints": array(self._result_json(run.checkpoint) for run in handed),
                "notes": array(self._result_json(run.event_fields) for run in handed),
                "guards": array(unlock_keys),
            },
        )
        ended = {str(row[0]): row[1] for row in rows if row[0] is not None}
        return self._settle_results([run.job for run in handed], ended)

    def _settle_results(self, jobs: Sequence[ClaimedJob], applied: Mapping[str, str]) -> list[SettleResult]:
        """Of those that were not applied: were they before, and the answer lost?"""
        missing = [job for job in jobs if job.run_text not in applied]
        before: dict[str, str] = {}
        if missing:
            asked = {
                "job_ids": unquoted_array(job.id_text for job in missing),
                "run_ids": unquoted_array(job.run_text for job in missing),
            }
            before = {str(run_id): status for run_id, status in self._execute("find_settlement", asked)}
        fates = []
        for job in jobs:
            if job.run_text in applied:
                fates.append(_APPLIED_BY_STATUS[Status(applied[job.run_text])])
            elif job.run_text in before:
                fates.append(SettleResult("already", Status(before[job.run_text])))
            else:
                fates.append(SettleResult("not ours", None))
        return fates

    def _result_json(self, value: Any) -> str | None:
        return _limited_json(value, self._limits.max_result_bytes)

    # ── for the dead, and for those that wait ───────────────────────────────────────────────────────────────────

    def expired_runs(self) -> ExpiredRuns:
        """The runs whose lease has run out."""
        rows = self._execute("expired_runs")
        runs = [(as_uuid(row[0]), as_uuid(row[1]) if row[1] else None, row[2]) for row in rows if row[0] is not None]
        return ExpiredRuns(runs, server_uptime_sec=rows[0][3], server=rows[0][4])

    def open_sessions(self, names: Sequence[str]) -> set[str]:
        """Which of these names sessions on this server have."""
        return {row[0] for row in self._execute("attempt_sessions", {"names": array(names)})}

    def reap(
        self,
        runs: Sequence[tuple[UUID, UUID | None, str]],
        *,
        pause_sec: float,
        sessions_left: Mapping[UUID, Sequence[str]] | None = None,
        worker_id: UUID | None = None,
        server: str | None = None,
    ) -> list[ReapedJob]:
        """Settle for the dead: those of the runs whose lease is still expired, or that are still of this process, which
        is proved dead. `sessions_left` has the targets on which SQL of a run may still be active. None, if the server
        is not the one that found the leases expired."""
        left = sessions_left or {}
        rows = self._execute(
            "reap",
            {
                "lock_keys": array(key for _, _, key in runs),
                "job_ids": array(job_id for job_id, _, _ in runs),
                "run_ids": array(run_id for _, run_id, _ in runs),
                "sessions_left": array(
                    _targets_json(left.get(run_id, ())) if run_id else None for _, run_id, _ in runs
                ),
                "pause_sec": pause_sec,
                "worker_id": None if worker_id is None else str(worker_id),
                "server": server,
            },
        )
        return [from_row(ReapedJob, row[:9]) for row in rows]

    def repair_blocked(self, *, after: str, recently_repaired: Iterable[str], limit: int = 500) -> RepairResult:
        """Repair parked jobs whose key is free, among the next keys after `after`, but for those seen to lately."""
        rows = self._execute("repair_blocked", {"after": after, "lately": array(recently_repaired), "most": limit})
        return RepairResult(cursor=rows[0][0], unblocked=tuple(row[1] for row in rows if row[1] is not None))


def settle_parameters(
    settlements: Sequence[tuple[str | UUID, str | UUID, int, Settlement]],
    *,
    max_result_bytes: int,
    unlock_keys: Sequence[int],
) -> dict[str, Any]:
    """What the statement `settle` is given, for (job, run, hash of the lock_key, how it ended)."""
    plain = [one for one in settlements if one[3] is SUCCEEDED]
    told = [one for one in settlements if one[3] is not SUCCEEDED] if len(plain) < len(settlements) else []
    return {
        "key_hashes": unquoted_array([one[2] for one in settlements]),
        "plain_jobs": unquoted_array([one[0] for one in plain]),
        "plain_runs": unquoted_array([one[1] for one in plain]),
        "job_ids": unquoted_array(one[0] for one in told),
        "run_ids": unquoted_array(one[1] for one in told),
        "statuses": array(end.status.value for *_, end in told),
        "errors": array(_limited_text(end.error, _MAX_ERROR_LENGTH) for *_, end in told),
        "tracebacks": array(_limited_text(end.traceback, _MAX_TRACEBACK_LENGTH) for *_, end in told),
        "results": array(_limited_json(end.result, max_result_bytes) for *_, end in told),
        "progress": array(_progress_json(end.progress) for *_, end in told),
        "checkpoints": array(_limited_json(end.checkpoint, max_result_bytes) for *_, end in told),
        "pauses": array(_bounded_delay(end.retry_in_sec) for *_, end in told),
        "refunds": array(int(end.refund_attempt) for *_, end in told),
        "crashes": array(int(end.crashed) for *_, end in told),
        "notes": array(_limited_json(end.event_fields, max_result_bytes) for *_, end in told),
        "guards": unquoted_array(unlock_keys),
    }


def _insert_parameters(job: NewJob) -> dict[str, Any]:
    """What is sent of it. Raises InvalidJob."""
    texts = ("queue", "task", "lock_key", "partition_key", "idempotency_key", "live_key", "producer", "consumer_group")
    return validate_texts({name: getattr(job, name) for name in texts}) | {
        "args": validate_json("args", dict(job.args)),
        "priority": job.priority,
        "available_at": job.available_at,
        "max_attempts": job.max_attempts,
        "lease_ttl_sec": job.lease_ttl_sec,
        "time_limit_sec": job.time_limit_sec,
        "retry": None if job.retry is None else validate_json("retry", dict(job.retry)),
        "parent_id": None if job.parent_id is None else str(job.parent_id),
        "webhook": None if job.webhook is None else validate_json("webhook", dict(job.webhook)),
        "traceparent": job.traceparent,
    }


def _limited_text(text: str | None, max_length: int) -> str | None:
    return None if text is None else sanitize_text(text, max_length)


def _limited_json(value: Any, max_bytes: int) -> str | None:
    return None if value is None else sanitize_json(value, max_bytes)


def _progress_json(progress: Mapping[str, Any] | None) -> str | None:
    return None if progress is None else sanitize_json(dict(progress), _MAX_PROGRESS_BYTES)


def _targets_json(names: Sequence[str]) -> str | None:
    return json.dumps(list(names)) if names else None


def _bounded_delay(seconds: float) -> float:
    """What a policy has reckoned must not keep a run, and all that are settled with it, from being written down."""
    return min(max(0.0, seconds), _MAX_RETRY_DELAY_SEC)  # in this order: not a number becomes 0


def _claimed_from_row(row: tuple[Any, ...]) -> ClaimedJob:
    return ClaimedJob._make(row[:-4])  # the last four are the outlook
