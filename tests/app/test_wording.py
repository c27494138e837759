"""Counts in sentences agree with their nouns, everywhere."""

from __future__ import annotations

import re

import pytest

from dataloader.app.wording import format_count, format_duration
from tests.support.processes import ROOT

# A number that may be 1, then a plural: `{n} jobs`, `{{ words.number(n) }} jobs`, `${n} jobs`.
NOUNS = "jobs|runs|threads|workers|processes|keys|sessions|webhooks|alerts|checks|lines|events|times|differences"
PLURAL = re.compile(rf"\{{([^{{}}]+)\}}\}}? (?:more )?({NOUNS})\b")
NEVER_ONE = {"max_jobs", "crashes", "MAX_REPORTS:,", "MAX_DOWNLOADED_LINES:,", "_MAX_SUBMISSIONS"}
NO_COUNT = {
    "running.max_attempts",  # "Try 1 of 5 runs on …": a verb
    "lock_key!r",
    "dataloader_command()",
    "action.value",
    "verb",
    "operation.action.value",
    "operation.action.value|capitalize",
    "status|capitalize",
    "row.name",  # a verb, as below
    "engine!r",
}


@pytest.mark.parametrize(("count", "shown"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (12_000, "12,000 jobs")])
def test_noun_agrees_with_count(count, shown):
    assert format_count(count, "job") == shown


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), float("-inf")])
def test_duration_that_is_no_number_is_unknown(seconds):
    assert format_duration(seconds) == "unknown"


def test_plural_of_other_form_is_given():
    assert (format_count(1, "process", "processes"), format_count(3, "process", "processes")) == (
        "1 process",
        "3 processes",
    )


def test_no_message_puts_a_plural_behind_any_count():
    files = [
        path for top in ("app", "workers") for kind in ("*.py", "*.html", "*.js") for path in (ROOT / top).rglob(kind)
    ]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        if "vendor" not in path.parts
        for match in PLURAL.finditer(path.read_text(encoding="utf-8"))
        if match[1].strip(" {") not in NEVER_ONE | NO_COUNT
    ]

    assert found == []
