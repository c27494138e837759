"""Bulk operations on all jobs that match a filter: operators start them, the maintenance leader runs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from app.admin.job_search import Cursor, Filter, JobSearch, MatchCount
from app.db.encoding import array, as_uuid, from_row
from app.db.statements import Executor
from app.errors import BulkMismatch, BulkNotFound, DatabaseUnavailable, DataloaderError
from app.queue.job import Status

BATCH_SIZE = 200  # jobs changed in one transaction
COUNT_BUDGET_SEC = 1.5  # for the count before an operation
_SCAN_BUDGET_SEC = 0.3  # to find the jobs of one batch


class BulkAction(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"
    DELETE = "delete"
    REPRIORITISE = "reprioritise"


_APPLICABLE_STATUSES = {
    BulkAction.CANCEL: frozenset({Status.QUEUED, Status.RUNNING}),
    BulkAction.RETRY: frozenset({Status.FAILED, Status.CANCELED, Status.LOST}),
    BulkAction.DELETE: frozenset(status for status in Status if status.final),
    BulkAction.REPRIORITISE: frozenset({Status.QUEUED}),
}


class BulkState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    CANCELED = "canceled"
    STOPPED = "stopped"  # more jobs match than were expected
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self not in (BulkState.WAITING, BulkState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class BulkOperation:
    """A bulk operation and its progress. It goes from the newest jobs to the oldest; `scanned_to` is the creation time
    of the last scanned job. Of `scanned` jobs, `matched` were found, and `changed` of these were changed."""

    bulk_id: UUID
    action: BulkAction
    filter: Filter
    priority: int | None
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
        requested_by: str | None = None,
    ) -> BulkOperation:
        """Start an operation. Jobs created later are not affected.

        Raises BulkMismatch if the number of matching jobs is not the expected one. If there are too many to count, the
        operation stops once it finds more.
        """
        count = self.count(action, job_filter)
        if count.exact and count.jobs != expected:
            raise BulkMismatch(expected, count.jobs)
        parameters = {
            "action": action.value,
            "filter": restrict_to_action(action, job_filter).to_json(),
            "priority": priority,
            "expected": expected,
            "requested_by": requested_by,
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

    def prune(self) -> None:
        """Delete operations that finished more than ninety days ago."""
        self._execute("prune_bulk")

    def _process_batch(self, operation: BulkOperation, *, last_id: UUID) -> None:
        created_at, start = operation.created_at, Cursor(operation.scanned_to, last_id, is_active=False)
        page = self._job_search.page(
            replace(operation.filter, created_to=min(operation.filter.created_to or created_at, created_at)),
            limit=BATCH_SIZE,
            after=start,
            time_budget_sec=_SCAN_BUDGET_SEC,
        )
        if operation.matched + len(page.jobs) > operation.expected:
            error = f"more jobs match than the {operation.expected} expected; changed so far: {operation.changed}"
            self._finish(operation, BulkState.STOPPED, error)
            return
        end = page.next or start
        parameters = {
            "bulk_id": str(operation.bulk_id),
            "filter": operation.filter.to_json(),
            "job_ids": array(job.job_id for job in page.jobs),
            "from_at": start.key,
            "from_id": str(start.id),
            "to_at": end.key,
            "to_id": str(end.id),
            "scanned": max(page.scanned, len(page.jobs)),
            "matched": len(page.jobs),
        }
        self._execute(f"bulk_{operation.action.value}", parameters)
        if page.next is None:
            self._finish(operation, BulkState.DONE)

    def _finish(self, operation: BulkOperation, state: BulkState, error: str | None = None) -> None:
        self._execute("finish_bulk", {"bulk_id": str(operation.bulk_id), "state": state.value, "error": error})


def restrict_to_action(action: BulkAction, job_filter: Filter) -> Filter:
    """The filter without the statuses that do not allow the action."""
    statuses = frozenset(Status) if job_filter.status is None else job_filter.status
    return replace(job_filter, status=_APPLICABLE_STATUSES[action] & statuses)
