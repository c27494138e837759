"""Other services and operators speak SQL to the tables, and know nothing of ours but the columns."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

from app.queue.job import Status
from tests.support.processes import ROOT
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def listener(desk):
    return desk.listener()


@pytest.fixture
def webhook(desk):
    """Something wants to know of every end."""
    desk.sql("INSERT INTO dl_webhooks (url, secret) VALUES ('http://a', 'x')")
    yield
    desk.sql("DELETE FROM dl_webhooks; DELETE FROM dl_deliveries")


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
        ({"status": "succeeded"}, "scheduled"),
    ],
)
def test_a_job_that_is_due_when_it_comes_stands_among_the_ready_ones_at_once(desk, columns, wait_state):
    assert desk.wait_state(desk.insert(**columns)) == wait_state


def test_a_plain_insert_rings_is_journaled_and_is_found_by_the_next_claim(desk, listener):
    job_id = desk.insert(producer="billing")

    assert listener.payloads() == ["q"]
    assert desk.wait_state(job_id) == "ready"
    event = desk.queue.events(job_id)[0]
    assert (event.kind, event.queue) == ("queued", "q")
    assert event.payload == {"status": "queued", "attempt": 0, "task": "t", "producer": "billing"}
    (run,) = desk.claim()
    assert (run.id, run.args_text, run.priority, run.max_attempts, run.lease_ttl_sec) == (job_id, "{}", 100, 5, 60)
    desk.settle(run)
    desk.check_invariants()


def test_many_rows_of_one_insert_ring_once_a_queue(desk, listener):
    desk.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key)"
        " SELECT CASE WHEN n < 50 THEN 'a' ELSE 'b' END, 't', 'k' || n FROM generate_series(1, 100) n"
    )

    assert sorted(listener.payloads()) == ["a", "b"]
    assert desk.fetch_row("SELECT count(*) FROM dl_job_events WHERE kind = 'queued'") == 100
    assert len(desk.claim(100, queue="a")) == 49
    assert len(desk.claim(100, queue="b")) == 51


def test_plain_inserts_are_claimed_in_order_with_all_others(desk):
    middle = desk.enqueue("a", priority=5)
    last = desk.insert("b", priority=9)
    first = desk.insert("c", priority=1)

    assert [run.id for run in desk.claim(3)] == [first, middle, last]


def test_a_finished_job_that_is_inserted_as_history_neither_rings_nor_waits(desk, listener):
    job_id = desk.insert(status="succeeded", finished_at="2026-01-01")

    assert listener.payloads() == []
    assert desk.event_kinds(job_id) == []
    assert desk.claim() == []


def test_a_service_that_may_only_insert_can_insert(own_desk):
    desk = own_desk
    role = "dl_only_inserts"
    desk.sql(f"DROP ROLE IF EXISTS {role}")
    desk.sql(f"CREATE ROLE {role}")
    try:
        desk.sql(f"GRANT INSERT ON dl_jobs TO {role}")
        with desk.open_transaction() as step:
            step(f"SET LOCAL ROLE {role}")
            step("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')")

        (run,) = desk.claim()
        assert desk.event_kinds(run.id) == ["queued", "picked"]
    finally:
        desk.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_an_insert_that_is_rolled_back_leaves_neither_a_job_nor_a_ring(desk, listener):
    connection = desk.connect()
    connection.cursor().execute("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')")
    connection.rollback()

    assert listener.payloads() == []
    assert desk.fetch_row("SELECT count(*) FROM dl_job_events") == 0


def test_what_claims_heartbeats_and_ends_change_rings_nobody(desk, listener):
    run = desk.enqueue_and_claim()
    listener.payloads()

    desk.renew(run, {"done": 1})
    desk.settle(run)

    assert listener.payloads() == []


def test_deleting_a_job_deletes_its_events(desk):
    run = desk.enqueue_and_claim()
    desk.sql("DELETE FROM dl_jobs")

    assert desk.fetch_row("SELECT count(*) FROM dl_job_events") == 0
    assert desk.settle(run).outcome == "not ours"


# ── UPDATE by an operator ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_operator_who_moves_a_time_moves_the_job(desk, listener):
    job_id = desk.enqueue()
    listener.payloads()

    desk.sql("UPDATE dl_jobs SET available_at = now() + interval '1 hour'")
    assert desk.wait_state(job_id) == "scheduled"
    assert desk.claim() == []
    desk.sql("UPDATE dl_jobs SET available_at = now()")

    assert listener.payloads() == ["q", "q"]
    assert [run.id for run in desk.claim()] == [job_id]


def test_a_parked_job_whose_time_an_operator_moves_is_sorted_again(desk):
    desk.enqueue_and_claim()
    waiting = desk.enqueue()
    assert desk.claim() == []
    assert desk.wait_state(waiting) == "blocked"

    desk.sql("UPDATE dl_jobs SET available_at = now() - interval '1 s' WHERE job_id = %s", str(waiting))
    assert desk.wait_state(waiting) == "ready"
    assert desk.claim() == []
    assert desk.wait_state(waiting) == "blocked"


def test_an_operator_who_changes_the_priority_changes_the_turn(desk):
    first, second = desk.enqueue("a"), desk.enqueue("b")
    desk.sql("UPDATE dl_jobs SET priority = 1 WHERE job_id = %s", str(second))

    assert [run.id for run in desk.claim(2)] == [second, first]


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.LOST])
def test_a_finished_job_put_back_by_hand_starts_afresh(desk, listener, end):
    run = desk.enqueue_and_claim(max_attempts=1)
    if end is Status.CANCELED:
        desk.queue.cancel(run.id)
    if end is Status.LOST:
        desk.lose_attempt(run)
    else:
        desk.settle(run, end)
    assert desk.status(run.id) is end
    listener.payloads()

    desk.sql("UPDATE dl_jobs SET status = 'queued'")

    job = desk.job(run.id)
    assert (job.attempt, job.cancel_requested, job.finished_at, desk.wait_state(run.id)) == (0, False, None, "ready")
    assert listener.payloads() == ["q"]
    desk.check_invariants()
    (again,) = desk.claim()
    assert (again.id, again.attempt) == (run.id, 1)
    assert desk.renew(again) is False
    assert desk.settle(again).outcome == "applied"
    desk.check_invariants()


def test_a_running_job_put_back_by_hand_is_its_owners_no_more(desk):
    run = desk.enqueue_and_claim(max_attempts=1)

    desk.sql("UPDATE dl_jobs SET status = 'queued'")

    job = desk.job(run.id)
    assert (job.attempt, job.lease_expires_at) == (0, None)
    assert desk.renew(run) is None
    assert desk.settle(run).outcome == "not ours"
    desk.check_invariants()
    (again,) = desk.claim()
    assert again.attempt == 1
    desk.settle(again)
    desk.check_invariants()


def test_a_running_job_that_was_ended_by_hand_is_its_owners_no_more(desk):
    run = desk.enqueue_and_claim()
    waiting = desk.enqueue()
    assert desk.claim() == []

    desk.sql("UPDATE dl_jobs SET status = 'canceled', finished_at = now() WHERE job_id = %s", str(run.id))

    assert desk.settle(run).outcome == "not ours"
    assert desk.status(run.id) is Status.CANCELED
    assert desk.repair_blocked() == ("k",)  # nobody freed the key, so the sweep finds its next job
    assert [again.id for again in desk.claim()] == [waiting]


def test_the_key_of_a_running_job_cannot_be_given_to_a_second_one_by_hand(desk):
    desk.enqueue_and_claim()
    other = desk.enqueue("other")

    connection = desk.connect(autocommit=True)
    with pytest.raises(Exception, match="dl_jobs_running_key_idx"):
        connection.cursor().execute(
            "UPDATE dl_jobs SET status = 'running', lock_key = 'k' WHERE job_id = %s", (str(other),)
        )


# ── max_attempts = 0 ────────────────────────────────────────────────────────────────────────────────────────────────


def ended_without_run(desk, job_id, status: Status) -> None:
    job = desk.job(job_id)
    assert (job.status, job.attempt, job.run_id, desk.wait_state(job_id)) == (status, 0, None, "scheduled")
    assert job.finished_at is not None
    assert desk.claim() == []
    desk.check_invariants()


@pytest.mark.parametrize("available_at", ["2001-02-03", "2999-01-01"])
def test_job_without_attempts_fails_without_a_run(desk, webhook, available_at):
    job_id = desk.insert(max_attempts=0, available_at=available_at)

    ended_without_run(desk, job_id, Status.FAILED)
    assert desk.job(job_id).error == "max_attempts is 0: the job may have no attempt"
    assert desk.event_kinds(job_id) == ["queued", "failed"]
    assert desk.queue.events(job_id)[-1].payload["error"] == desk.job(job_id).error
    assert desk.sql("SELECT event FROM dl_deliveries") == [("job.failed",)]


def test_jobs_with_attempts_of_the_same_insert_stay(desk):
    desk.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, max_attempts)"
        " SELECT 'q', 't', 'k' || n, n % 2 FROM generate_series(1, 10) n"
    )

    assert desk.sql("SELECT status::text, count(*) FROM dl_jobs GROUP BY 1 ORDER BY 1") == [
        ("failed", 5),
        ("queued", 5),
    ]
    assert len(desk.claim(10)) == 5


def test_attempts_taken_away_from_a_queued_job_fail_it(desk):
    job_id = desk.enqueue()

    desk.sql("UPDATE dl_jobs SET max_attempts = 0")

    ended_without_run(desk, job_id, Status.FAILED)
    assert desk.queue.retry(job_id).status is Status.FAILED
    desk.check_invariants()


# ── cancel_requested ────────────────────────────────────────────────────────────────────────────────────────────────

CANCEL = "UPDATE dl_jobs SET cancel_requested = true"


@pytest.mark.parametrize("wait_state", ["scheduled", "ready", "blocked"])
def test_cancel_by_update_ends_a_queued_job_at_once(desk, webhook, wait_state):
    columns = {"available_at": "2999-01-01"} if wait_state == "scheduled" else {}
    job_id = desk.insert(webhook='{"url": "http://b"}', **columns)
    if wait_state == "blocked":
        desk.sql("UPDATE dl_jobs SET wait_state = 'blocked'")
    assert desk.wait_state(job_id) == wait_state

    desk.sql(CANCEL)
    desk.sql(CANCEL)

    ended_without_run(desk, job_id, Status.CANCELED)
    assert desk.job(job_id).error is None
    assert desk.event_kinds(job_id) == ["queued", "canceled"]
    assert desk.sql("SELECT event, url FROM dl_deliveries ORDER BY url") == [
        ("job.canceled", "http://b"),
        ("job.canceled", None),
    ]


def test_cancel_by_update_unblocks_next_job_of_the_key(desk, listener):
    first, second, third = desk.enqueue(priority=1), desk.enqueue(priority=2), desk.enqueue(priority=3)
    desk.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id <> %s", str(first))
    listener.payloads()

    desk.sql(CANCEL + " WHERE job_id <> %s", str(third))

    assert [desk.status(job_id) for job_id in (first, second)] == [Status.CANCELED] * 2
    assert desk.wait_state(third) == "ready"
    assert listener.payloads() == ["q"]
    assert [run.id for run in desk.claim()] == [third]


def test_cancel_by_update_unblocks_nothing_while_the_key_runs(desk):
    desk.enqueue_and_claim()
    second, third = desk.enqueue(), desk.enqueue()
    assert desk.claim(2) == []

    desk.sql(CANCEL + " WHERE job_id = %s", str(second))

    assert (desk.status(second), desk.wait_state(third)) == (Status.CANCELED, "blocked")


def test_open_transaction_with_a_cancel_holds_up_no_end(desk):
    """A person may leave it open for long; all ends of the process would wait with this one."""
    run, waiting, _ = desk.enqueue_and_claim(), desk.enqueue(), desk.enqueue()
    assert desk.claim(2) == []
    with desk.open_transaction() as step:
        step(CANCEL + f" WHERE job_id = '{waiting}'")
        desk.session.execute_raw("SET statement_timeout = '2s'")
        assert desk.settle(run).status is Status.SUCCEEDED

    desk.check_invariants()


def test_cancel_by_update_leaves_a_held_key_to_the_sweep(desk):
    """To wait for the key's lock with the row locked would be a deadlock with a transaction that waits for the row."""
    first, second = desk.enqueue(), desk.enqueue()
    desk.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id = %s", str(second))
    with desk.open_transaction() as step:
        step("SELECT pg_advisory_xact_lock(1684828526, hashtext('k'))")
        desk.sql(CANCEL + " WHERE job_id = %s", str(first))

    assert (desk.status(first), desk.wait_state(second)) == (Status.CANCELED, "blocked")
    assert desk.repair_blocked() == ("k",)


def test_cancel_by_update_notifies_worker_of_a_running_job_once(desk):
    control = desk.listener("dl_control")
    run = desk.enqueue_and_claim()

    desk.sql(CANCEL)
    desk.sql(CANCEL)
    desk.queue.cancel(run.id)

    assert control.payloads() == [f"cancel {run.run_id}"]
    assert desk.event_kinds(run.id) == ["queued", "picked", "cancel_requested"]
    assert desk.settle(run, Status.FAILED).status is Status.CANCELED
    desk.check_invariants()


def test_cancel_by_an_older_version_is_journaled_once(desk):
    """Its statement writes the event itself, and its processes may run beside ours."""
    run = desk.enqueue_and_claim()

    desk.sql(
        "WITH canceled AS ("
        "    UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s RETURNING job_id, queue, attempt)"
        " INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)"
        " SELECT job_id, queue, clock_timestamp(), 'cancel_requested',"
        "        jsonb_build_object('status', 'running', 'attempt', attempt) FROM canceled",
        str(run.id),
    )

    assert desk.event_kinds(run.id) == ["queued", "picked", "cancel_requested"]


def test_cancel_by_update_of_a_finished_job_changes_nothing(desk):
    run = desk.enqueue_and_claim()
    desk.settle(run)

    desk.sql(CANCEL)

    assert (desk.status(run.id), desk.event_kinds(run.id)) == (Status.SUCCEEDED, ["queued", "picked", "done"])


def test_job_inserted_with_its_cancel_asked_for_is_canceled(desk):
    ended_without_run(desk, desk.insert(cancel_requested=True), Status.CANCELED)


def test_cancel_by_update_of_many_jobs_takes_no_lock_for_each_key(desk):
    """The server's lock table has room for some thousand."""
    desk.sql("INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'q', 't', 'k' || n FROM generate_series(1, 300) n")

    with desk.open_transaction() as step:
        step(CANCEL)
        (held,) = step("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
    assert held == (0,)
    assert desk.fetch_row("SELECT count(*) FROM dl_jobs WHERE status = 'canceled'") == 300


# ── in a schema of its own ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_inserted_from_any_search_path_is_journaled_in_the_queues_own_schema(empty_dsn):
    from app.db.schema import migrate

    migrate(empty_dsn, 'The "queue"')
    desk = QueueFixture(empty_dsn, schema='The "queue"')
    desk.sql("INSERT INTO \"The \"\"queue\"\"\".dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')")

    (run,) = desk.claim()
    desk.settle(run, Status.QUEUED, retry_in_sec=5)

    assert desk.event_kinds(run.id) == ["queued", "picked", "requeue"]
    assert desk.job(run.id).available_at - desk.queue.events(run.id)[-1].ts == timedelta(seconds=5)
    desk.close()


def test_a_pipeline_that_changes_how_psycopg2_reads_uuids_for_all_does_no_harm(desk):
    code = (
        "import psycopg2.extras, sys\n"
        "psycopg2.extras.register_uuid()\n"
        "from app.queue.job import NewJob, Settlement, Status\n"
        "from app.queue.job import new_run_ids\n"
        "from app.queue.jobs import JobQueue\n"
        "from app.db.connection import Session\n"
        "queue = JobQueue(Session(sys.argv[1], application_name='x'))\n"
        "made = queue.enqueue(NewJob(queue='u', task='t', lock_key='u'))\n"
        "(job,), _ = queue.claim('u', ['t'], new_run_ids(1), 'w')\n"
        "queue.settle([(job, Settlement(Status.SUCCEEDED))])\n"
        "assert queue.get(made.job_id).status is Status.SUCCEEDED\n"
        "assert queue.events(made.job_id)[-1].job_id == made.job_id\n"
    )
    done = subprocess.run([sys.executable, "-c", code, desk.dsn], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
