"""Operations on all jobs that fit a filter: asked for by people, done in batches by whoever has time for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from app.errors import BulkMismatch, BulkNotFound, DatabaseUnavailable, DataloaderError
from app.queue.job import Status
from app.queue.jobqueue import Source, as_uuid
from app.queue.lists import Cursor, Filter, Lists, Tally
from app.queue.values import array

BATCH = 200  # jobs that one transaction changes
COUNT_PATIENCE_SEC = 1.5  # for the count before an operation, which a person waits for
_LOOK_SEC = 0.3  # how long one turn looks for the next jobs that fit


class Action(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"
    DELETE = "delete"
    REPRIORITISE = "reprioritise"

    @property
    def applies_to(self) -> frozenset[Status]:
        """The statuses in which a job can be done this to."""
        return _APPLIES[self]


_APPLIES = {
    Action.CANCEL: frozenset({Status.QUEUED, Status.RUNNING}),
    Action.RETRY: frozenset({Status.FAILED, Status.CANCELED, Status.LOST}),
    Action.DELETE: frozenset(status for status in Status if status.final),
    Action.REPRIORITISE: frozenset({Status.QUEUED}),
}


class BulkState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    CANCELED = "canceled"
    STOPPED = "stopped"  # more jobs fit than were expected
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self not in (BulkState.WAITING, BulkState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class BulkOperation:
    """A bulk operation as it was when it was read."""

    id: UUID
    action: Action
    filter: Filter
    priority: int | None
    expected: int
    state: BulkState
    cancel_requested: bool
    looked: int  # jobs that were looked at so far
    matched: int
    changed: int
    seen_at: datetime  # all that fit and were made later have been seen to
    seen_id: UUID
    asked_by: str | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Bulk:
    """Asked for here, and done here: `turn` by `turn`, by any number of processes at once."""

    def __init__(self, source: Source) -> None:
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask
        self._lists = Lists(source)

    # ── by people ───────────────────────────────────────────────────────────────────────────────────────────────

    def count(self, action: Action, wanted: Filter) -> Tally:
        """How many jobs it would be done to."""
        return self._lists.count(meant(action, wanted), patience_sec=COUNT_PATIENCE_SEC)

    def start(
        self, action: Action, wanted: Filter, *, expected: int, priority: int | None = None, by: str | None = None
    ) -> BulkOperation:
        """Ask for it. Jobs that are made from now on are not meant.

        Raises BulkMismatch when another number fits than is expected. Where there are too many to count, the operation
        stops as soon as it meets more of them.
        """
        counted = self.count(action, wanted)
        if counted.exact and counted.jobs != expected:
            raise BulkMismatch(expected, counted.jobs)
        rows = self._ask(
            "ask_bulk",
            {
                "action": action.value,
                "filter": meant(action, wanted).json(),
                "priority": priority,
                "expected": expected,
                "by": by,
            },
        )
        return self.get(as_uuid(rows[0][0]))

    def get(self, bulk_id: UUID) -> BulkOperation:
        rows = self._ask("bulk", {"bulk_id": str(bulk_id)})
        if not rows:
            raise BulkNotFound(bulk_id)
        return _operation(rows[0])

    def list(self, *, limit: int = 50) -> list[BulkOperation]:
        """The newest first."""
        return [_operation(row) for row in self._ask("bulk_list", {"limit": limit})]

    def cancel(self, bulk_id: UUID) -> BulkOperation:
        """Stop it after the batch at hand. What it has done stays done."""
        self._ask("cancel_bulk", {"bulk_id": str(bulk_id)})
        return self.get(bulk_id)

    # ── by keepers ──────────────────────────────────────────────────────────────────────────────────────────────

    def turn(self) -> bool:
        """Do the next batch of the oldest operation; False: there is nothing to do."""
        rows = self._ask("next_bulk")
        if not rows:
            return False
        operation = _operation(rows[0])
        if operation.state is BulkState.RUNNING:
            try:
                self._batch(operation)
            except DatabaseUnavailable:
                raise
            except DataloaderError as error:
                self._ask("fail_bulk_batch", {"bulk_id": str(operation.id), "error": str(error)[:2000]})
        return True

    def prune(self) -> None:
        """Forget operations that have been over for ninety days."""
        self._ask("prune_bulk")

    def _batch(self, operation: BulkOperation) -> None:
        page = self._lists.page(
            replace(operation.filter, created_to=_earliest(operation.filter.created_to, operation.created_at)),
            limit=BATCH,
            after=Cursor(operation.seen_at, operation.seen_id, live=False),
            patience_sec=_LOOK_SEC,
        )
        if operation.matched + len(page.jobs) > operation.expected:
            told = f"more jobs fit than the {operation.expected} expected; changed so far: {operation.changed}"
            self._ask("end_bulk", {"bulk_id": str(operation.id), "state": "stopped", "error": told})
            return
        edge = page.next
        self._ask(
            f"bulk_{operation.action.value}",
            {
                "bulk_id": str(operation.id),
                "filter": operation.filter.json(),
                "job_ids": array(job.id for job in page.jobs),
                "at": operation.seen_at,
                "id": str(operation.seen_id),
                "to_at": operation.seen_at if edge is None else edge.key,
                "to_id": str(operation.seen_id if edge is None else edge.id),
                "looked": max(page.looked_at, len(page.jobs)),
                "matched": len(page.jobs),
            },
        )
        if edge is None:
            self._ask("end_bulk", {"bulk_id": str(operation.id), "state": "done", "error": None})


def meant(action: Action, wanted: Filter) -> Filter:
    """Only those that it can be done to."""
    asked = frozenset(Status) if wanted.status is None else wanted.status
    return replace(wanted, status=action.applies_to & asked)


def _earliest(told: datetime | None, created_at: datetime) -> datetime:
    return created_at if told is None else min(told, created_at)


def _operation(row: tuple[Any, ...]) -> BulkOperation:
    (bulk_id, action, wanted, priority, expected, state, cancel, looked, matched, changed, seen_at, seen_id, by, error,
     created_at, started_at, finished_at) = row  # fmt: skip
    return BulkOperation(
        id=as_uuid(bulk_id),
        action=Action(action),
        filter=Filter.read(json.loads(wanted)),
        priority=priority,
        expected=expected,
        state=BulkState(state),
        cancel_requested=cancel,
        looked=looked,
        matched=matched,
        changed=changed,
        seen_at=seen_at,
        seen_id=as_uuid(seen_id),
        asked_by=by,
        error=error,
        created_at=created_at,
        started_at=started_at,
        finished_at=finished_at,
    )
