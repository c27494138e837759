"""The protocol of targets, broken on purpose in one place each: the proof must convict every one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dataloader.pipelines import effects
from dataloader.pipelines.effects import DrawnFence, TargetRow, TargetState
from tests.chaos.mutant import replace_attribute
from tests.target_proof.plan import WIRE_KINDS, ZOMBIES, FaultKind


@dataclass(frozen=True)
class Mutant:
    name: str
    description: str  # what is missing, in words
    apply: Callable[[], None]  # in this process, for good
    expects: frozenset[str]  # rules of which at least one must be violated
    kinds: Sequence[FaultKind] = WIRE_KINDS  # of faults: the places of these alone are tried


def _edit(name: str, *changes: tuple[str, str]) -> None:
    """Change a statement."""
    text: str = getattr(effects, name)
    for before, after in changes:
        if before not in text:
            raise LookupError(f"{name} has no {before!r}: mend the mutant")
        text = text.replace(before, after)
    replace_attribute(effects, name, text)


def _lock_nothing() -> None:
    _edit("_LOCK_ROW", (" FOR UPDATE", ""))
    _edit("_REQUIRE_FENCE", (" FOR UPDATE NOWAIT", ""))


def accept_lower_fences() -> None:
    """A number at most the row's is accepted, from whichever run."""
    run = "AND run_id = %s::uuid AND fence = %s"
    _edit("_REQUIRE_FENCE", (run, "AND %s::uuid IS NOT NULL AND %s <= fence"))
    _edit("_WRITE_POSITION", (run, "AND %s::uuid IS NOT NULL AND %s <= fence"))


def _accept_equal_fences() -> None:
    """A claim accepts a row that has its own number already; the run is compared as before."""
    _claim_with(lambda former, own: former <= own)


def _claim_with(is_accepted: Callable[[int, int], bool]) -> None:
    lock = TargetRow._lock

    class Fence(int):
        def __ge__(self, other: int) -> bool:  # as `claim` compares the former fence with its own
            return not is_accepted(int(self), int(other))

    def lock_row(self: TargetRow, cursor: Any) -> TargetState | None:
        state = lock(self, cursor)
        return state and state._replace(former_fence=Fence(state.former_fence))

    replace_attribute(TargetRow, "_lock", lock_row)


def _write_position_apart() -> None:
    """In a transaction that follows that of the rows."""
    end = replace_attribute(TargetRow, "end", None)

    def commit_rows_first(self: TargetRow, **values: Any) -> None:
        connection = self.table.connection
        if self.table.name is not None and (values.get("position") is not None or values.get("is_final")):
            with connection.cursor() as cursor:
                self._require_fence(cursor)
                connection.in_transaction = False
                connection.commit()
                self._transaction_id = self._require_fence(cursor)  # else it is seen that the transaction has ended
        end(self, **values)

    TargetRow.end = commit_rows_first  # type: ignore[method-assign]


def _forget_done() -> None:
    lock = TargetRow._lock

    def lock_row(self: TargetRow, cursor: Any) -> TargetState | None:
        state = lock(self, cursor)
        return state and state._replace(is_done=False, result=None)

    replace_attribute(TargetRow, "_lock", lock_row)


def _fence_by_attempt() -> None:
    from dataloader.workers.context import JobContext

    draw = JobContext.draw_fence

    def attempt_number(self: JobContext, target: str, problem: str | None) -> DrawnFence:
        return draw(self, target, problem)._replace(number=self.attempt)  # the queue is asked as before

    replace_attribute(JobContext, "draw_fence", attempt_number)


def _fence_by_attempt_alone() -> None:
    """As above, and what refuses equal numbers or another run is not there either."""
    _fence_by_attempt()
    _accept_equal_fences()
    run = "AND run_id = %s::uuid AND fence = %s"
    _edit("_REQUIRE_FENCE", (run, "AND %s::uuid IS NOT NULL AND fence = %s"))
    _edit("_WRITE_POSITION", (run, "AND %s::uuid IS NOT NULL AND fence = %s"))


def _draw_before_lock() -> None:
    claim = TargetRow.claim

    def draw_first(self: TargetRow, draw_fence: Callable[[], DrawnFence]) -> TargetState:
        if self.table.name is None:
            return claim(self, draw_fence)
        fence = draw_fence()
        return claim(self, lambda: fence)

    replace_attribute(TargetRow, "claim", draw_first)


_TWICE, _AFTER = "part written twice", "commit after successor"
MUTANTS: Mapping[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "no-row-lock",
            "the row is locked neither by a claim nor at the begin and the end of a transaction",
            _lock_nothing,
            frozenset({_TWICE}),
        ),
        Mutant(
            "lower-fence-accepted",
            "a transaction commits if its number is at most the row's, whichever run has it",
            accept_lower_fences,
            frozenset({_TWICE}),
        ),
        Mutant(
            "position-in-its-own-transaction",
            "the position is written in a transaction that follows that of the rows",
            _write_position_apart,
            frozenset({_TWICE}),
        ),
        Mutant(
            "done-not-read",
            "an attempt does not read that an earlier one has finished the work",
            _forget_done,
            frozenset({_TWICE}),
        ),
        Mutant(
            "attempt-as-fence",
            "the number of the attempt is the fence",
            _fence_by_attempt,
            frozenset({"owner refused"}),
        ),
        Mutant(
            "attempt-as-fence-alone",
            "the number of the attempt is the fence, equal ones are accepted, and the run is not compared",
            _fence_by_attempt_alone,
            frozenset({_TWICE}),
            kinds=ZOMBIES,
        ),
        Mutant(
            "fence-drawn-before-the-lock",
            "the fence is drawn before the row is locked, and the row may be deleted in between",
            _draw_before_lock,
            frozenset({_TWICE, _AFTER}),
            kinds=(FaultKind.THAWED_LATE,),
        ),
    )
}
