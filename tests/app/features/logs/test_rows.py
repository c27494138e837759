"""The search of lines over the logs of all jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dataloader.app.features.logs import rows
from dataloader.app.features.logs.rows import LineFilter, LogSearch
from tests.support.databases import execute_sql
from tests.support.log_lines import LINES

ALWAYS = LineFilter(since=datetime.now(UTC) - timedelta(days=30))


@pytest.fixture
def search(dsn: str, pool) -> LogSearch:
    execute_sql(dsn, LINES)
    return LogSearch(pool)


def ago(**time: float) -> datetime:
    return datetime.now(UTC) - timedelta(**time)


def texts(search: LogSearch, line_filter: LineFilter, **more) -> list[str]:
    return [line.line for line in search.page(line_filter, time_budget_sec=10, **more).lines]


def test_newest_lines_come_first_with_their_tasks(search):
    page = search.page(ALWAYS, limit=3)

    assert [(line.line, line.task) for line in page.lines] == [
        ("line 3000", "task 1"), ("line 2999", None), ("line 2998", "task 2"),
    ]  # fmt: skip
    assert page.next == page.lines[-1].log_id
    assert texts(search, ALWAYS, limit=2, before=page.next) == ["line 2997", "line 2996"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"text": "LINE 2999"}, ["line 2999"]),
        ({"levels": ("ERROR",)}, ["line 3000", "line 2990"]),
        ({"task": "task 2"}, ["line 2998", "line 2995"]),
        ({"until": timedelta(minutes=1005), "levels": ("ERROR",)}, ["line 1990", "line 1980"]),
        ({"since": timedelta(minutes=15), "text": "line 29", "levels": ("ERROR",)}, ["line 2990"]),
        ({"text": "nothing"}, []),
    ],
)
def test_lines_are_found_by(fields, expected, search):
    times = {name: datetime.now(UTC) - value for name, value in fields.items() if isinstance(value, timedelta)}
    assert texts(search, LineFilter(**{"since": ALWAYS.since, **fields, **times}), limit=2) == expected


def test_search_without_time_says_how_far_back_it_is_and_continues(search, monkeypatch):
    monkeypatch.setattr(rows, "WINDOW_LINES", 100)
    wanted = LineFilter(since=ALWAYS.since, text="line 2750")

    page, found = search.page(wanted, time_budget_sec=0), []
    pages = [page]
    while page.next is not None:
        page = search.page(wanted, before=page.next, time_budget_sec=0)
        pages.append(page)
        found += page.lines

    assert pages[0].scanned == 100
    assert pages[0].scanned_to == pytest.approx(ago(minutes=99), abs=timedelta(minutes=5))
    assert [line.line for line in found] == ["line 2750"]


def test_search_of_an_earlier_time_begins_near_it(search, monkeypatch):
    monkeypatch.setattr(rows, "WINDOW_LINES", 100)
    until = ago(minutes=2000)

    page = search.page(LineFilter(since=until - timedelta(minutes=5), until=until), time_budget_sec=0)

    assert 900 < int(page.lines[0].line.removeprefix("line ")) <= 1000
    assert page.scanned == 100
