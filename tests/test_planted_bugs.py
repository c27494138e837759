"""The planted bugs fit the sources as they are; `make planted-bugs` tries them."""

from __future__ import annotations

import pytest

from tests.planted_bugs import BUGS, PlantedBug
from tests.support.processes import ROOT


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_fits_the_sources(bug: PlantedBug):
    file, _, name = bug.tests.partition("::")

    assert bug.text in (ROOT / bug.file).read_text(encoding="utf-8")
    assert bug.text != bug.bug
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8") if name else (ROOT / file).exists()
