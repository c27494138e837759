"""The page over several services."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.web import WebOptions, create_app
from app.web.api.overview import Overview
from app.web.options import RemoteCell
from app.web.pages.cells import CellReader

FIGURES = Overview(
    version="1", schema_version=8, environment="production", at=datetime.now(UTC), cells=(), problems=2, running=3,
    ready=1_234, waiting=7, oldest_ready_sec=61.0, succeeded=40, failed=5, workers=2, threads=8,
)  # fmt: skip


def answering(**changes: Any) -> RemoteCell:
    def read() -> Mapping[str, Any]:
        return asdict(FIGURES) | {"at": datetime.now(UTC).isoformat()} | changes

    return RemoteCell("http://cell:8081", read)


def failing(error: Exception) -> RemoteCell:
    def read() -> Mapping[str, Any]:
        raise error

    return RemoteCell("http://away:8081", read)


@pytest.fixture
def show(queue, pipelines, pool):
    def page(**cells: RemoteCell) -> str:
        options = WebOptions(version="1", cells=cells)
        return create_app(queue, pipelines, options, pool=pool).test_client().get("/cells").text

    return page


def test_page_has_a_row_for_each_cell(show):
    page = show(north=answering(), south=failing(ConnectionError("cannot connect to <south>")))

    assert 'href="http://cell:8081/"' in page
    assert "1 234" in page
    assert "1 min 1 s" in page
    assert "cannot connect to &lt;south&gt;" in page
    assert page.count('<span class="st lost">unavailable</span>') == 1
    assert '<a href="/cells" aria-current="page">Cells</a>' in page


def test_cells_that_do_not_answer_or_have_no_worker_come_first(show):
    page = show(north=answering(), east=answering(workers=0), south=failing(ConnectionError("away")))

    rows = ["cell-south", "cell-east", "cell-north"]
    assert sorted(rows, key=page.index) == rows
    assert "no live worker: its jobs wait" in page


def test_page_without_cells_names_the_setting(show):
    page = show()

    assert "DL_CELLS" in page
    assert 'href="/cells"' not in page


def test_cell_that_does_not_answer_holds_up_the_page_a_second(show):
    released = threading.Event()

    def read() -> Mapping[str, Any]:
        released.wait(30)
        return {}

    started = time.monotonic()
    try:
        page = show(north=answering(), first=RemoteCell("http://a", read), second=RemoteCell("http://b", read))
    finally:
        released.set()

    assert page.count("no answer within 1 s") == 2
    assert 'id="cell-north"' in page
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"version": "2"}, "version 2, here 1"),
        ({"cells": ["north", "other"]}, "other DL_CELLS: north, other"),
        ({"at": (datetime.now(UTC) + timedelta(hours=2)).isoformat()}, "ahead"),
        ({"at": (datetime.now(UTC) - timedelta(hours=2)).isoformat()}, "behind"),
    ],
)
def test_difference_between_cells_is_a_warning(changes, warning):
    (row,) = CellReader({"north": answering(**changes)}, "1").read()

    assert len(row.warnings) == 1
    assert warning in row.warnings[0]


def test_answer_of_another_program_makes_a_cell_unavailable():
    (row,) = CellReader({"north": answering(ready="many")}, "1").read()

    assert row.figures is None
    assert "not that of a cell" in row.reason


def test_cells_are_asked_once_a_second_for_all_viewers():
    asked = []

    def read() -> Mapping[str, Any]:
        asked.append(1)
        return answering().read_overview()

    reader = CellReader({"north": RemoteCell("http://a", read)}, "1")

    assert [row.figures is not None for row in reader.read()] == [True]
    assert len(asked) == 1
    assert [row.figures is not None for _ in range(5) for row in reader.read()] == [True] * 5
    assert len(asked) < 5
