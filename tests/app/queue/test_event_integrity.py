"""The journal belongs to the jobs: no line without one, and none that outlives it."""

from __future__ import annotations

from uuid import uuid4

import psycopg2
import pytest

from app.queue.workers import WorkerInfo, WorkerLiveness

LINE = "INSERT INTO dl_job_events (job_id, queue, kind) VALUES (%s, 'q', 'heartbeat')"
LINES = "SELECT count(*) FROM dl_job_events"


def test_a_line_about_no_job_is_refused(desk):
    with pytest.raises(psycopg2.errors.ForeignKeyViolation, match="there is no job"):
        desk.sql(LINE, str(uuid4()))

    assert desk.sql(LINES) == [(0,)]


def test_one_such_line_among_many_spoils_the_statement(desk):
    known = desk.enqueue()
    before = desk.sql(LINES)

    with pytest.raises(psycopg2.errors.ForeignKeyViolation):
        desk.sql(LINE + ", (%s, 'q', 'heartbeat')", str(known), str(uuid4()))

    assert desk.sql(LINES) == before


def test_anybody_may_write_a_line_about_a_job_that_is_there(desk):
    job_id = desk.enqueue()

    desk.sql(LINE, str(job_id))

    assert [event.kind for event in desk.queue.events(job_id)] == ["queued", "heartbeat"]


def test_a_line_that_meets_the_deletion_of_its_job_waits_for_it_and_is_refused(desk):
    job_id = desk.enqueue()
    with desk.open_transaction() as step:
        step("DELETE FROM dl_jobs WHERE job_id = %s", str(job_id))
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            desk.sql("SET lock_timeout = '100ms'; " + LINE, str(job_id))
    desk.sql("RESET lock_timeout")

    with pytest.raises(psycopg2.errors.ForeignKeyViolation):
        desk.sql(LINE, str(job_id))


@pytest.mark.parametrize("away", ["DELETE FROM dl_jobs", "TRUNCATE dl_jobs", "TRUNCATE dl_jobs, dl_job_events"])
def test_the_lines_go_with_their_jobs(desk, away):
    for name in ("a", "b"):
        desk.enqueue(name)

    desk.sql(away)

    assert desk.sql(LINES) == [(0,)]


def test_the_lines_of_other_jobs_stay(desk):
    gone, kept = desk.enqueue("a"), desk.enqueue("b")

    desk.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(gone))

    assert desk.sql("SELECT DISTINCT job_id::text FROM dl_job_events") == [(str(kept),)]


def test_a_worker_that_claims_and_settles_does_not_look(desk):
    """It says that its lines are of rows that the same statement changes."""
    assert desk.session.execute_raw("SELECT current_setting('dl.events_checked')") == [("yes",)]


def test_what_triggers_and_functions_ask_goes_along_indexes_though_the_tables_are_small(own_desk):
    """A session keeps their plans: one with a scan, made now, would be gone through for each line for ever."""
    job, gone = (str(own_desk.enqueue(key, idempotency_key=key)) for key in ("a", "b"))
    WorkerLiveness(own_desk.session).beat(WorkerInfo(uuid4(), "w", "0", ("another",), ("t",), 1), heartbeat_sec=3600)
    own_desk.sql("INSERT INTO dl_webhooks (url, secret) VALUES ('http://example.test', 's')")
    own_desk.sql("VACUUM ANALYZE")
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
    with own_desk.open_transaction() as step:
        for name, (statement, value, tables) in asked.items():
            before = step(scans, tables)
            step(statement, value)
            if step(scans, tables) != before:
                scanned.append(name)

    assert scanned == []
