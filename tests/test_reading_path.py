"""The reading path of docs/architecture.md: seven parts that a reader holds in an afternoon."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_LINES = 2_500
MAX_DECISIONS_OF_THE_CLAIM = 8


def section() -> str:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return page.partition("## Reading path\n")[2].partition("\n## ")[0]


def test_seven_parts_are_short_enough():
    rows = re.findall(r"^\| \d\. (.+?) \|", section(), re.MULTILINE)
    paths = [ROOT / name for row in rows for name in re.findall(r"`(.+?)`", row)]
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}

    assert len(rows) == 7
    assert sum(lines.values()) <= MAX_LINES, lines


def test_claim_is_explained_by_few_decisions_that_hold():
    links = re.findall(r"\]\((decisions/.+?)\)", section())

    assert 0 < len(links) <= MAX_DECISIONS_OF_THE_CLAIM
    assert [link for link in links if "Superseded" in (ROOT / "docs" / link).read_text(encoding="utf-8")] == []
