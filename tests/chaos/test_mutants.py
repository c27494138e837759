"""Each mutant breaks what it says it breaks: a change that finds no place in a statement would prove nothing."""

from __future__ import annotations

import json
import sys
from importlib.resources import files

import pytest

from app.queue.statements import read
from tests.chaos.checker import RULES
from tests.chaos.faults import FAULTS
from tests.chaos.hunt import SCENES, Outcome, table
from tests.chaos.mutants import MUTANTS, Edit, mutilated
from tests.support import Process

NAMES = {rule.__name__.replace("_", " ") for rule in RULES}


FILES = [file.read_text(encoding="utf-8") for file in files("app.queue").iterdir() if file.name.endswith(".sql")]


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_the_statements_it_names(mutant):
    """Each of its edits, or it raises; and what they leave can still be read."""
    for edit in mutant.edits:
        before = {name: it.text for text in FILES for name, it in read(text, "public").items()}
        after = {name: it.text for text in FILES for name, it in read(mutilated(text, [edit]), "public").items()}
        changed = {name for name in before if before[name] != after[name]}
        assert edit.statement in changed
        assert all(edit.statement in name for name in changed)  # itself, and what is composed of it


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_mutant_has_a_scene_and_rules_that_there_are(mutant):
    assert mutant.scene in SCENES
    assert mutant.expects
    assert set(mutant.expects) <= NAMES
    assert all(step.fault in FAULTS for step in SCENES[mutant.scene].plan())


def test_an_edit_that_finds_no_place_is_refused():
    with pytest.raises(LookupError, match="ping has 0 of 1 places like 'nothing of it'"):
        mutilated("-- name: ping\nSELECT 1;\n", [Edit("ping", "nothing of it", "")])


@pytest.mark.parametrize("name", ["no-exclusion", "cancel-unheard", "nobody-reaps"])
def test_a_mutant_breaks_its_own_process_alone(name, tmp_path):
    code = """
import json, sys
from app.queue.statements import statements
from tests.chaos.mutants import MUTANTS
before = {name: statement.text for name, statement in statements("public").items()}
MUTANTS[sys.argv[1]].break_it()
after = statements("public")
print("changed", json.dumps(sorted(name for name in before if after[name].text != before[name])))
"""
    process = Process([sys.executable, "-c", code, name], output=tmp_path / "out", env={"PYTHONPATH": "."})
    with process:
        changed = json.loads(process.wait_for("changed [").removeprefix("changed"))

    assert {edit.statement for edit in MUTANTS[name].edits} <= set(changed)
    assert bool(changed) == bool(MUTANTS[name].edits)


def test_the_table_tells_who_was_caught_by_what():
    told = table([Outcome("nobody-reaps", "deaths", caught=True, rules=["not ended"], seconds=12.3)])

    assert "| nobody-reaps | nobody settles for the dead | deaths | not ended | 1 | 12 s |" in told
