"""The load of docs/deploy-story.md, run in half a minute: what the page claims of it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from docs.deploy_story import PARTS, run_story, story_lines
from tests.support import Databases
from tests.support.processes import ROOT

pytestmark = pytest.mark.full


def test_deploy_in_the_middle_of_a_load(databases: Databases, tmp_path: Path):
    with databases.fresh(schema=False) as dsn:
        story = run_story(dsn, tmp_path, sec=30)

    kinds = [(kind, payload.get("reason"), payload["attempt"]) for _, kind, payload in story.events]
    assert kinds == [
        ("queued", None, 0), ("picked", None, 1), ("requeue", "shutdown", 0), ("picked", None, 1), ("done", None, 1)
    ]  # fmt: skip
    assert (story.job["status"], story.job["attempt"], story.exit_code) == ("succeeded", 1, 0)
    assert Counter(part for part, _, _ in story.parts) == Counter(range(1, PARTS + 1)), "each part once"
    assert [by for by, following in pairwise(by for _, by, _ in story.parts) if by != following] == ["1"]
    (released_at,) = [at for at, kind, _ in story.events if kind == "requeue"]
    picked_at = [at for at, kind, _ in story.events if kind == "picked"]
    assert (picked_at[1] - released_at).total_seconds() < 5
    assert len({payload.get("worker") for _, kind, payload in story.events if kind == "picked"}) == 2

    assert_page_shows([line.split() for line in story_lines(story)])


def assert_page_shows(printed: list[list[str]]) -> None:
    """The same events in the same order, with other times and pids."""
    page = (ROOT / "docs/deploy-story.md").read_text(encoding="utf-8")
    shown = [line.split() for line in page.splitlines() if " s  0" in line]
    for kind, words in (("event", slice(3, 6)), ("worker", slice(4, 6))):
        assert [line[words] for line in shown if line[3] == kind] == [
            line[words] for line in printed if line[3] == kind
        ]
