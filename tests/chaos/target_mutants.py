"""Mutants of transactions in targets. `make targets-mutants` has more of them, each convicted by a few loads."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.attempt_mutants import keep_dead_sessions
from tests.chaos.mutant import Mutant


def _accept_lower_fences() -> None:
    from tests.target_proof.mutants import accept_lower_fences

    accept_lower_fences()
    keep_dead_sessions()


TARGET_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "target-fence-not-compared",
        "a transaction in a target commits whichever run has the row, and a dead attempt's sessions are not ended",
        "stubborn target loads",
        patch=_accept_lower_fences,
        expects=("target commit after successor", "target part written twice"),
    ),
)
