"""The transactions of one attempt in targets, each behind the fence of the job's row there. Portable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from dataloader.pipelines.context import StopReason
from dataloader.pipelines.effects import (
    ENDED_BY_BLOCK,
    LOCK_NOT_AVAILABLE,
    MAX_WAIT_SEC,
    RELEASE_SEC,
    STILL_OPEN,
    DrawnFence,
    EffectsTable,
    FenceLost,
    TargetRow,
    TargetState,
    sqlstate_of,
)
from dataloader.pipelines.json_values import encode_strictly, sanitize_json
from dataloader.pipelines.portable import clock
from dataloader.pipelines.retry import Fail, Snooze

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from dataloader.pipelines.reported_state import ReportedState

MAX_RESULT_BYTES = 1_000_000  # of JSON
_RETRY_SEC = 0.1  # between two tries to lock the row
_IDLE, _IN_ERROR = 0, 3  # no transaction, and one in which a statement has failed; of both drivers


class TargetContext(Protocol):
    """What transactions in targets need of the context."""

    task_target: str | None
    fence_problem: str | None
    reported: ReportedState

    @property
    def job_id(self) -> UUID: ...

    @property
    def run_id(self) -> UUID: ...

    def connect_for_transactions(self, target: str) -> Any: ...

    def draw_fence(self, target: str, problem: str | None) -> DrawnFence: ...

    def stop_for(self, reason: StopReason) -> NoReturn: ...

    def write_log(self, level: str, message: str, fields: Mapping[str, Any]) -> None: ...

    def redact_for_target(self, value: Any) -> Any: ...

    def sleep(self, seconds: float) -> None: ...


class _End(NamedTuple):
    """What the last statement of a transaction has written, as JSON."""

    position: str | None
    result: str | None


class WorkDone(BaseException):
    """An earlier attempt has finished the work of the job in a target: there is nothing left to do.

    Not an `Exception`, as `Stop`.
    """


class TargetTransactions:
    """Used by the pipeline's thread."""

    def __init__(self, context: TargetContext) -> None:
        self._context = context
        self._rows: dict[str, TargetRow] = {}  # by target: those that this attempt has claimed, on its connections
        self.states: dict[str, TargetState] = {}  # by target, of those that this attempt has claimed
        self.finished_in: str | None = None  # the target of the final transaction, also of an earlier attempt
        self.result: Any = None  # of that one
        self.is_in_fenced_transaction = False
        self._is_own_final = False
        self._unknown: set[str] = set()  # targets in which the last transaction may have been committed, or not

    def claim(self, target: str) -> TargetState | None:
        """Claim the job's row in a target, once for each connection. Return None for the queue's own database, whose
        transactions have the job's row as their fence."""
        row = self._rows.get(target)
        if row is not None and not row.table.connection.closed:
            return self.states[target]
        connection = self._context.connect_for_transactions(target)
        if connection is None:
            return None
        try:
            row, state = self._claim_on(connection, target)
        except BaseException:
            connection.close()
            raise
        self._refuse_lost_commits(target, state)
        self._rows[target], self.states[target] = row, state
        if state.is_done and not self._unknown:
            self.finished_in, self.result = target, state.result
            self._context.write_log("info", "target.work_done", {"target": target})
        return state

    def _claim_on(self, connection: Any, target: str) -> tuple[TargetRow, TargetState]:
        context, table = self._context, EffectsTable(connection, target)
        if context.fence_problem is None:
            table.find()
        else:
            table.problem = context.fence_problem
        if table.problem is not None and target not in self.states:
            if context.draw_fence(target, table.problem).former:
                raise RuntimeError(
                    f"an earlier attempt of this job has written to target {target!r} with a fence, and now there is"
                    f" none: {table.problem}"
                )
            context.write_log("warning", "target.not_fenced", {"target": target, "reason": table.problem})
        row = TargetRow(table, context.job_id, context.run_id)
        with self._owner_only():
            state = row.claim(lambda: context.draw_fence(target, None))
        if state.was_claimed and not state.former_fence:
            reason = "an earlier attempt has made a row, which is gone: the target was restored, moved or failed over"
            context.write_log("warning", "target.row_lost", {"target": target, "reason": reason})
        for other, claimed in self._rows.items():
            if other != target and claimed.fence == state.former_fence > 0:  # no two claims have one number
                raise Fail(
                    f"target {target!r} is the same database as {other!r}, and a job has one position in a database"
                )
        return row, state

    def _refuse_lost_commits(self, target: str, state: TargetState) -> None:
        """Another attempt resumes from what is there; this one believes in more."""
        former = self._rows.get(target)
        if former is None or former.table.name is None or target in self._unknown:
            return
        if state.problem is not None:
            raise RuntimeError(f"target {target!r} had a fence, and now it has none: {state.problem}")
        if (state.former_fence, state.position) != (former.fence, self.states[target].position):
            raise RuntimeError(
                f"target {target!r} has lost transactions that this attempt has committed, as after a failover;"
                " the next attempt resumes from what is there"
            )

    def release(self, target: str) -> TargetRow:
        """Close the connection to a target, whose row another program uses now."""
        row = self._rows.pop(target)
        row.table.connection.close()
        return row

    @property
    def connections(self) -> list[Any]:
        """Those that may execute a statement now. Read by any thread."""
        return [row.table.connection for row in list(self._rows.values())]

    def is_fenced(self, target: str) -> bool:
        state = self.states.get(target)
        return state is not None and state.problem is None

    @contextmanager
    def transaction(self, target: str, *, final: bool, result: Any) -> Iterator[Any]:
        """One transaction in a target that `claim` has claimed. It commits with the checkpoint recorded in it as the
        position of the next attempt, or with the result."""
        self._refuse_after_end(target)
        reported, is_fenced = self._context.reported, self.is_fenced(target)
        is_home, home_checkpoint = target == self._context.task_target, reported.checkpoint
        if not is_home:
            reported.checkpoint = self.states[target].position
        try:
            with reported.transaction(is_saved=False, is_kept=is_home):
                row = self._begin(target)
                connection = row.table.connection
                connection.in_transaction = True
                self.is_in_fenced_transaction = is_fenced
                try:
                    yield connection
                    status = int(connection.info.transaction_status)
                    if status == _IN_ERROR:
                        raise RuntimeError("a statement of this transaction has failed, so it cannot be committed")
                    if status == _IDLE and is_fenced:
                        raise RuntimeError(ENDED_BY_BLOCK)
                    end = self._end(row, is_final=final, result=result)
                    connection.in_transaction = False
                    self._commit(row, end)
                except BaseException:
                    connection.in_transaction = False
                    with suppress(Exception):
                        connection.rollback()
                    raise
                self._record(target, end)
        finally:
            self.is_in_fenced_transaction = False
            if not is_home:
                reported.checkpoint = home_checkpoint

    def _refuse_after_end(self, target: str) -> None:
        if self._is_own_final:
            raise RuntimeError(
                f"the final transaction of this job has been committed in target {self.finished_in!r}; none follows it"
            )
        if self.finished_in is not None:
            raise WorkDone
        if target in self._unknown:
            raise RuntimeError(
                f"whether the last transaction in target {target!r} was committed is not known, because its answer was"
                " lost; the next attempt resumes from what is there"
            )

    def _end(self, row: TargetRow, *, is_final: bool, result: Any) -> _End:
        """The last statement before the commit."""
        reported = self._context.reported
        is_fenced = row.table.name is not None
        position = encode_strictly(reported.checkpoint) if is_fenced and reported.has_transaction_checkpoint else None
        stored = sanitize_json(self._context.redact_for_target(result), MAX_RESULT_BYTES) if is_final else None
        with self._owner_only():
            row.end(position=position, is_final=is_final, result=stored)
        return _End(position, stored)

    def _commit(self, row: TargetRow, end: _End) -> None:
        """Commit. When the answer is lost, ask on a new connection: the claim waits for the end of the transaction."""
        target = row.table.target
        before = self.states[target].position
        try:
            row.table.connection.commit()
        except Exception as error:
            if row.table.connection.closed or sqlstate_of(error) is None:
                with suppress(Exception):
                    row.table.connection.close()
                self._unknown.add(target)
                with suppress(Exception):
                    state = self.claim(target)
                    if state is not None and _is_committed(state, before, end):
                        self._unknown.discard(target)
                        return
            raise

    def _record(self, target: str, end: _End) -> None:
        """What has been committed."""
        if end.position is not None:
            self.states[target] = self.states[target]._replace(position=json.loads(end.position))
        if end.result is not None:
            self._is_own_final, self.finished_in, self.result = True, target, json.loads(end.result)

    def _begin(self, target: str) -> TargetRow:
        """Begin a transaction; on a new connection, if the old one was lost since the last transaction."""
        deadline, is_replaced = clock() + MAX_WAIT_SEC, False
        while True:
            row = self._rows[target]
            connection = row.table.connection
            try:
                with self._owner_only():
                    connection.rollback()  # the task may have used it since, and set it up
                    connection.autocommit = False
                    row.begin()
            except Exception as error:
                if connection.closed and not is_replaced:
                    is_replaced = True
                    self.claim(target)
                    continue
                with suppress(Exception):
                    connection.rollback()
                if sqlstate_of(error) != LOCK_NOT_AVAILABLE:
                    raise
                if clock() > deadline:  # a former attempt is frozen between two statements
                    raise Snooze(RELEASE_SEC, f"{STILL_OPEN} {target!r}") from error
            else:
                return row
            self._context.sleep(_RETRY_SEC)

    @contextmanager
    def _owner_only(self) -> Iterator[None]:
        try:
            yield
        except FenceLost as lost:
            self._context.write_log("warning", "target.fence_lost", {"reason": str(lost)} if lost.args else {})
            self._context.stop_for(StopReason.LEASE_LOST)


def _is_committed(state: TargetState, before: Any, end: _End) -> bool:
    """Whether the row has what only this transaction has written."""
    if end.result is not None:
        return state.is_done
    position = None if end.position is None else json.loads(end.position)
    return position is not None and position != before and state.position == position
