"""JobQueue: the life of a job, one method for each statement of jobs.sql. Base classes and features have others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, as_uuid, from_row, unquoted_array
from dataloader.app.db.statements import Executor
from dataloader.app.errors import IdempotencyConflict, InvalidJob, JobNotFound, NotRetryable, WaitRefused
from dataloader.app.queue.batch import Outcome, encode_job, enqueue_batch
from dataloader.app.queue.claims import ClaimHint, ClaimMode, ClaimRequest
from dataloader.app.queue.job import (
    SUCCEEDED,
    BeatAnswer,
    ClaimedJob,
    Enqueued,
    ExpiredRuns,
    Job,
    NewJob,
    ReapedJob,
    Released,
    ReleaseReason,
    RenewalRequest,
    RunRef,
    Settlement,
    SettleResult,
    Status,
)
from dataloader.app.queue.job_records import JobRecords
from dataloader.app.queue.parameters import (
    progress_parameters,
    release_parameters,
    renew_parameters,
    run_parameters,
    settle_parameters,
)
from dataloader.app.queue.upkeep import Upkeep

_CANCEL_BATCH = 500  # jobs in a transaction: the lock of each key is held until its end

_APPLIED_BY_STATUS = {status: SettleResult("applied", status) for status in Status}
_APPLIED_SUCCESS = _APPLIED_BY_STATUS[Status.SUCCEEDED]


@dataclass(frozen=True)
class JobLimits:
    max_result_bytes: int = 1_000_000  # bytes of JSON
    min_lease_sec: int = 1  # two heartbeats: what a worker can renew in time


class JobQueue(JobRecords, Upkeep):
    """The queue of one schema. Its base classes have the statements that no reader needs at first."""

    def __init__(self, executor: Executor, *, limits: JobLimits | None = None, code_release: str | None = None) -> None:
        """`code_release`: the version of the code that executes what is claimed here."""
        self.executor, self._code_release = executor, code_release
        self._execute: Callable[..., list[tuple[Any, ...]]] = executor.execute
        self._limits = limits or JobLimits()
        # Where the rows of runs were found last, by run: the ctid of a row version, which says nothing once the row
        # has another one. Kept of the runs of the last heartbeat.
        self._row_ctids: dict[str, str] = {}

    # Called by producers and operators

    def enqueue(self, job: NewJob) -> Enqueued:
        """Create a job, or return the one that already has its idempotency key or live key.

        Raises IdempotencyConflict if the job with the idempotency key has another queue, task or args, and InvalidJob.
        """
        if job.after or job.need or job.debounce or job.throttle:
            return self._enqueue_by_batch(job)
        rows = self._execute("enqueue", {"job": encode_job(job)})
        if not rows:  # invalid, or the job of its key was not visible yet: this says which, and tries again
            return self._enqueue_by_batch(job)
        job_id, status, created, is_same = rows[0]
        enqueued = Enqueued(as_uuid(job_id), Status(status), created)
        if not is_same:
            raise IdempotencyConflict(job.unique_keys, enqueued.job_id)
        return enqueued

    def _enqueue_by_batch(self, job: NewJob) -> Enqueued:
        """Create a job that waits for others, or that may change a queued one."""
        (outcome,) = enqueue_batch(self.executor, [job])
        if outcome.outcome is Outcome.INVALID:
            raise InvalidJob.at_field(outcome.field, outcome.detail)
        if outcome.job_id is None or outcome.status is None:
            raise ValueError(f"the database answered {outcome.outcome} without a job")
        if outcome.outcome is Outcome.CONFLICT:
            raise IdempotencyConflict(job.unique_keys, outcome.job_id)
        is_debounced = outcome.outcome is Outcome.DEBOUNCED
        return Enqueued(outcome.job_id, outcome.status, outcome.outcome is Outcome.CREATED, is_debounced)

    def get(self, job_id: UUID) -> Job | None:
        rows = self._execute("get_job", {"job_id": str(job_id)})
        return from_row(Job, rows[0]) if rows else None

    def cancel(self, job_id: UUID) -> Job:
        """Cancel a queued job, or ask a running one to stop; a finished one is left. Returns the job after that."""
        self.cancel_all([job_id])
        return self._get_or_raise(job_id)

    def cancel_all(self, job_ids: Sequence[UUID]) -> int:
        """Cancel jobs as `cancel` does, many in a transaction; return how many were queued or asked to stop."""
        batches = (job_ids[start : start + _CANCEL_BATCH] for start in range(0, len(job_ids), _CANCEL_BATCH))
        return sum(self._execute("cancel", {"job_ids": unquoted_array(batch)})[0][0] for batch in batches)

    def retry(self, job_id: UUID, *, keep_time: bool = False) -> Job:
        """Queue a failed, canceled or lost job again, with all its attempts. `keep_time`: not before its time."""
        if not self._execute("retry", {"job_id": str(job_id), "keep_time": keep_time}):
            job = self._get_or_raise(job_id)
            has_status = job.status in (Status.FAILED, Status.CANCELED, Status.LOST)
            raise NotRetryable(job_id, job.status, job.live_key if has_status else None)
        return self._get_or_raise(job_id)

    def _get_or_raise(self, job_id: UUID) -> Job:
        job = self.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    # Called by worker processes

    def claim(
        self,
        queue: str,
        tasks: Iterable[str],
        run_ids: Sequence[UUID | str],
        worker: str,
        request: ClaimRequest | None = None,
        *,
        lock_keys: bool = False,
        worker_id: UUID | None = None,
    ) -> tuple[list[ClaimedJob], ClaimHint]:
        """Claim as many ready jobs as there are run ids, and return when to claim again.

        With `lock_keys` the session locks of the keys are taken too; after an error they may be held without a run, so
        the session must be closed.
        """
        request = request or ClaimRequest()
        *rows, last = self._execute(
            "prefetch" if request.mode is ClaimMode.PREFETCH else "claim",
            {
                "queue": queue,
                "tasks": array(tasks),
                "wanted": len(run_ids),
                "scan_limit": max(request.scan_limit, len(run_ids)),
                "after": array(request.start),
                "in_turn": request.mode is ClaimMode.IN_TURN,
                "promotes": request.promote_due,
                "run_ids": unquoted_array(run_ids),
                "worker": worker,
                "worker_id": None if worker_id is None else str(worker_id),
                "takes_session_locks": lock_keys,
                "min_lease_sec": self._limits.min_lease_sec,
                "release": self._code_release,
            },
        )
        return [ClaimedJob(queue, *row[:-4]) for row in rows], ClaimHint(*last[-4:])

    def recover_claim(self, run_ids: Sequence[UUID | str]) -> list[ClaimedJob]:
        """The jobs of a claim whose response was lost."""
        rows = self._execute("recover_claim", {"run_ids": unquoted_array(run_ids)})
        return list(map(ClaimedJob._make, rows))

    def lock_keys(self, jobs: Sequence[ClaimedJob]) -> list[tuple[bool, bool]]:
        """Take the session locks of the jobs' keys: for each (locked, still owned)."""
        rows = self._execute(
            "lock_keys",
            {
                "job_ids": unquoted_array(job.id_text for job in jobs),
                "run_ids": unquoted_array(job.run_text for job in jobs),
                "key_hashes": unquoted_array(job.key_hash for job in jobs),
            },
        )
        return [(locked, owned) for _, locked, owned in sorted(rows)]

    def unlock_keys(self, key_hashes: Sequence[int]) -> None:
        self._execute("unlock_keys", {"key_hashes": array(key_hashes)})

    def unblock_keys(self, jobs: Sequence[ClaimedJob]) -> None:
        keys = {job.lock_key: job.key_hash for job in jobs}
        self._execute("unblock_keys", {"key_hashes": array(keys.values()), "lock_keys": array(keys)})

    def beat(self, worker_id: UUID, runs: Sequence[RunRef], *, rss_bytes: int | None = None) -> list[BeatAnswer]:
        """Prove that this process lives, which renews the leases of all its runs. Returns the runs about which there is
        something to do; the others are owned as before."""
        parameters = {"worker_id": str(worker_id), "rss_bytes": rss_bytes, "min_lease_sec": self._limits.min_lease_sec}
        rows = self._execute("beat", parameters | run_parameters(runs) | self._places(runs))
        known, self._row_ctids = self._row_ctids, {}
        for run in runs:
            if (row_ctid := known.get(str(run.run_id))) is not None:
                self._row_ctids[str(run.run_id)] = row_ctid
        answers = []
        for run_id, *flags, row_ctid in rows:
            answer = BeatAnswer(as_uuid(run_id), *flags)
            if row_ctid is not None:
                self._row_ctids[str(run_id)] = row_ctid
            if not answer.is_owned or answer.cancel_requested or answer.is_lease_short:
                answers.append(answer)
        return answers

    def _places(self, runs: Iterable[RunRef]) -> dict[str, str]:
        return {"row_ctids": array(self._row_ctids.get(str(run.run_id)) for run in runs)}

    def disown(self, runs: Sequence[RunRef]) -> set[UUID]:
        """End the leases of runs that this process has given up, though it lives; return those whose row is locked."""
        return {as_uuid(run_id) for (run_id,) in self._execute("disown", run_parameters(runs))}

    def record_late_heartbeat(self, runs: Sequence[RunRef], *, silence_sec: float, late_sec: float) -> None:
        """Record for these runs that the process has sent no heartbeat for so long, if that is more than `late_sec`."""
        self._execute(
            "record_late_heartbeat", run_parameters(runs) | {"silence_sec": silence_sec, "late_sec": late_sec}
        )

    def save_progress(self, values: Sequence[tuple[RunRef, Mapping[str, Any]]]) -> set[UUID]:
        """Save the progress of runs; return those that own their job."""
        parameters = progress_parameters(values) | self._places(run for run, _ in values)
        return {as_uuid(run_id) for (run_id,) in self._execute("save_progress", parameters)}

    def renew(self, requests: Sequence[RenewalRequest]) -> set[UUID]:
        """Renew the rows of running jobs; return the runs whose row was renewed. The others have lost it, or another
        transaction has it locked."""
        parameters = renew_parameters(requests, max_result_bytes=self._limits.max_result_bytes)
        rows = self._execute("renew", parameters | {"min_lease_sec": self._limits.min_lease_sec})
        self._row_ctids |= {str(run_id): row_ctid for run_id, row_ctid in rows}
        return {as_uuid(run_id) for run_id, _ in rows}

    def settle(
        self,
        settlements: Sequence[tuple[ClaimedJob, Settlement]],
        *,
        on_ready: Callable[[Sequence[str]], object] | None = None,
    ) -> list[SettleResult]:
        """End runs, in one transaction. `on_ready` is called with the ids of the jobs that waited for them, if any."""
        values = [(job.id_text, job.run_text, job.key_hash, settlement) for job, settlement in settlements]
        ((applied_count, changed_statuses, applied_runs, made_ready),) = self._execute(
            "settle", settle_parameters(values, max_result_bytes=self._limits.max_result_bytes)
        )
        if made_ready and on_ready is not None:
            on_ready(made_ready.split())
        if applied_count == len(settlements) and not changed_statuses:
            return [_APPLIED_SUCCESS if end is SUCCEEDED else _APPLIED_BY_STATUS[end.status] for _, end in settlements]
        changed = dict(text.split(" ") for text in changed_statuses or ())
        # NULL: all were applied.
        runs = (
            {job.run_text for job, _ in settlements} if applied_runs is None and applied_count else applied_runs or ()
        )
        statuses = {
            job.run_text: changed.get(job.run_text, settlement.status)
            for job, settlement in settlements
            if job.run_text in runs
        }
        return self._settle_results([job for job, _ in settlements], statuses)

    def release(self, releases: Sequence[tuple[ClaimedJob, Released]]) -> list[SettleResult]:
        """Release runs, in one transaction; they do not count as attempts. One that waits for jobs is released alone.
        Raises WaitRefused if it cannot wait for these."""
        parameters = release_parameters(releases, max_result_bytes=self._limits.max_result_bytes)
        only = releases[0][1] if len(releases) == 1 else None
        if only is not None and only.offloads:
            rows = self._execute("release_for_offloads", parameters | {"offloads": array(only.offloads)})
        elif only is not None and only.reason is ReleaseReason.WAITS:
            parameters["awaited"] = array(only.awaited)
            try:
                rows = self._execute("release_waiting", parameters)
            except InvalidJob as error:
                raise WaitRefused(str(error).removeprefix("PostgreSQL refused a value: ")) from error
        else:
            rows = self._execute("release", parameters)
        statuses = {str(row[0]): row[1] for row in rows}
        return self._settle_results([job for job, _ in releases], statuses)

    def _settle_results(self, jobs: Sequence[ClaimedJob], applied: Mapping[str, str]) -> list[SettleResult]:
        """Results by run id; those not applied may have been applied before, by a statement whose response was lost."""
        missing = [job for job in jobs if job.run_text not in applied]
        earlier: dict[str, str] = {}
        if missing:
            parameters = {
                "job_ids": unquoted_array(job.id_text for job in missing),
                "run_ids": unquoted_array(job.run_text for job in missing),
            }
            earlier = {str(run_id): status for run_id, status in self._execute("find_settlement", parameters)}
        results = {run: _APPLIED_BY_STATUS[Status(status)] for run, status in applied.items()}
        results |= {run: SettleResult("already", Status(status)) for run, status in earlier.items()}
        return [results.get(job.run_text, SettleResult("not ours", None)) for job in jobs]

    # Called by the reaper

    def expired_runs(self) -> ExpiredRuns:
        """The runs whose lease has expired."""
        rows = self._execute("expired_runs")
        runs = [(as_uuid(row[0]), as_uuid(row[1]) if row[1] else None, row[2]) for row in rows if row[0] is not None]
        lease_ends = {run[:2]: row[3] for run, row in zip(runs, rows, strict=False)}  # the only row may have no run
        return ExpiredRuns(runs, server_uptime_sec=rows[0][4], server=rows[0][5], lease_ends=lease_ends)

    def reap(
        self,
        runs: Sequence[tuple[UUID, UUID | None, str]],
        *,
        pause_sec: float,
        sessions_left: Mapping[UUID, Sequence[str]] | None = None,
        worker_id: UUID | None = None,
        server: str | None = None,
        lease_ends: Mapping[tuple[UUID, UUID | None], str] | None = None,
    ) -> list[ReapedJob]:
        """Requeue or end these runs if their lease is still expired or, with `worker_id`, their process is proved dead.

        `sessions_left` has the targets on which SQL of a run may still be active. With `server`, nothing is done on
        another server than the one that found the leases expired. `lease_ends`: when they had expired; a lease with
        another end has been renewed since.
        """
        targets = {run_id: json.dumps(list(names)) for run_id, names in (sessions_left or {}).items() if names}
        rows = self._execute(
            "reap",
            {
                "lock_keys": array(key for _, _, key in runs),
                "job_ids": array(job_id for job_id, _, _ in runs),
                "run_ids": array(run_id for _, run_id, _ in runs),
                "sessions_left": array(targets.get(run_id) if run_id else None for _, run_id, _ in runs),
                "lease_ends": array((lease_ends or {}).get((job_id, run_id)) for job_id, run_id, _ in runs),
                "pause_sec": pause_sec,
                "worker_id": None if worker_id is None else str(worker_id),
                "server": server,
            },
        )
        return [from_row(ReapedJob, row[:9]) for row in rows]
