"""Restoring missing objects of tables that other sessions write to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dataloader.app.db.repairs import apply_repairs
from dataloader.app.db.schema import migrate
from dataloader.app.errors import SchemaBlocked
from dataloader.app.features.doctor.facts import DatabaseFacts
from dataloader.app.features.doctor.schema import expected_schema, find_repairs
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def queue_db(dsn):
    made = QueueFixture(dsn)
    migrate(dsn)
    yield made
    made.close()


def repairs_of(queue_db):
    return find_repairs(DatabaseFacts(queue_db.session).schema_objects(), expected_schema())


def test_missing_index_is_built_while_jobs_are_written(queue_db):
    queue_db.sql("DROP INDEX dl_jobs_blocked_idx")
    first = str(queue_db.enqueue("a"))

    with ThreadPoolExecutor(1) as threads:
        with queue_db.open_transaction() as step:
            step("UPDATE dl_jobs SET consumer_group = 'x' WHERE job_id = %s", first)
            building = threads.submit(apply_repairs, queue_db.dsn, repairs_of(queue_db))
            queue_db.wait_for_lock_waiters()  # for the transaction that was there before
            run = queue_db.enqueue_and_claim("b")
            assert queue_db.settle(run).outcome == "applied"
            assert not building.done()
        building.result()

    assert repairs_of(queue_db) == []


def test_index_that_a_killed_migration_left_invalid_is_built_again(queue_db):
    queue_db.sql("DROP INDEX dl_jobs_blocked_idx")
    with queue_db.open_transaction() as step:
        step("LOCK TABLE dl_jobs IN ROW EXCLUSIVE MODE")
        with ThreadPoolExecutor(1) as threads:
            building = threads.submit(apply_repairs, queue_db.dsn, repairs_of(queue_db))
            queue_db.wait_for_lock_waiters()
            queue_db.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'dataloader-migrate' AND datname = current_database()"
            )
            assert building.exception() is not None
    assert queue_db.fetch_row("SELECT count(*) FROM pg_index WHERE NOT indisvalid") == 1

    apply_repairs(queue_db.dsn, repairs_of(queue_db))

    assert queue_db.fetch_row("SELECT count(*) FROM pg_index WHERE NOT indisvalid") == 0
    assert repairs_of(queue_db) == []


def test_constraint_that_rows_break_is_not_left_behind(queue_db):
    queue_db.sql("ALTER TABLE dl_jobs DROP CONSTRAINT dl_jobs_chk_positive")
    job_id = str(queue_db.enqueue())
    queue_db.sql("UPDATE dl_jobs SET priority = -1 WHERE job_id = %s", job_id)

    with pytest.raises(SchemaBlocked, match="dl_jobs_chk_positive.*violated by some row"):
        apply_repairs(queue_db.dsn, repairs_of(queue_db))

    assert queue_db.fetch_row("SELECT count(*) FROM pg_constraint WHERE conname = 'dl_jobs_chk_positive'") == 0
    queue_db.sql("UPDATE dl_jobs SET priority = 1 WHERE job_id = %s", job_id)
    apply_repairs(queue_db.dsn, repairs_of(queue_db))
    assert queue_db.fetch_row("SELECT convalidated FROM pg_constraint WHERE conname = 'dl_jobs_chk_positive'") is True
