"""The page about the proof names all there is of it."""

from __future__ import annotations

import pytest

from tests.support.processes import ROOT
from tests.target_proof.mutants import MUTANTS
from tests.target_proof.plan import FaultKind
from tests.target_proof.rules import RULES

PAGE = (ROOT / "docs/chaos.md").read_text(encoding="utf-8").partition("## Exactly once in targets")[2]


@pytest.mark.parametrize("rule", [rule.__name__.replace("_", " ") for rule in RULES])
def test_every_rule_is_explained(rule: str):
    assert f"\n| {rule} |" in PAGE


@pytest.mark.parametrize("kind", FaultKind)
def test_every_fault_is_explained(kind: FaultKind):
    assert kind in PAGE


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_every_mutant_is_listed_with_its_rules(mutant):
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {mutant.name} |"))
    assert mutant.description in line
    assert any(rule in line for rule in mutant.expects)
