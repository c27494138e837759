"""The protocol, broken on purpose in one place each: every one must be caught, or the campaign proves nothing.

A mutant changes statements as they are read, or a method, in the processes under test alone, before they start. The
product has no switch for it. Each is tried in a short scene that gives it the chance to do harm; the unbroken protocol
passes the same scenes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.chaos.attempt_mutants import ATTEMPT_MUTANTS
from tests.chaos.lease_mutants import LEASE_MUTANTS
from tests.chaos.limit_mutants import LIMIT_MUTANTS
from tests.chaos.mutant import Mutant
from tests.chaos.offload_mutants import OFFLOAD_MUTANTS
from tests.chaos.schedule_mutants import SCHEDULE_MUTANTS
from tests.chaos.target_mutants import TARGET_MUTANTS

MUTANTS: Mapping[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        *ATTEMPT_MUTANTS,
        *LEASE_MUTANTS,
        *LIMIT_MUTANTS,
        *SCHEDULE_MUTANTS,
        *OFFLOAD_MUTANTS,
        *TARGET_MUTANTS,
    )
}


def search_mutants(only: Sequence[str], *, log: Callable[[str], None], report: Any, keep: bool) -> bool:
    """Each mutant in its scene, and the unbroken protocol in every scene; True: all were caught, and nothing else."""
    from tests.chaos.mutant_search import search_all

    return search_all(only or list(MUTANTS), log=log, report=report, keep=keep)
