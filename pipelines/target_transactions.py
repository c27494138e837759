"""The transactions of one attempt in targets, each behind the fence of the job's row there. Portable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dataloader.pipelines.context import StopReason
from dataloader.pipelines.effects import EffectsTable, FenceLost, TargetRow, TargetState, encode_position
from dataloader.pipelines.json_values import sanitize_json

if TYPE_CHECKING:
    from dataloader.pipelines.base_context import BaseContext

MAX_RESULT_BYTES = 1_000_000  # of JSON
_IN_ERROR = 3  # the status of a transaction in which a statement has failed, of both drivers


class WorkDone(BaseException):
    """An earlier attempt has finished the work of the job in a target: there is nothing left to do.

    Not an `Exception`, as `Stop`.
    """


class TargetTransactions:
    """Used by the pipeline's thread."""

    def __init__(self, context: BaseContext) -> None:
        self._context = context
        self._rows: dict[str, TargetRow] = {}  # by target: those that this attempt has claimed, on its connections
        self.states: dict[str, TargetState] = {}  # by target, of those that this attempt has claimed
        self.finished_in: str | None = None  # the target of the final transaction, also of an earlier attempt
        self.result: Any = None  # of that one
        self.is_in_fenced_transaction = False
        self._is_own_final = False

    def claim(self, target: str) -> TargetState | None:
        """Claim the job's row in a target, once for each connection. Return None for the queue's own database, whose
        transactions have the job's row as their fence."""
        row = self._rows.get(target)
        if row is not None and not row.table.connection.closed:
            return self.states[target]
        connection = self._context.connect_for_transactions(target)
        if connection is None:
            return None
        table = EffectsTable(connection, target)
        problem = self._context.fence_problem
        if problem is None:
            table.find()
            problem = table.problem
        else:
            table.problem = problem
        row = TargetRow(table, self._context.job_id, self._context.run_id)
        if problem is not None:
            self._context.draw_fence(target, problem)
            self._context.write_log("warning", "target.not_fenced", {"target": target, "reason": problem})
        with self._owner_only():
            state = row.claim(lambda: self._context.draw_fence(target, None))
        self._rows[target], self.states[target] = row, state
        if state.is_done:
            self.finished_in, self.result = target, state.result
            self._context.write_log("info", "target.work_done", {"target": target})
        return state

    def release(self, target: str) -> TargetRow:
        """Close the connection to a target, whose row another program uses now."""
        row = self._rows.pop(target)
        row.table.connection.close()
        return row

    def is_fenced(self, target: str) -> bool:
        state = self.states.get(target)
        return state is not None and state.problem is None

    @contextmanager
    def transaction(self, target: str, *, final: bool, result: Any) -> Iterator[Any]:
        """One transaction in a target that `claim` has claimed. It commits with the checkpoint recorded in it as the
        position of the next attempt, or with the result."""
        context, reported = self._context, self._context.reported
        if self._is_own_final:
            raise RuntimeError(
                f"the final transaction of this job has been committed in target {self.finished_in!r}; none follows it"
            )
        if self.finished_in is not None:
            raise WorkDone
        is_fenced, is_home = self.is_fenced(target), target == context.task_target
        home_checkpoint = reported.checkpoint
        if is_fenced and not is_home:
            reported.checkpoint = self.states[target].position
        stored = sanitize_json(context.redact_value(result), MAX_RESULT_BYTES) if final else None
        try:
            with reported.transaction(is_saved=False, is_kept=is_home or not is_fenced):
                row = self._begin(target)
                connection = row.table.connection
                connection.in_transaction = True
                self.is_in_fenced_transaction = is_fenced
                try:
                    yield connection
                    if int(connection.info.transaction_status) == _IN_ERROR:
                        raise RuntimeError("a statement of this transaction has failed, so it cannot be committed")
                    has_position = is_fenced and reported.has_transaction_checkpoint
                    position = encode_position(reported.checkpoint) if has_position else None
                    with self._owner_only():
                        row.end(position=position, is_final=final, result=stored)
                    connection.in_transaction = False
                    connection.commit()
                except BaseException:
                    connection.in_transaction = False
                    with suppress(Exception):
                        connection.rollback()
                    raise
                if has_position:
                    self.states[target] = self.states[target]._replace(position=reported.checkpoint)
                if stored is not None:
                    self._is_own_final, self.finished_in, self.result = True, target, json.loads(stored)
        finally:
            self.is_in_fenced_transaction = False
            if is_fenced and not is_home:
                reported.checkpoint = home_checkpoint

    def _begin(self, target: str) -> TargetRow:
        """Begin a transaction; on a new connection, if the old one was lost since the last transaction."""
        row = self._rows[target]
        try:
            with self._owner_only():
                row.begin()
        except Exception:
            if not row.table.connection.closed:
                with suppress(Exception):
                    row.table.connection.rollback()
                raise
            self.claim(target)
            row = self._rows[target]
            with self._owner_only():
                row.begin()
        return row

    @contextmanager
    def _owner_only(self) -> Iterator[None]:
        try:
            yield
        except FenceLost:
            self._context.stop_for(StopReason.LEASE_LOST)
