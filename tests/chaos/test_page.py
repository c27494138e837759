"""The page about the campaign names all there is of it."""

from __future__ import annotations

import pytest

from tests.chaos.checker import RULES
from tests.chaos.faults import FAULTS
from tests.chaos.mutants import MUTANTS
from tests.support.processes import ROOT

PAGE = (ROOT / "docs/chaos.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", [rule.__name__.replace("_", " ") for rule in RULES])
def test_every_rule_is_explained(rule):
    assert f"\n| {rule} |" in PAGE


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named(fault):
    assert fault in PAGE


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_every_mutant_is_listed_with_its_rules(mutant):
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {mutant.name} |"))
    assert mutant.description in line
    assert any(rule in line for rule in mutant.expects or ["nothing"])
