"""Each mutant breaks what it says it breaks: a change that finds no place in a statement would prove nothing."""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from dataloader.app.db.statements import parse_statements
from tests.chaos.checker import RULES
from tests.chaos.faults import FAULTS
from tests.chaos.mutant import StatementEdit, edit_statements
from tests.chaos.mutant_search import SCENES, TriedMutant, outcome_table
from tests.chaos.mutants import MUTANTS
from tests.support import Process

NAMES = {rule.__name__.replace("_", " ") for rule in RULES}

ROOT = Path(__file__).parents[2]
FILES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "app").rglob("*.sql"))]


COMPOSED = re.compile(r"^-- name: (\w+) = (.+)$", re.MULTILINE)
PARTS_OF = {name: parts.split(" + ") for text in FILES for name, parts in COMPOSED.findall(text)}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_the_statements_it_names(mutant):
    """Each of its edits, or it raises; and what they leave can still be read."""
    for edit in mutant.edits:
        before = {name: it.text for text in FILES for name, it in parse_statements(text, "public").items()}
        after = {
            name: it.text
            for text in FILES
            for name, it in parse_statements(edit_statements(text, [edit]), "public").items()
        }
        changed = {name for name in before if before[name] != after[name]}
        assert edit.statement in changed
        assert all(name == edit.statement or edit.statement in PARTS_OF.get(name, ()) for name in changed)


@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS.values() if mutant.functions], ids=lambda mutant: mutant.name
)
def test_a_mutant_changes_the_functions_it_names(mutant, dsn):
    sources = "SELECT oid, prosrc FROM pg_proc WHERE pronamespace = current_schema()::regnamespace"
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(sources)
        before = dict(cursor.fetchall())
        for edit in mutant.functions:
            cursor.execute(edit.statement())
        cursor.execute(sources)
        after = dict(cursor.fetchall())

    assert before.keys() == after.keys()
    assert sum(before[function] != after[function] for function in before) == len(mutant.functions)


def test_every_patch_replaces_what_the_code_has(tmp_path):
    code = "from tests.chaos.mutants import MUTANTS\nfor mutant in MUTANTS.values(): mutant.patch()\nprint('patched')"
    with Process([sys.executable, "-c", code], output=tmp_path / "out", env={"PYTHONPATH": "."}) as process:
        process.wait_for_line("patched")


def test_every_change_of_the_schema_finds_its_object(dsn):
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        for mutant in MUTANTS.values():
            for change in mutant.schema_changes:
                cursor.execute(change)
            connection.rollback()


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_mutant_has_a_scene_and_rules_that_there_are(mutant):
    assert mutant.scene in SCENES
    assert set(mutant.expects) <= NAMES
    assert all(step.fault in FAULTS for step in SCENES[mutant.scene].plan())


def test_edit_without_a_match_is_refused():
    with pytest.raises(LookupError, match="ping has 0 of 1 places like 'nothing of it'"):
        edit_statements("-- name: ping\nSELECT 1;\n", [StatementEdit("ping", "nothing of it", "")])


@pytest.mark.parametrize("name", ["no-exclusion", "cancel-not-delivered", "no-reaper"])
def test_a_mutant_breaks_its_own_process_alone(name, tmp_path):
    code = """
import json, sys
from dataloader.app.db.statements import statements
from tests.chaos.mutants import MUTANTS
before = {name: statement.text for name, statement in statements("public").items()}
MUTANTS[sys.argv[1]].apply()
after = statements("public")
print("changed", json.dumps(sorted(name for name in before if after[name].text != before[name])))
"""
    process = Process([sys.executable, "-c", code, name], output=tmp_path / "out", env={"PYTHONPATH": "."})
    with process:
        changed = json.loads(process.wait_for_line("changed [").removeprefix("changed"))

    assert {edit.statement for edit in MUTANTS[name].edits} <= set(changed)
    assert bool(changed) == bool(MUTANTS[name].edits)


def test_outcome_table_lists_rules_that_caught_each_mutant():
    result = outcome_table(
        [TriedMutant("no-reaper", "killed workers", caught=True, rules=["job not finished"], seconds=12.3)]
    )

    assert "| no-reaper | no process reaps dead runs | killed workers | job not finished | 1 | 12 s |" in result
