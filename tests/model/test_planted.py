"""Faults planted in the model itself: an invariant dropped, or an action that allows too little. With each of them the
explorer misses a protocol that lacks a rule, so test_explorer.py fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.model import explore
from tests.model.__main__ import is_as_expected, search_mutant
from tests.model.actions import ACTIONS, Function
from tests.model.configurations import SMALL
from tests.model.mutants import CAMPAIGN_MUTANTS, MORE_MUTANTS
from tests.model.state import INVARIANTS, Configuration, State, Step

_PART_SEC = 3.0  # of the exploration of a configuration, where all of it takes longer
_MUTANTS = {mutant.name: mutant for mutant in (*CAMPAIGN_MUTANTS, *MORE_MUTANTS)}


@dataclass(frozen=True)
class Planted:
    name: str
    missed: str  # the mutant that is not found any more
    invariant: str = ""  # dropped
    action: str = ""  # with fewer steps than it has
    allows: Callable[[State, Step], bool] = lambda before, step: False

    def function(self) -> Function:
        original = ACTIONS[self.action].function

        def restricted(config: Configuration, state: State) -> Iterator[Step]:
            return (step for step in original(config, state) if self.allows(state, step))

        return restricted


PLANTED = (
    Planted("two running rows are accepted", "no-exclusion", invariant="one_running_row_of_a_key"),
    Planted("a run without its job may act", "beat-without-ownership", invariant="only_the_owner_may_act"),
    Planted("two holders of a key are accepted", "no-session-lock", invariant="the_key_lock_excludes"),
    Planted("lost acknowledgements are accepted", "asynchronous-commit", invariant="acknowledged_is_kept"),
    Planted("rows that look dead are accepted", "row-lease-too-short", invariant="a_live_run_has_a_live_row"),
    Planted("limits are not looked at", "limit-without-lock", invariant="limits_hold"),
    Planted("SQL of the dead is accepted", "sessions-left-open", invariant="nothing_of_a_dead_attempt_executes"),
    Planted("parts twice are accepted", "done-not-read", invariant="parts_are_written_once"),
    Planted("no process dies", "no-reaper", action="crashes"),
    Planted("no session ends", "target-fence-not-compared", action="session_ends"),
    Planted("no lease expires in time", "beat-without-ownership", action="lease_expires"),
    Planted(
        "one claim at a time", "limit-counted-before-lock", action="claim_reads",
        allows=lambda before, step: len(step.state.open) == 1,
    ),
    Planted("a frozen process stays frozen", "beat-without-ownership", action="thaws"),
    Planted("no row waits for a cancel", "cancel-forgotten", action="cancels"),
)  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_fault_of_the_model_is_noticed(planted: Planted, monkeypatch: pytest.MonkeyPatch):
    mutant = _MUTANTS[planted.missed]
    assert is_as_expected(mutant, search_mutant(mutant))

    if planted.invariant:
        monkeypatch.setitem(INVARIANTS, planted.invariant, lambda config, state: ())  # its place stays
    else:
        changed = ACTIONS[planted.action]._replace(function=planted.function())
        monkeypatch.setitem(ACTIONS, planted.action, changed)

    assert not is_as_expected(mutant, search_mutant(mutant))


def test_every_action_is_taken():
    missing = set(ACTIONS)
    for config in SMALL:
        groups = ("core", *config.groups)
        search = explore.Search(config)
        search.run(explore.Result(config=config), time.monotonic() + _PART_SEC)
        for state in search.states:
            missing -= {name for name in missing if ACTIONS[name].group in groups and _has_step(name, config, state)}

    assert missing == set()


def _has_step(name: str, config: Configuration, state: State) -> bool:
    return any(True for _ in ACTIONS[name].function(config, state))
