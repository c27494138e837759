"""What the runner accepts from a generator."""

from __future__ import annotations

import datetime
import sqlite3
from collections import OrderedDict
from decimal import Decimal
from typing import Any

import pytest
from psycopg2.extras import RealDictRow

from dataloader.pipelines.retry import DEFAULT, RetryAction, Rules, decide
from dataloader.pipelines.runner import NotProgress, check_progress
from dataloader.pipelines.testing import FakeContext, run


@pytest.mark.parametrize(
    "step",
    [
        {"processed": 3, "total": 10},
        {"processed": 0.5, "file": "a.csv", "sources": {"a": 1}},
        {"percent": 40, "now": "loading"},
        {"stage": "loading", "step": 2},
        {"total": None, "processed": None},
        {"loaded": 500, "skipped": 3},
        {},
        None,
        "a text",
        7,
        object(),
    ],
)
def test_progress_is_accepted(step):
    check_progress(step)


ROW = {"id": 7, "name": "Ann", "born": datetime.date(2000, 1, 1)}


def sqlite_row() -> Any:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    return connection.execute("SELECT 1 AS id, 'Ann' AS name").fetchone()


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        {"id": "7"},
        {"id": 7, "deleted": None},
        {"id": 7, "processed": True},
        {"id": 7, "total": Decimal("9.99"), "customer": "Ann"},
        {f"c{n}": n for n in range(9)},
        RealDictRow({"id": 7, "amount": 5}),
        OrderedDict(ROW),
        (7, "Ann"),
        [7, "Ann"],
        sqlite_row(),
    ],
)
def test_rows_are_refused(row):
    with pytest.raises(NotProgress, match="which is no progress"):
        check_progress(row)


def test_refusal_names_keys_and_no_value():
    with pytest.raises(NotProgress) as refused:
        check_progress({"id": 7, "name": "Ann", **{f"column_{n}": n for n in range(9)}})

    assert "a dict with the keys id, name, column_0, column_1, column_2 …" in str(refused.value)
    assert "Ann" not in str(refused.value)


def test_refused_row_is_not_retried():
    verdict = decide(NotProgress("x"), attempt=1, max_attempts=5, policy=DEFAULT, rules=Rules())

    assert verdict.action is RetryAction.FAIL


def test_fake_context_refuses_rows_as_a_worker_does():
    closed = []

    def rows(args):
        try:
            yield ROW
        finally:
            closed.append(True)

    context = FakeContext()
    with pytest.raises(NotProgress):
        run(rows, {}, context)
    assert context.progresses == []
    assert closed == [True]
