"""The explored states of the model: every promise holds, every rule is needed, and each situation is met."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.chaos.mutants import MUTANTS
from tests.model.__main__ import is_as_expected, main, search_mutant
from tests.model.configurations import CONFIGURATIONS, SMALL, without_rules
from tests.model.explore import Result, Search, explore, steps
from tests.model.mutants import CAMPAIGN_MUTANTS, MORE_MUTANTS, TRACE_MUTANTS
from tests.model.rules import Rules
from tests.model.state import Job, State
from tests.model.stories import MAX_LINES
from tests.model.symmetry import Symmetry, can_forget

_SLOW = ("failover", "target", "target, failover")


@pytest.mark.parametrize(
    "name", [pytest.param(c.name, marks=pytest.mark.full) if c.name in _SLOW else c.name for c in SMALL]
)
def test_promises_hold_in_every_state(name: str):
    result = explore(CONFIGURATIONS[name], max_sec=100)

    assert result.is_whole
    assert result.story is None, str(result.story)


@pytest.mark.parametrize("mutant", [*CAMPAIGN_MUTANTS, *MORE_MUTANTS], ids=lambda mutant: mutant.name)
def test_protocol_without_a_rule_is_broken(mutant):
    result = search_mutant(mutant)

    assert is_as_expected(mutant, result), str(result.story or "nothing is broken")


def test_every_campaign_mutant_has_a_detector():
    modelled = [mutant.name for mutant in CAMPAIGN_MUTANTS]

    assert sorted([*modelled, *TRACE_MUTANTS]) == sorted(MUTANTS)


def test_every_rule_is_left_out_by_a_mutant():
    left_out = {rule for mutant in (*CAMPAIGN_MUTANTS, *MORE_MUTANTS) for rule in mutant.rules}

    assert left_out == {field.name for field in fields(Rules)}


def test_settlement_lost_by_failover_needs_the_lease_of_the_row():
    """Its process lives and has forgotten the run: heartbeats alone would keep the job for ever."""
    result = explore(without_rules("failover", "row_lease"))

    assert "no end is reachable" in str(result.story)
    assert "settles run 1" in str(result.story)
    assert "a standby is promoted" in str(result.story).splitlines()[-1]


def test_claim_lost_by_failover_lets_two_runs_act_for_a_heartbeat():
    config = CONFIGURATIONS["failover"]
    result = explore(replace(config, left_out=config.left_out - {"one_run_of_a_key_may_act"}))

    assert "one run of a key may act" in str(result.story)
    assert "P1 claims job 0 as run 2" in str(result.story).splitlines()[-1]


def test_story_has_each_step_and_few_lines():
    result = explore(without_rules("keys", "session_lock"))
    lines = str(result.story).splitlines()

    assert len(lines) <= MAX_LINES
    assert lines[0].startswith("broken: the key lock excludes")
    assert lines[2].startswith(" 1. P0 claims job 0 as run 1 → job 0 running as run 1 of P0")
    assert "claims job" in lines[-1]


def test_command_explores_and_tells_success(capsys):
    assert main(["explore", "--only", "retries"]) == 0
    assert main(["without", "cancel_wins", "--only", "cancels"]) == 1
    assert "rows are consistent" in capsys.readouterr().out


@pytest.mark.parametrize(("jobs", "processes"), [((Job(),), 3), ((Job(), Job()), 2)])
def test_states_that_count_as_one_have_the_same_steps(jobs: tuple[Job, ...], processes: int):
    """What is forgotten changes no step: it leads to the same states, but for those that count as the first itself."""
    config = replace(CONFIGURATIONS["3 x 3 x 2"], jobs=jobs, processes=processes)
    whole, symmetry = Search(config), Symmetry(config, forgets=True)
    whole.run(Result(config=config), float("inf"))
    steps_of: dict[State, set[tuple[State, bool]]] = {}
    for state in whole.states:
        name = symmetry.canonical(state)
        following = {(symmetry.canonical(step.state), step.is_fair) for step in steps(config, state)}
        following = {each for each in following if each[0] != name}
        assert steps_of.setdefault(name, following) == following
        assert config.is_end(state) == config.is_end(name)

    few = explore(config, forgets=True)
    assert few.states == len(steps_of) < len(whole.states)
    assert few.is_whole
    assert few.story is None


def test_what_some_step_reads_is_not_forgotten():
    assert can_forget(CONFIGURATIONS["3 x 3 x 2"])
    assert not any(can_forget(CONFIGURATIONS[name]) for name in ("retries", "rows", "join", "old process", "held row"))
    assert not can_forget(without_rules("keys", "fence"))
