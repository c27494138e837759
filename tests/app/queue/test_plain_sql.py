"""Other services and operators speak SQL to the tables, and know nothing of ours but the columns."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.queue.job import Status
from tests.support.databases import another_role, execute_sql
from tests.support.processes import ROOT
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def listener(queue_db):
    return queue_db.listener()


# ── INSERT ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("columns", "wait_state"),
    [
        ({}, "ready"),
        ({"available_at": "2001-02-03"}, "ready"),
        ({"available_at": "-infinity"}, "ready"),
        ({"available_at": "2999-01-01"}, "scheduled"),
        ({"available_at": "infinity"}, "scheduled"),
        ({"wait_state": "blocked"}, "blocked"),
        ({"wait_state": "waiting"}, "ready"),
        ({"wait_state": "limited", "available_at": "2999-01-01"}, "scheduled"),
        ({"status": "succeeded"}, "scheduled"),
    ],
)
def test_due_job_is_ready_at_once(queue_db, columns, wait_state):
    assert queue_db.wait_state(queue_db.insert(**columns)) == wait_state


def test_plain_insert_notifies_has_event_and_is_claimed(queue_db, listener):
    job_id = queue_db.insert(producer="billing")

    assert listener.payloads() == ["q"]
    assert queue_db.wait_state(job_id) == "ready"
    event = queue_db.queue.events(job_id)[0]
    assert (event.kind, event.queue) == ("queued", "q")
    assert event.payload == {"status": "queued", "attempt": 0, "task": "t", "producer": "billing"}
    (run,) = queue_db.claim()
    assert (run.id, run.args_text, run.priority, run.max_attempts, run.lease_ttl_sec) == (job_id, "{}", 100, 5, 60)
    queue_db.settle(run)
    queue_db.check_invariants()


def test_many_rows_of_one_insert_ring_once_a_queue(queue_db, listener):
    queue_db.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key)"
        " SELECT CASE WHEN n < 50 THEN 'a' ELSE 'b' END, 't', 'k' || n FROM generate_series(1, 100) n"
    )

    assert sorted(listener.payloads()) == ["a", "b"]
    assert queue_db.fetch_row("SELECT count(*) FROM dl_job_events WHERE kind = 'queued'") == 100
    assert len(queue_db.claim(100, queue="a")) == 49
    assert len(queue_db.claim(100, queue="b")) == 51


def test_plain_inserts_are_claimed_in_order_with_all_others(queue_db):
    middle = queue_db.enqueue("a", priority=5)
    last = queue_db.insert("b", priority=9)
    first = queue_db.insert("c", priority=1)

    assert [run.id for run in queue_db.claim(3)] == [first, middle, last]


def test_inserted_finished_job_neither_notifies_nor_waits(queue_db, listener):
    job_id = queue_db.insert(status="succeeded", finished_at="2026-01-01")

    assert listener.payloads() == []
    assert queue_db.event_kinds(job_id) == []
    assert queue_db.claim() == []


def test_a_service_that_may_only_insert_can_insert(own_queue_db):
    queue_db = own_queue_db
    with another_role(queue_db.dsn) as role:
        queue_db.sql(f"GRANT INSERT ON dl_jobs TO {role}")
        execute_sql(
            make_dsn(queue_db.dsn, user=role, password="x"),
            "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')",
        )

        (run,) = queue_db.claim()
        assert queue_db.event_kinds(run.id) == ["queued", "picked"]


def test_rolled_back_insert_leaves_no_notification(queue_db, listener):
    connection = queue_db.connect()
    connection.cursor().execute("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')")
    connection.rollback()

    assert listener.payloads() == []
    assert queue_db.fetch_row("SELECT count(*) FROM dl_job_events") == 0


def test_claims_heartbeats_and_settlements_do_not_notify(queue_db, listener):
    run = queue_db.enqueue_and_claim()
    listener.payloads()

    queue_db.renew(run, {"done": 1})
    queue_db.settle(run)

    assert listener.payloads() == []


def test_deleting_a_job_deletes_its_events(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.sql("DELETE FROM dl_jobs")

    assert queue_db.fetch_row("SELECT count(*) FROM dl_job_events") == 0
    assert queue_db.settle(run).outcome == "not ours"


# ── UPDATE by an operator ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_operator_who_moves_a_time_moves_the_job(queue_db, listener):
    job_id = queue_db.enqueue()
    listener.payloads()

    queue_db.sql("UPDATE dl_jobs SET available_at = now() + interval '1 hour'")
    assert queue_db.wait_state(job_id) == "scheduled"
    assert queue_db.claim() == []
    queue_db.sql("UPDATE dl_jobs SET available_at = now()")

    assert listener.payloads() == ["q", "q"]
    assert [run.id for run in queue_db.claim()] == [job_id]


def test_blocked_job_with_changed_time_is_sorted_again(queue_db):
    queue_db.enqueue_and_claim()
    waiting = queue_db.enqueue()
    assert queue_db.claim() == []
    assert queue_db.wait_state(waiting) == "blocked"

    queue_db.sql("UPDATE dl_jobs SET available_at = now() - interval '1 s' WHERE job_id = %s", str(waiting))
    assert queue_db.wait_state(waiting) == "ready"
    assert queue_db.claim() == []
    assert queue_db.wait_state(waiting) == "blocked"


def test_an_operator_who_changes_the_priority_changes_the_turn(queue_db):
    first, second = queue_db.enqueue("a"), queue_db.enqueue("b")
    queue_db.sql("UPDATE dl_jobs SET priority = 1 WHERE job_id = %s", str(second))

    assert [run.id for run in queue_db.claim(2)] == [second, first]


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.LOST])
def test_a_finished_job_put_back_by_hand_starts_afresh(queue_db, listener, end):
    run = queue_db.enqueue_and_claim(max_attempts=1)
    if end is Status.CANCELED:
        queue_db.queue.cancel(run.id)
    if end is Status.LOST:
        queue_db.lose_attempt(run)
    else:
        queue_db.settle(run, end)
    assert queue_db.status(run.id) is end
    listener.payloads()

    queue_db.sql("UPDATE dl_jobs SET status = 'queued'")

    job = queue_db.job(run.id)
    assert (job.attempt, job.cancel_requested, job.finished_at, queue_db.wait_state(run.id)) == (
        0,
        False,
        None,
        "ready",
    )
    assert listener.payloads() == ["q"]
    queue_db.check_invariants()
    (again,) = queue_db.claim()
    assert (again.id, again.attempt) == (run.id, 1)
    assert queue_db.renew(again) is False
    assert queue_db.settle(again).outcome == "applied"
    queue_db.check_invariants()


def test_a_running_job_put_back_by_hand_is_its_owners_no_more(queue_db):
    run = queue_db.enqueue_and_claim(max_attempts=1)

    queue_db.sql("UPDATE dl_jobs SET status = 'queued'")

    job = queue_db.job(run.id)
    assert (job.attempt, job.lease_expires_at) == (0, None)
    assert queue_db.renew(run) is None
    assert queue_db.settle(run).outcome == "not ours"
    queue_db.check_invariants()
    (again,) = queue_db.claim()
    assert again.attempt == 1
    queue_db.settle(again)
    queue_db.check_invariants()


def test_running_job_ended_by_sql_leaves_its_owner(queue_db):
    run = queue_db.enqueue_and_claim()
    waiting = queue_db.enqueue()
    assert queue_db.claim() == []

    queue_db.sql("UPDATE dl_jobs SET status = 'canceled', finished_at = now() WHERE job_id = %s", str(run.id))

    assert queue_db.settle(run).outcome == "not ours"
    assert queue_db.status(run.id) is Status.CANCELED
    assert queue_db.repair_blocked() == ("k",)  # no one freed the key, so the sweep finds its next job
    assert [again.id for again in queue_db.claim()] == [waiting]


def test_sql_cannot_give_running_key_to_second_job(queue_db):
    queue_db.enqueue_and_claim()
    other = queue_db.enqueue("other")

    connection = queue_db.connect(autocommit=True)
    with pytest.raises(Exception, match="dl_jobs_running_key_idx"):
        connection.cursor().execute(
            "UPDATE dl_jobs SET status = 'running', lock_key = 'k' WHERE job_id = %s", (str(other),)
        )


# ── in a schema of its own ──────────────────────────────────────────────────────────────────────────────────────────


def test_insert_from_any_search_path_writes_event_in_own_schema(empty_dsn):
    from dataloader.app.db.schema import migrate

    migrate(empty_dsn, 'The "queue"')
    queue_db = QueueFixture(empty_dsn, schema='The "queue"')
    queue_db.sql("INSERT INTO \"The \"\"queue\"\"\".dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')")

    (run,) = queue_db.claim()
    queue_db.settle(run, Status.QUEUED, retry_in_sec=5)

    assert queue_db.event_kinds(run.id) == ["queued", "picked", "requeue"]
    assert queue_db.job(run.id).available_at - queue_db.queue.events(run.id)[-1].ts == timedelta(seconds=5)
    queue_db.close()


def test_global_uuid_adapter_of_pipeline_does_no_harm(queue_db):
    code = (
        "import psycopg2.extras, sys\n"
        "psycopg2.extras.register_uuid()\n"
        "from dataloader.app.queue.job import NewJob, Settlement, Status\n"
        "from dataloader.app.queue.job import new_run_ids\n"
        "from dataloader.app.queue.jobs import JobQueue\n"
        "from dataloader.app.db.connection import Session\n"
        "queue = JobQueue(Session(sys.argv[1], application_name='x'))\n"
        "made = queue.enqueue(NewJob(queue='u', task='t', lock_key='u'))\n"
        "(job,), _ = queue.claim('u', ['t'], new_run_ids(1), 'w')\n"
        "queue.settle([(job, Settlement(Status.SUCCEEDED))])\n"
        "assert queue.get(made.job_id).status is Status.SUCCEEDED\n"
        "assert queue.events(made.job_id)[-1].job_id == made.job_id\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, queue_db.dsn], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
