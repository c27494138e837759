"""Bulk operations on all jobs that match a filter: operators start them, the maintenance leader runs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from dataloader.app.db.encoding import array, as_uuid, from_row, validate_json
from dataloader.app.db.statements import Executor
from dataloader.app.errors import BulkMismatch, BulkNotFound, DatabaseUnavailable, DataloaderError
from dataloader.app.features.jobs.job_search import Cursor, Filter, JobSearch, JobSummary, MatchCount
from dataloader.app.queue.job import Status

BATCH_SIZE = 200  # jobs changed in one transaction
COUNT_BUDGET_SEC = 1.5  # for the count before an operation
_SCAN_BUDGET_SEC = 0.3  # to find the jobs of one batch
MAX_PER_MINUTE = 60_000  # of a redrive
MAX_ARGS_CHECKED = 20  # jobs, when a redrive with changed args starts
_STEPS_PER_MINUTE = 60
_EXPECTED_FACTOR, _EXPECTED_SLACK = 2, 100  # how many more may match than were counted: see max_matching
_MIN_STEP_PAUSE_SEC = 0.05  # while the row of a due step is locked


class BulkAction(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"
    REDRIVE = "redrive"  # retry at a rate
    DELETE = "delete"
    REPRIORITISE = "reprioritise"


_APPLICABLE_STATUSES = {
    BulkAction.CANCEL: frozenset({Status.QUEUED, Status.RUNNING}),
    BulkAction.RETRY: frozenset({Status.FAILED, Status.CANCELED, Status.LOST}),
    BulkAction.REDRIVE: frozenset({Status.FAILED, Status.CANCELED, Status.LOST}),
    BulkAction.DELETE: frozenset(status for status in Status if status.final),
    BulkAction.REPRIORITISE: frozenset({Status.QUEUED}),
}


_STATEMENTS = {action: f"bulk_{action.value}" for action in BulkAction} | {BulkAction.REDRIVE: "bulk_retry"}


class BulkState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    CANCELED = "canceled"
    STOPPED = "stopped"  # more jobs match than were expected, or a circuit breaker is open
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self not in (BulkState.WAITING, BulkState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class BulkOperation:
    """A bulk operation and its progress. It goes from the newest jobs to the oldest, `redrive` from the oldest to the
    newest; `scanned_to` is the creation time of the last scanned job. Of `scanned` jobs, `matched` were found, and
    `changed` of these were changed."""

    bulk_id: UUID
    action: BulkAction
    filter: Filter
    priority: int | None
    per_minute: int | None
    max: int | None
    args_patch: dict[str, Any] | None
    expected: int
    state: BulkState
    cancel_requested: bool
    scanned: int
    matched: int
    changed: int
    scanned_to: datetime
    requested_by: str | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    next_step_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Redrive:
    """How a redrive retries jobs: at most `per_minute`, at most `max_jobs` in all, with `args_patch` merged into their
    args."""

    per_minute: int
    max_jobs: int | None = None
    args_patch: Mapping[str, Any] | None = None


class PatchedArgs(NamedTuple):
    """The args that a redrive would give a job."""

    job_id: UUID
    task: str
    args: dict[str, Any]


class BulkOperations:
    """Starts bulk operations, and runs them batch by batch."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute
        self._job_search = JobSearch(executor)

    def count(self, action: BulkAction, job_filter: Filter) -> MatchCount:
        """Count the jobs that the operation would change."""
        return self._job_search.count(restrict_to_action(action, job_filter), time_budget_sec=COUNT_BUDGET_SEC)

    def start(
        self,
        action: BulkAction,
        job_filter: Filter,
        *,
        expected: int,
        priority: int | None = None,
        redrive: Redrive | None = None,
        requested_by: str | None = None,
    ) -> BulkOperation:
        """Start an operation; `redrive` needs its rate. Jobs created later are not affected.

        Raises BulkMismatch if more jobs match than `max_matching` allows. If there are too many to count, the operation
        stops once it finds more than that.
        """
        count = self.count(action, job_filter)
        max_jobs = max_matching(action, expected)
        if count.exact and count.jobs > max_jobs:
            raise BulkMismatch(expected, count.jobs, max_jobs)
        parameters = {
            "action": action.value,
            "filter": restrict_to_action(action, job_filter).to_json(),
            "priority": priority,
            "expected": expected,
            "requested_by": requested_by,
            "per_minute": redrive and redrive.per_minute,
            "max_jobs": redrive and redrive.max_jobs,
            "args_patch": None if redrive is None else _encode_patch(redrive.args_patch),
        }
        return self.get(as_uuid(self._execute("create_bulk", parameters)[0][0]))

    def get(self, bulk_id: UUID) -> BulkOperation:
        rows = self._execute("get_bulk", {"bulk_id": str(bulk_id)})
        if not rows:
            raise BulkNotFound(bulk_id)
        return from_row(BulkOperation, rows[0])

    def list(self, *, limit: int = 50) -> list[BulkOperation]:
        """List operations, newest first."""
        return [from_row(BulkOperation, row) for row in self._execute("list_bulk", {"limit": limit})]

    def cancel(self, bulk_id: UUID) -> BulkOperation:
        """Stop an operation after its current batch. Its changes stay."""
        self._execute("cancel_bulk", {"bulk_id": str(bulk_id)})
        return self.get(bulk_id)

    def run_batch(self) -> bool:
        """Run the next batch of the oldest operation; return whether there was one."""
        rows = self._execute("lease_bulk")
        if not rows:
            return False
        operation = from_row(BulkOperation, rows[0][1:])
        if operation.state is BulkState.RUNNING:
            try:
                self._process_batch(operation, last_id=as_uuid(rows[0][0]))
            except DatabaseUnavailable:
                raise
            except DataloaderError as error:
                self._execute("fail_bulk_batch", {"bulk_id": str(operation.bulk_id), "error": str(error)[:2000]})
        return True

    def next_step_in_sec(self) -> float | None:
        """Return the seconds until the next step of a redrive is due; None: there is none."""
        seconds: float | None = self._execute("next_bulk_step")[0][0]
        return None if seconds is None else max(_MIN_STEP_PAUSE_SEC, seconds)

    def patched_args(self, job_filter: Filter, patch: Mapping[str, Any]) -> Sequence[PatchedArgs]:
        """The args that a redrive would give the first jobs. Raises InvalidJob for a patch that cannot be stored."""
        restricted = restrict_to_action(BulkAction.REDRIVE, job_filter)
        jobs = self._job_search.page(restricted, sort="created_at", limit=MAX_ARGS_CHECKED).jobs
        parameters = {"job_ids": array(job.job_id for job in jobs), "args_patch": _encode_patch(patch)}
        return [from_row(PatchedArgs, row) for row in self._execute("patched_args", parameters)]

    def prune(self) -> None:
        """Delete operations that finished more than ninety days ago."""
        self._execute("prune_bulk")

    def _process_batch(self, operation: BulkOperation, *, last_id: UUID) -> None:
        is_redrive = operation.action is BulkAction.REDRIVE
        limit, pause_sec = redrive_step(operation.per_minute) if operation.per_minute else (BATCH_SIZE, None)
        if operation.max is not None:
            limit = min(limit, operation.max - operation.changed)
        start, job_filter = Cursor(operation.scanned_to, last_id, is_active=False), _jobs_at_request(operation)
        page = self._job_search.page(
            job_filter,
            sort="created_at" if is_redrive else "-created_at",
            limit=limit + 1,  # whether there are more: the last step of a redrive has no pause
            after=start,
            time_budget_sec=_SCAN_BUDGET_SEC,
        )
        jobs, next_start = page.jobs[:limit], page.next
        last = Cursor(jobs[-1].created_at, jobs[-1].job_id, is_active=False) if jobs else None
        if len(page.jobs) > limit:
            next_start = last
        problem = None
        max_jobs = max_matching(operation.action, operation.expected)
        if operation.matched + len(jobs) > max_jobs:
            problem = f"more than {max_jobs} jobs match, expected {operation.expected}"
        elif is_redrive and (tasks := self._open_breakers(jobs)):
            problem = f"the circuit breaker of {tasks[0]} is open"
        if problem is not None:
            self._finish(operation, BulkState.STOPPED, f"{problem}; changed so far: {operation.changed}")
            return
        end = next_start or last or start  # behind the last batch too, which another process may find unfinished
        parameters = {
            "bulk_id": str(operation.bulk_id),
            "filter": job_filter.to_json(),
            "job_ids": array(job.job_id for job in jobs),
            "from_at": start.key,
            "from_id": str(start.id),
            "to_at": end.key,
            "to_id": str(end.id),
            "scanned": max(page.scanned, len(jobs)),
            "matched": len(jobs),
            "pause_sec": pause_sec,
        }
        rows = self._execute(_STATEMENTS[operation.action], parameters)
        if next_start is None or (rows and rows[0][0] == operation.max):
            self._finish(operation, BulkState.DONE)

    def _open_breakers(self, jobs: Iterable[JobSummary]) -> Sequence[str]:
        return [row[0] for row in self._execute("open_breakers", {"tasks": array({job.task for job in jobs})})]

    def _finish(self, operation: BulkOperation, state: BulkState, error: str | None = None) -> None:
        self._execute("finish_bulk", {"bulk_id": str(operation.bulk_id), "state": state.value, "error": error})


def restrict_to_action(action: BulkAction, job_filter: Filter) -> Filter:
    """The filter without the statuses that do not allow the action."""
    statuses = frozenset(Status) if job_filter.status is None else job_filter.status
    return replace(job_filter, status=_APPLICABLE_STATUSES[action] & statuses)


def max_matching(action: BulkAction, expected: int) -> int:
    """Return how many matching jobs an operation accepts when its caller has counted `expected`.

    Fewer always do: jobs end while the caller decides. More do if they may have been added since the count: a queue
    that is being filled holds less than twice as many by then, if the caller takes less time to decide than the queue
    has been filled for, and small numbers vary by chance. A filter that matches the wrong jobs is still refused. A
    delete cannot be undone, so it takes no more than were counted.
    """
    if action is BulkAction.DELETE:
        return expected
    return _EXPECTED_FACTOR * expected + _EXPECTED_SLACK


def redrive_step(per_minute: int) -> tuple[int, float]:
    """Return how many jobs a step of a redrive may retry, and the seconds until the next step: evenly, about a second
    where the rate allows it, and never more than `per_minute` in any minute."""
    jobs = min(BATCH_SIZE, max(1, per_minute // _STEPS_PER_MINUTE))
    return jobs, 60 / (per_minute // jobs)


def _jobs_at_request(operation: BulkOperation) -> Filter:
    """The filter of jobs that existed when the operation was requested; of a redrive, which takes its time, of those
    that had ended by then: not of those that fail again."""
    job_filter, at = operation.filter, operation.created_at
    job_filter = replace(job_filter, created_to=min(job_filter.created_to or at, at))
    if operation.action is BulkAction.REDRIVE:
        job_filter = replace(job_filter, finished_to=min(job_filter.finished_to or at, at))
    return job_filter


def _encode_patch(patch: Mapping[str, Any] | None) -> str | None:
    return None if patch is None else validate_json("args_patch", dict(patch))
