"""The journal belongs to the jobs: no line without one, and none that outlives it."""

from __future__ import annotations

from uuid import uuid4

import psycopg2
import pytest

from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness

LINE = "INSERT INTO dl_job_events (job_id, queue, kind) VALUES (%s, 'q', 'heartbeat')"
LINES = "SELECT count(*) FROM dl_job_events"


def test_a_line_about_no_job_is_refused(queue_db):
    with pytest.raises(psycopg2.errors.ForeignKeyViolation, match="there is no job"):
        queue_db.sql(LINE, str(uuid4()))

    assert queue_db.sql(LINES) == [(0,)]


def test_one_such_line_among_many_spoils_the_statement(queue_db):
    known = queue_db.enqueue()
    before = queue_db.sql(LINES)

    with pytest.raises(psycopg2.errors.ForeignKeyViolation):
        queue_db.sql(LINE + ", (%s, 'q', 'heartbeat')", str(known), str(uuid4()))

    assert queue_db.sql(LINES) == before


def test_any_writer_may_log_for_existing_job(queue_db):
    job_id = queue_db.enqueue()

    queue_db.sql(LINE, str(job_id))

    assert [event.kind for event in queue_db.queue.events(job_id)] == ["queued", "heartbeat"]


def test_log_line_racing_delete_of_job_is_refused(queue_db):
    job_id = queue_db.enqueue()
    with queue_db.open_transaction() as step:
        step("DELETE FROM dl_jobs WHERE job_id = %s", str(job_id))
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            queue_db.sql("SET lock_timeout = '100ms'; " + LINE, str(job_id))
    queue_db.sql("RESET lock_timeout")

    with pytest.raises(psycopg2.errors.ForeignKeyViolation):
        queue_db.sql(LINE, str(job_id))


@pytest.mark.parametrize("away", ["DELETE FROM dl_jobs", "TRUNCATE dl_jobs", "TRUNCATE dl_jobs, dl_job_events"])
def test_the_lines_go_with_their_jobs(queue_db, away):
    for name in ("a", "b"):
        queue_db.enqueue(name)

    queue_db.sql(away)

    assert queue_db.sql(LINES) == [(0,)]


def test_the_lines_of_other_jobs_stay(queue_db):
    gone, kept = queue_db.enqueue("a"), queue_db.enqueue("b")

    queue_db.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(gone))

    assert queue_db.sql("SELECT DISTINCT job_id::text FROM dl_job_events") == [(str(kept),)]


def test_a_worker_that_claims_and_settles_does_not_look(queue_db):
    """It says that its lines are of rows that the same statement changes."""
    assert queue_db.session.execute_raw("SELECT current_setting('dl.events_checked')") == [("yes",)]


def test_queries_of_functions_use_indexes_on_small_tables(own_queue_db):
    """A session keeps their plans: one with a scan, made now, would be gone through for each line for ever."""
    job, gone = (str(own_queue_db.enqueue(key, idempotency_key=key)) for key in ("a", "b"))
    WorkerLiveness(own_queue_db.session).send_heartbeat(
        WorkerInfo(uuid4(), "w", "0", ("another",), ("t",), 1), heartbeat_sec=3600
    )
    own_queue_db.sql("INSERT INTO dl_webhooks (url, secret) VALUES ('http://example.test', 's')")
    own_queue_db.sql("VACUUM ANALYZE")
    same = '[{"queue": "q", "task": "t", "lock_key": "k", "idempotency_key": "a"}]'
    asked = {
        "a line": (LINE, job, "dl_jobs"),
        "a deletion": ("DELETE FROM dl_jobs WHERE job_id = %s", gone, "dl_job_events_%"),
        "a bell": ("SELECT dl_notify_queue(%s)", "q", "dl_jobs"),
        "a webhook": ("SELECT dl_create_deliveries(ARRAY[%s::uuid])", job, "dl_jobs"),
        "a batch": ("SELECT dl_enqueue_many(%s)", same, "dl_jobs"),
    }
    scans = "SELECT sum(seq_scan) FROM pg_stat_xact_user_tables WHERE relname LIKE %s"

    scanned = []
    with own_queue_db.open_transaction() as step:
        for name, (statement, value, tables) in asked.items():
            before = step(scans, tables)
            step(statement, value)
            if step(scans, tables) != before:
                scanned.append(name)

    assert scanned == []
