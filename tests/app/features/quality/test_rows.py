"""Data checks and datasets: what is read of them, and what is deleted."""

from __future__ import annotations

import pytest

from dataloader.app.db.statements import statements
from dataloader.app.errors import DatasetNotFound
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.jobs.job_search import Filter, JobSearch
from dataloader.app.features.quality.rows import DataQuality
from dataloader.app.queue.job import Reports, Status
from tests.support.queue_fixture import QueueFixture

_DAY_SEC = 86_400.0


def check(name: str = "rows", value: float = 1, outcome: str = "passed") -> dict[str, object]:
    return {
        "name": name, "value": value, "outcome": outcome, "low": None, "high": None, "median": None, "detail": None,
    }  # fmt: skip


def use(dataset: str, kind: str = "produced", **more: object) -> dict[str, object]:
    return {"kind": kind, "dataset": dataset, "partition": None, "rows": None, "schema": None, **more}


def record(queue_db: QueueFixture, *, task: str = "t", age_days: float = 0, **reports: tuple[dict[str, object], ...]):
    """A job of this task that reported this, as long ago; return its id."""
    run = queue_db.enqueue_and_claim(task=task)
    queue_db.settle(run, reports=Reports(**reports))
    for table in ("dl_checks", "dl_dataset_events"):
        queue_db.sql(f"UPDATE {table} SET at = at - %s * interval '1 day' WHERE job_id = %s", age_days, run.id_text)
    return run.id


def test_old_checks_and_events_are_deleted_but_the_last(queue_db: QueueFixture):
    for age_days in (200, 100, 10):
        record(queue_db, age_days=age_days, checks=(check(value=age_days),), datasets=(use("a"),))
    for age_days in (200, 100):
        record(queue_db, age_days=age_days, datasets=(use("b"), use("b", "consumed")))
    quality = DataQuality(queue_db.session)

    assert quality.prune(keep_sec=90 * _DAY_SEC, limit=1) == 1
    assert quality.prune(keep_sec=90 * _DAY_SEC, limit=100) == 3
    assert quality.prune(keep_sec=90 * _DAY_SEC, limit=100) == 0

    assert queue_db.sql("SELECT value FROM dl_checks") == [(10,)]
    left = queue_db.sql("SELECT dataset, kind, (now() - at) > '150 days' FROM dl_dataset_events ORDER BY 1, 2")
    assert left == [("a", "produced", False), ("b", "consumed", False), ("b", "produced", False)]


def test_checks_of_a_task_are_listed_by_name(queue_db: QueueFixture):
    for value in range(5):
        record(queue_db, checks=(check("rows", value), check("nulls", -value)))
    record(queue_db, task="other", checks=(check("rows", 99),))
    quality = DataQuality(queue_db.session)

    found = quality.checks_of_task("t", limit=3)
    assert [(c.name, [result.value for result in c.results]) for c in found.checks] == [
        ("nulls", [-4, -3, -2]), ("rows", [4, 3, 2]),
    ]  # fmt: skip
    assert [c.name for c in quality.checks_of_task("t", name="rows").checks] == ["rows"]
    assert quality.checks_of_task("nobody").checks == quality.checks_of_task("t", name="x").checks == []


def test_datasets_are_listed_with_last_update_and_users(queue_db: QueueFixture):
    record(queue_db, age_days=2, task="old", datasets=(use("sales", rows=1),))
    last = record(
        queue_db, age_days=1, task="load", datasets=(use("sales", rows=2, partition="p"), use("orders", "consumed"))
    )
    record(queue_db, task="report", datasets=(use("sales", "consumed"),))
    quality = DataQuality(queue_db.session)

    orders, sales = quality.datasets().datasets
    assert (orders.dataset, orders.updated_at, orders.producers, orders.consumers) == ("orders", None, 0, 1)
    assert (sales.task, sales.job_id, sales.partition_key, sales.rows) == ("load", last, "p", 2)
    assert (sales.producers, sales.consumers, sales.stale) == (2, 1, False)
    first = quality.datasets(limit=1)
    assert (first.datasets, first.next) == ([orders], "orders")
    assert quality.datasets(after="orders").datasets == [sales]


def test_dataset_has_updates_of_all_its_tasks(queue_db: QueueFixture):
    for age_days, task in enumerate(("a", "b", "a", "c")):
        record(queue_db, age_days=age_days, task=task, datasets=(use("sales", rows=age_days, schema={"of": age_days}),))
    record(queue_db, task="report", datasets=(use("sales", "consumed"),))
    quality = DataQuality(queue_db.session)

    found = quality.dataset("sales", limit=3)
    assert [(update.task, update.rows) for update in found.updates] == [("a", 0), ("b", 1), ("a", 2)]
    assert [event.task for event in found.producers] == ["a", "b", "c"]
    assert [event.task for event in found.consumers] == ["report"]
    assert (found.schema, found.updated_at) == ({"of": 0}, found.updates[0].at)
    with pytest.raises(DatasetNotFound):
        quality.dataset("unknown")


def test_jobs_that_succeeded_with_warnings_are_found(queue_db: QueueFixture):
    warned = record(queue_db, checks=(check(outcome="warned"), check(outcome="passed"), check(outcome="warned")))
    passed = record(queue_db, checks=(check(),))
    run = queue_db.enqueue_and_claim()
    queue_db.settle(run, Status.FAILED, reports=Reports(checks=(check(outcome="failed"), check(outcome="warned"))))
    search = JobSearch(queue_db.session)

    assert [(job.job_id, job.warnings) for job in search.page(Filter(warnings=True)).jobs] == [(warned, 2)]
    assert [job.job_id for job in search.page(Filter(warnings=False)).jobs] == [run.id, passed]
    assert search.count(Filter(warnings=True)).jobs == 1
    assert Filter.from_json(Filter(warnings=False).to_json()) == Filter(warnings=False)
    detail = JobReader(queue_db.session).detail(run.id)
    assert (detail.warnings, [result.outcome for result in detail.checks]) == (None, ["failed", "warned"])


@pytest.mark.parametrize(
    "query", ["datasets", "dataset_tasks", "dataset_updates", "task_checks", "check_history", "job_checks"]
)
def test_reading_walks_an_index(queue_db: QueueFixture, query: str):
    """Thousands of events of few datasets: each name and each task costs one search."""
    queue_db.sql(
        "INSERT INTO dl_dataset_events (dataset, kind, task, job_id, partition_key)"
        " SELECT 'd' || n % 3, CASE n % 2 WHEN 0 THEN 'produced' ELSE 'consumed' END, 't' || n % 5, dl_new_id(), ''"
        " FROM generate_series(1, 20000) n;"
        "INSERT INTO dl_checks (task, name, job_id, attempt, partition_key, value, outcome)"
        " SELECT 't', 'n' || n % 4, dl_new_id(), 1, '', n, 'passed' FROM generate_series(1, 20000) n;"
        "ANALYZE dl_dataset_events; ANALYZE dl_checks"
    )
    parameters = {
        "after": "", "limit": 50, "dataset": "d1", "task": "t", "name": "n1", "max_names": 100, "count": 7,
        "job_id": "00000000-0000-0000-0000-000000000000",
    }  # fmt: skip
    counters = (
        "SELECT sum(seq_tup_read) FROM pg_stat_xact_user_tables WHERE relname IN ('dl_checks', 'dl_dataset_events')"
    )
    with queue_db.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statements("public")[query].text, parameters)
        cursor.execute(counters)
        assert cursor.fetchall() == [(0,)]
