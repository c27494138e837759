"""Loads in transactions of a target: the toolkit's, and those that are shipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines import cbr_rates, targets
from dataloader.pipelines.contract import registry
from dataloader.pipelines.opu import load as opu_load
from dataloader.pipelines.opu.table import TABLE
from dataloader.pipelines.tenera import load as tenera_load
from dataloader.pipelines.toolkit.load import copy_rows, replace_table, upsert
from dataloader.workers.outcome import SettledByTask
from tests.support.databases import execute_sql
from tests.support.target_fixture import TargetFixture
from tests.support_sources import Reply, SourceServer
from tests.support_sources.gmap import START, archive, record, serve
from tests.support_sources.tenera import PAYLOADS

REGISTERED = (cbr_rates, opu_load, tenera_load)  # by their import
COLUMNS = ["key", "run"]
BROKEN = "a\x00b"  # PostgreSQL cannot store it
RATES = (
    '<?xml version="1.0" encoding="UTF-8"?><ValCurs Date="31.01.2024" name="x"><Valute ID="R01235">'
    "<NumCode>840</NumCode><CharCode>USD</CharCode><Nominal>1</Nominal><Name>US dollar</Name><Value>88,1327</Value>"
    "</Valute></ValCurs>"
)


@pytest.fixture
def target(queue_db: Any, databases: Any) -> Iterator[TargetFixture]:
    with databases.fresh(schema=False) as dsn:
        yield TargetFixture(queue_db, dsn)


# ── of the toolkit ──────────────────────────────────────────────────────────────────────────────────────────────────


def _copy(connection: Any, rows: Any, ctx: Any) -> Any:
    return copy_rows(connection, "parts", COLUMNS, rows, ctx=ctx)


def _upsert(connection: Any, rows: Any, ctx: Any) -> Any:
    return upsert(connection, "parts", COLUMNS, ["key"], rows, ctx=ctx)


def _replace(connection: Any, rows: Any, ctx: Any) -> Any:
    return replace_table(connection, "parts", COLUMNS, rows, ctx=ctx)


LOADERS = {
    "copy": (_copy, "SELECT"),
    "upsert": (_upsert, "ALTER TABLE parts ADD PRIMARY KEY (key)"),
    "replace by a swap": (_replace, "SELECT"),
    "replace by a rewrite": (_replace, "CREATE VIEW seen AS SELECT * FROM parts"),
}
LOADER = pytest.mark.parametrize(("load", "prepare"), LOADERS.values(), ids=LOADERS)
Load = Callable[[Any, Any, Any], Any]


@LOADER
def test_loaded_rows_commit_with_the_position(target: TargetFixture, load: Load, prepare: str):
    execute_sql(target.dsn, prepare)
    job_id, seen = target.enqueue(), []

    def pages(args: Any, ctx: Any) -> None:
        for page in (["a", "b"], ["b", "c"]):
            rows = [(key, "1") for key in page if (load, key) != (_copy, "b")]
            with ctx.transaction() as connection:
                if load is not _replace:  # which lets readers wait from here
                    load(connection, rows, ctx)
                ctx.checkpoint(page)
                seen.append((target.parts, target.position(job_id)))
                if load is _replace:
                    load(connection, rows, ctx)

    assert target.run(pages).status is Status.SUCCEEDED
    first = ["a"] if load is _copy else ["a", "b"]
    assert seen == [([], None), (first, ["a", "b"])], "what others see before each commit"
    expected = ["a", "c"] if load is _copy else ["b", "c"] if load is _replace else ["a", "b", "c"]
    assert (target.parts, target.position(job_id)) == (expected, ["b", "c"])


@LOADER
@pytest.mark.parametrize("error", ["in the rows", "after them"])
def test_an_error_of_a_load_rolls_back_rows_and_position(target: TargetFixture, load: Load, prepare: str, error: str):
    execute_sql(target.dsn, prepare, "INSERT INTO parts VALUES ('old', '0')")
    job_id = target.enqueue()

    def page(args: Any, ctx: Any) -> None:
        with ctx.transaction() as connection:
            ctx.checkpoint(1)
            load(connection, [("a", "1"), (BROKEN if error == "in the rows" else "b", "1")], ctx)
            raise ValueError("after them")

    outcome = target.run(page)

    assert ("UnsuitableValue" if error == "in the rows" else "after them") in outcome.error
    assert (target.parts, target.position(job_id)) == (["old"], None)


# ── shipped ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def source(target: TargetFixture) -> Iterator[SourceServer]:
    server = SourceServer()
    targets.configure(dict.fromkeys(("cbr", "tenera", "gmap2brief"), server.url), target.targets)
    yield server
    server.close()
    targets.configure({}, {})


@pytest.fixture(params=["a target", "the queue's database"])
def place(request: pytest.FixtureRequest, target: TargetFixture) -> Callable[[str], list[tuple[Any, ...]]]:
    """Where the shipped loads write; it is asked with SQL."""
    target.targets.clear()
    if request.param == "the queue's database":
        return target.queue_db.sql
    target.targets["default"] = target.dsn
    return target.sql


def run_shipped(target: TargetFixture, name: str, *, settle: bool = True) -> Any:
    return target.run(task=registry.get(name), settle=settle)


def test_rates_are_written_in_a_transaction_of_the_target(target: TargetFixture, source: SourceServer, place: Any):
    source.add_route("GET", "/scripts/XML_daily.asp", Reply(RATES.encode()))
    job_id = target.enqueue(args={"date": "2024-01-31"})

    outcome = run_shipped(target, "load.cbr.rates")

    assert (outcome.status, outcome.result["inserted"]) == (Status.SUCCEEDED, 1)
    assert place("SELECT currency FROM cbr.rate") == [("USD",)]
    assert outcome.reports.datasets[0]["dataset"] == "cbr.rate"
    assert place("SELECT to_regclass('dl_effects')::text") == [("dl_effects" if place == target.sql else None,)]
    assert target.queue_db.sql("SELECT target FROM dl_job_targets WHERE job_id = %s", str(job_id)) == (
        [("cbr",)] if place == target.sql else []
    )


def test_a_finished_export_is_not_started_again(target: TargetFixture, source: SourceServer):
    serve(source, list(archive(map(record, range(300)))), rows=300, polls_before_done=0)
    target.targets["opu"] = target.dsn
    job_id = target.enqueue()

    run_shipped(target, "load.opu", settle=False)  # the worker dies before it settles the job
    target.lose_attempt(job_id)
    outcome = run_shipped(target, "load.opu")

    assert (outcome.status, outcome.result["rows"]) == (Status.SUCCEEDED, 300)
    assert target.row(job_id)[3:] == (outcome.result, True)
    assert target.sql(f"SELECT count(*) FROM {TABLE}") == [(300,)]
    assert len(source.requests_to(START)) == 1


def test_an_export_is_settled_with_its_rows_in_the_queues_database(target: TargetFixture, source: SourceServer):
    serve(source, list(archive(map(record, range(300)))), rows=300, polls_before_done=0)
    target.targets.clear()
    job_id = target.enqueue()

    assert isinstance(run_shipped(target, "load.opu"), SettledByTask)

    job = target.queue_db.job(job_id)
    assert (job.status, job.result["rows"]) == (Status.SUCCEEDED, 300)
    assert target.queue_db.sql(f"SELECT count(*) FROM {TABLE}") == [(300,)]


def test_quotes_of_each_source_are_a_transaction(target: TargetFixture, source: SourceServer, place: Any):
    for name, payload in PAYLOADS.items():
        source.add_route("GET", f"/quotes/{name}", Reply.from_json(payload))
    source.add_route("GET", "/quotes/sgx", Reply(b"<html>"))
    target.enqueue()

    outcome = run_shipped(target, "load.tenera")

    assert "sgx: SourceBroken" in outcome.error
    assert {name for (name,) in place("SELECT source FROM quotes.quote_section")} == set(PAYLOADS) - {"sgx"}
