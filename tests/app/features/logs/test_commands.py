"""Command search-logs, against the real routes and a real database."""

from __future__ import annotations

import json

import pytest

from dataloader.app.features.logs import commands, rows
from tests.app.features.webhooks.test_commands import Shell, shell, webhook_dsn  # noqa: F401 - fixtures
from tests.support.databases import execute_sql
from tests.support.log_lines import LINES


@pytest.fixture(autouse=True, scope="module")
def lines(webhook_dsn: str) -> None:  # noqa: F811 - a fixture
    execute_sql(webhook_dsn, LINES)


def test_lines_are_printed_newest_first_with_job_and_task(shell: Shell):  # noqa: F811 - a fixture
    shown = shell("search-logs", "--text", "LINE 299", "--limit", "3").stdout.splitlines()

    assert [line.rpartition("  ")[2] for line in shown] == ["line 2999", "line 2998", "line 2997"]
    assert "  deleted  INFO" in shown[0]
    assert "  00000000-0000-7000-8000-000000000002  task 2  INFO" in shown[1]


def test_search_continues_to_its_limit(shell: Shell, monkeypatch: pytest.MonkeyPatch):  # noqa: F811 - a fixture
    monkeypatch.setattr(rows, "WINDOW_LINES", 200)
    monkeypatch.setattr(rows, "TIME_BUDGET_SEC", 0.0)
    monkeypatch.setattr(commands, "_MAX_PAGE_LINES", 7)

    query = ("search-logs", "--level", "ERROR", "--since", "2020-01-01", "--json")
    found = [json.loads(line)["line"] for line in shell(*query, "--limit", "1000").stdout.splitlines()]
    first = shell(*query, "--limit", "10").stdout.splitlines()

    assert found == [f"line {n}" for n in range(3000, 0, -10)]
    assert len(first) == 10


def test_search_without_a_match_prints_no_line(shell: Shell):  # noqa: F811 - a fixture
    shown = shell("search-logs", "--text", "nothing of the kind")

    assert (shown.stdout, shown.stderr) == ("", "0 lines.\n")
