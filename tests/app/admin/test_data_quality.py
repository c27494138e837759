"""Data checks and datasets: what is read of them, and what is deleted."""

from __future__ import annotations

from app.admin.data_quality import DataQuality
from app.queue.job import Reports
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
