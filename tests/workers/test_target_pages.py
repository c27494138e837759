"""What the pages on targets show does what they say; system/test_targets_page.py has the first example."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from types import ModuleType
from typing import Any

import psycopg2
import pytest

import dataloader
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Pipelines
from tests.support.checkout import python_blocks
from tests.support.databases import execute_sql
from tests.support.processes import ROOT
from tests.support.target_fixture import TargetFixture

KEYS = ["2030-01-01", "2030-01-02", "2030-01-03"]
TABLES = """
CREATE TABLE stock (shop text, item text, pieces int);
CREATE TABLE shops (name text PRIMARY KEY);
CREATE TABLE sales (day text, shop text, amount float8);
CREATE TABLE visits (day text, page text, seconds float8);
CREATE TABLE pages (page text, seconds float8);
CREATE TABLE orders (day date, number int, amount int);
CREATE TABLE events (number int, name text);
CREATE TABLE amounts (month text, amount int);
CREATE TABLE totals (month text, amount int);
CREATE TABLE copies (day text);
"""


class Interrupted(Exception):
    """The attempt ends in the middle of a block."""


@pytest.fixture
def target(queue_db: Any, databases: Any) -> Iterator[TargetFixture]:
    with databases.fresh(schema=False) as dsn:
        fixture = TargetFixture(queue_db, dsn)
        fixture.sql(TABLES)
        yield fixture


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[ModuleType, Pipelines]]:
    """The code of a page as a module, and its tasks."""

    def run_page(name: str) -> tuple[ModuleType, Pipelines]:
        tasks, module = Pipelines(), ModuleType(f"page_{name}")
        monkeypatch.setattr(dataloader, "register", tasks.register, raising=False)
        monkeypatch.setitem(sys.modules, module.__name__, module)  # SQLAlchemy looks up the types of a class there
        text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
        exec("\n".join(python_blocks(text)), vars(module))  # noqa: S102 - of our own page
        return module, tasks

    return run_page


@pytest.mark.parametrize(
    ("page", "task", "argument", "read", "table"),
    [
        ("targets-sqlalchemy", "load.stock", "shops", "read_stock", "stock"),
        ("targets-pandas", "load.sales_frame", "days", "read_sales", "sales"),
        ("targets-pandas", "load.sales_fast", "days", "read_sales", "sales"),
        ("targets-polars", "load.visits_frame", "days", "read_visits", "visits"),
    ],
)
def test_a_loop_of_a_page_writes_each_key_once(
    target: TargetFixture, open_page: Any, page: str, task: str, argument: str, read: str, table: str
):
    module, tasks = open_page(page)
    job_id, reader = target.enqueue(args={argument: KEYS}), getattr(module, read)
    keys: list[str] = []

    def read_and_interrupt(key: str) -> Any:
        keys.append(key)
        if len(keys) == 2:
            raise Interrupted
        return reader(key)

    setattr(module, read, read_and_interrupt)
    assert "Interrupted" in target.run(task=tasks.get(task)).error
    target.queue_db.make_due(job_id)
    outcome = target.run(task=tasks.get(task))

    assert outcome.status is Status.SUCCEEDED
    assert keys == [KEYS[0], KEYS[1], *KEYS[1:]]
    first = argument.removesuffix("s")
    assert target.sql(f"SELECT {first}, count(*)::int FROM {table} GROUP BY 1 ORDER BY 1") == [(key, 2) for key in KEYS]
    assert target.position(job_id)["each"][0]["done"] == 3


def test_missing_values_of_frames_are_null(target: TargetFixture, open_page: Any):
    for page, task in (
        ("targets-pandas", "load.sales_frame"),
        ("targets-pandas", "load.sales_fast"),
        ("targets-polars", "load.visits_frame"),
    ):
        _, tasks = open_page(page)
        target.enqueue(args={"days": KEYS[:1]})
        assert target.run(task=tasks.get(task)).status is Status.SUCCEEDED

    assert target.sql("SELECT amount FROM sales ORDER BY 1 NULLS LAST") == [(20.5,), (20.5,), (None,), (None,)]
    assert target.sql("SELECT seconds FROM visits ORDER BY 1 NULLS LAST") == [(3.5,), (None,)]


def test_rows_of_a_session_commit_with_the_position(target: TargetFixture, open_page: Any):
    _, tasks = open_page("targets-sqlalchemy")
    job_id = target.enqueue(args={"shops": ["north", "south"]})

    assert target.run(task=tasks.get("load.shop_names")).status is Status.SUCCEEDED

    assert target.sql("SELECT name FROM shops ORDER BY 1") == [("north",), ("south",)]
    assert target.position(job_id) == "done"


def test_polars_reads_on_the_connection_of_the_block(target: TargetFixture, open_page: Any):
    _, tasks = open_page("targets-polars")
    target.sql("INSERT INTO visits VALUES ('d', '/', 1), ('d', '/', 2), ('d', '/about', NULL)")
    target.enqueue()

    assert target.run(task=tasks.get("sum.visits")).status is Status.SUCCEEDED

    assert target.sql("SELECT page, seconds FROM pages ORDER BY 1") == [("/", 3.0), ("/about", 0.0)]


def test_the_other_tasks_of_the_page_on_targets(target: TargetFixture, databases: Any, open_page: Any):
    _, tasks = open_page("targets")
    target.sql("INSERT INTO amounts VALUES ('2030-01', 5), ('2030-01', 6), ('2030-02', 7)")
    with databases.fresh(schema=False) as archive_dsn:
        execute_sql(archive_dsn, "CREATE TABLE copies (day text)")
        target.targets["archive"] = archive_dsn
        outcomes = []
        for task, args in (("load.events", {}), ("load.month", {"month": "2030-01"}), ("load.copies", {"day": "mon"})):
            target.enqueue(args=args)
            outcomes.append(target.run(task=tasks.get(task)))
        with closing(psycopg2.connect(archive_dsn)) as archive, archive.cursor() as cursor:
            cursor.execute("SELECT day, position FROM copies, dl_effects")
            copies = cursor.fetchall()

    assert [outcome.status for outcome in outcomes] == 3 * [Status.SUCCEEDED]
    assert target.sql("SELECT count(DISTINCT number), count(*) FROM events") == [(2500, 2500)]
    assert target.sql("SELECT * FROM totals") == [("2030-01", 11)]
    assert outcomes[1].result == {"month": "2030-01", "rows": 1}
    assert (copies, target.sql("SELECT day FROM copies")) == ([("mon", "written")], [("mon",)])


def test_the_fake_context_of_the_page_writes_to_a_database_for_tests(target: TargetFixture, open_page: Any):
    module, _ = open_page("targets")
    with closing(psycopg2.connect(target.dsn)) as database:
        assert module.load_into(database)["each"][0]["done"] == 2

    assert target.sql("SELECT count(*) FROM orders") == [(6,)]
