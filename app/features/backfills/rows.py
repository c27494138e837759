"""Backfills: slices of a task that are loaded for the first time or again, a few at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from dataloader.app.db.encoding import array, as_uuid, from_row, id_of_key, validate_json, validate_texts
from dataloader.app.db.statements import Executor
from dataloader.app.errors import BackfillEnded, BackfillNotFound, IdempotencyConflict
from dataloader.app.queue.job import Status

_BAD_ENDS = frozenset({Status.FAILED, Status.LOST, Status.CANCELED})
_MAX_ROWS_SLICES = 1000


class BackfillMode(StrEnum):
    """Which slices it loads."""

    MISSING = "missing"  # that have never succeeded
    FAILED = "failed"  # whose last job did not succeed
    UNFINISHED = "unfinished"  # both
    ALL = "all"


class BackfillState(StrEnum):
    OPEN = "open"
    PAUSED = "paused"
    CANCELED = "canceled"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class BackfillOptions:
    """How a backfill loads its slices."""

    mode: BackfillMode = BackfillMode.UNFINISHED
    newest_first: bool = False
    concurrency: int = 2
    stop_after_failures: int | None = None  # so many in a row pause it
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """A backfill. `made`: slices with a job, made for them or found; `adopted`: those found, which another job loaded
    already; `skipped`: slices that the mode leaves out; the others of `total` are to come. `by_state` counts its slices
    by the state of their last job; a slice counts in the backfill that asked for it last."""

    backfill_id: UUID
    task: str
    queue: str
    slices: dict[str, Any]
    mode: BackfillMode
    newest_first: bool
    concurrency: int
    template: dict[str, Any]
    stop_after_failures: int | None
    state: BackfillState
    reason: str | None
    cursor: str | None
    total: int
    made: int
    adopted: int
    skipped: int
    note: str | None
    created_by: str | None
    created_at: datetime
    resumed_at: datetime
    changed_by: str | None
    changed_at: datetime
    ended_at: datetime | None
    by_state: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class SliceState:
    """A slice of a task and what its last job did."""

    task: str
    partition_key: str
    interval_start: datetime | None
    interval_end: datetime | None
    state: Status
    job_id: UUID
    backfill_id: UUID | None
    runs: int
    rows: int | None
    succeeded_at: datetime | None
    succeeded_job: UUID | None
    changed_at: datetime


@dataclass(frozen=True, kw_only=True)
class SliceError:
    """Why the last job of a slice did not succeed."""

    job_id: UUID
    error: str | None
    attempt: int
    max_attempts: int


class LoadedRows(NamedTuple):
    """What the successful jobs of a backfill reported."""

    slices: int  # that reported rows
    rows: int


class MadeStep(NamedTuple):
    created: int
    adopted: int  # slices that another job loads already
    problem: str | None


def limit_of(backfill_id: UUID) -> str:
    """The limit that is the concurrency of a backfill."""
    return f"backfill:{backfill_id}"


def is_selected(mode: BackfillMode, state: Status | None, has_succeeded: bool) -> bool:
    """Whether a backfill of this mode loads a slice. One that is being loaded is asked for: its job is found."""
    is_missing = not has_succeeded
    is_failed = state in _BAD_ENDS
    return {
        BackfillMode.MISSING: is_missing,
        BackfillMode.FAILED: is_failed,
        BackfillMode.UNFINISHED: is_missing or is_failed,
        BackfillMode.ALL: True,
    }[mode]


class Backfills:
    """Reads and changes backfills."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def create(
        self,
        task: str,
        *,
        queue: str,
        slices: Mapping[str, Any],
        total: int,
        template: Mapping[str, Any],
        options: BackfillOptions | None = None,
        created_by: str | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Backfill, bool]:
        """Create a backfill of `total` slices; the maintenance leader makes its jobs. Return it, and whether it is new.
        Raises IdempotencyConflict if the one with the key has other values."""
        options = options or BackfillOptions()
        backfill_id = id_of_key("backfill", idempotency_key)
        parameters = {
            **vars(options), "backfill_id": str(backfill_id), "mode": options.mode.value, "total": total,
            "slices": validate_json("slices", dict(slices)), "template": validate_json("args", dict(template)),
        }  # fmt: skip
        texts = validate_texts({"task": task, "queue": queue, "note": options.note, "created_by": created_by})
        is_new = bool(self._execute("create_backfill", {**parameters, **texts}))
        backfill = self.get(backfill_id)
        requested = (task, queue, slices, options.mode, options.newest_first, template)
        known = (
            backfill.task, backfill.queue, backfill.slices, backfill.mode, backfill.newest_first, backfill.template,
        )  # fmt: skip
        if idempotency_key is not None and not is_new and known != requested:
            raise IdempotencyConflict(idempotency_key, None, "a backfill with other values")
        return backfill, is_new

    def get(self, backfill_id: UUID) -> Backfill:
        """Raises BackfillNotFound."""
        found = self.newest(backfill_id=backfill_id)
        if not found:
            raise BackfillNotFound(backfill_id)
        return found[0]

    def newest(
        self, *, backfill_id: UUID | None = None, task: str | None = None, is_open: bool = False, limit: int = 100
    ) -> list[Backfill]:
        parameters = {"backfill_id": backfill_id and str(backfill_id), "is_open": is_open, "limit": limit}
        rows = self._execute("backfills", {**parameters, **validate_texts({"task": task})})
        return [from_row(Backfill, row) for row in rows]

    def change(
        self,
        backfill_id: UUID,
        *,
        state: BackfillState | None = None,
        reason: str | None = None,
        concurrency: int | None = None,
        note: str | None = None,
        changed_by: str | None = None,
    ) -> Backfill:
        """Pause, resume or end it, or change its concurrency. Raises BackfillNotFound and BackfillEnded."""
        texts = validate_texts({"reason": reason, "note": note, "changed_by": changed_by})
        parameters = {"backfill_id": str(backfill_id), "state": state and state.value, "concurrency": concurrency}
        if not self._execute("change_backfill", {**parameters, **texts}):
            raise BackfillEnded(self.get(backfill_id).backfill_id)
        return self.get(backfill_id)

    def retry(self, backfill_id: UUID, *, changed_by: str | None = None) -> Backfill:
        """Load again what did not succeed. Raises BackfillNotFound; an open one is left as it is."""
        parameters = {"backfill_id": str(backfill_id), **validate_texts({"changed_by": changed_by})}
        self._execute("retry_backfill", parameters)
        return self.get(backfill_id)

    def jobs(self, backfill_id: UUID, states: Iterable[Status], *, limit: int) -> list[UUID]:
        """Its jobs in these states."""
        names = array(state.value for state in states)
        parameters = {"backfill_id": str(backfill_id), "states": names, "limit": limit}
        return [as_uuid(job_id) for (job_id,) in self._execute("backfill_jobs", parameters)]

    def slices(
        self,
        *,
        task: str | None = None,
        backfill_id: UUID | None = None,
        state: Status | None = None,
        keys: Sequence[str] | None = None,
        first: datetime | None = None,
        last: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[SliceState]:
        """The slices of a task or of a backfill, by key; by default all."""
        parameters = {
            "keys": None if keys is None else array(keys), "state": state and state.value,
            "backfill_id": backfill_id and str(backfill_id),
            "first": first, "last": last, "limit": limit,
        }  # fmt: skip
        rows = self._execute("slices", {**parameters, **validate_texts({"task": task, "after": after})})
        return [from_row(SliceState, row) for row in rows]

    def loaded_rows(self, backfill_id: UUID) -> LoadedRows:
        """Of a thousand of its slices, if it has as many: all of a large one are not read for each view."""
        parameters = {"backfill_id": str(backfill_id), "limit": _MAX_ROWS_SLICES}
        return LoadedRows(*self._execute("loaded_rows", parameters)[0])

    def last_jobs(self, task: str, keys: Sequence[str]) -> dict[str, tuple[str, str]]:
        """By key, of slices that have had a job: the state of the last one, and its id."""
        rows = self._execute("slice_jobs", {"task": task, "keys": array(keys)})
        return {key: (state, job_id) for key, state, job_id in rows}

    def errors_of(self, job_ids: Sequence[UUID]) -> dict[UUID, SliceError]:
        """The errors of these jobs, of those that still exist."""
        rows = self._execute("slice_errors", {"jobs": array(str(job_id) for job_id in job_ids)})
        return {error.job_id: error for error in (from_row(SliceError, row) for row in rows)}

    def last_keys(self, task: str, *, limit: int) -> list[str]:
        """The last slices of a task that have had a job, in their order."""
        rows = self._execute("last_slice_keys", {**validate_texts({"task": task}), "limit": limit})
        return [key for (key,) in reversed(rows)]

    def counts(
        self,
        task: str,
        *,
        keys: Sequence[str] | None = None,
        first: datetime | None = None,
        last: datetime | None = None,
    ) -> list[tuple[Status, bool, int]]:
        """The slices of a task in a range of time, or of these keys, by the state of the last job and whether any job
        succeeded."""
        parameters = {"task": task, "keys": None if keys is None else array(keys), "first": first, "last": last}
        rows = self._execute("count_slices", parameters)
        return [(Status(state), has_succeeded, count) for state, has_succeeded, count in rows]

    # Called by the maintenance leader

    def count_jobs(self, backfill_id: UUID) -> int:
        """Its jobs that have not ended, also those of slices that count in another backfill by now."""
        return int(self._execute("count_backfill_jobs", {"backfill_id": str(backfill_id)})[0][0])

    def prune_limits(self) -> None:
        """Delete the limits of backfills that have ended, and whose jobs have."""
        self._execute("prune_backfill_limits")

    def states_of(self, task: str, keys: Sequence[str]) -> dict[str, tuple[Status, bool]]:
        """Of slices that have had a job: the state of the last one, and whether any succeeded."""
        rows = self._execute("slice_states", {"task": task, "keys": array(keys)})
        return {key: (Status(state), has_succeeded) for key, state, has_succeeded in rows}

    def make(
        self, backfill: Backfill, next_cursor: str, requests: Sequence[Mapping[str, Any]], *, passed: int
    ) -> MadeStep | None:
        """Make jobs of slices up to the cursor; None: it is not open any more, or another process was faster."""
        parameters = {
            "backfill_id": str(backfill.backfill_id), "read_cursor": backfill.cursor, "next_cursor": next_cursor,
            "requests": validate_json("args", list(requests)), "passed": passed,
        }  # fmt: skip
        rows = self._execute("make_backfill", parameters)
        return MadeStep(*rows[0]) if rows else None

    def bad_ends_in_row(self, backfill: Backfill, *, limit: int) -> int:
        """How many of its last slices did not succeed, one after the other."""
        parameters = {"backfill_id": str(backfill.backfill_id), "limit": limit}
        return int(self._execute("bad_ends_in_row", parameters)[0][0])
