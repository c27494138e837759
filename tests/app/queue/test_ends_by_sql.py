"""A queued job that an UPDATE or INSERT of another service ends: its cancel is requested, or it may have no attempt."""

from __future__ import annotations

import pytest

from dataloader.app.queue.job import Status


@pytest.fixture
def listener(queue_db):
    return queue_db.listener()


@pytest.fixture
def webhook(queue_db):
    """Something wants to know of every end."""
    queue_db.sql("INSERT INTO dl_webhooks (url, secret) VALUES ('http://a', 'x')")
    yield
    queue_db.sql("DELETE FROM dl_webhooks; DELETE FROM dl_deliveries")


# ── max_attempts = 0 ────────────────────────────────────────────────────────────────────────────────────────────────


def ended_without_run(queue_db, job_id, status: Status) -> None:
    job = queue_db.job(job_id)
    assert (job.status, job.attempt, job.run_id, queue_db.wait_state(job_id)) == (status, 0, None, "scheduled")
    assert job.finished_at is not None
    assert queue_db.claim() == []
    queue_db.check_invariants()


@pytest.mark.parametrize("available_at", ["2001-02-03", "2999-01-01"])
def test_job_without_attempts_fails_without_a_run(queue_db, webhook, available_at):
    job_id = queue_db.insert(max_attempts=0, available_at=available_at)

    ended_without_run(queue_db, job_id, Status.FAILED)
    assert queue_db.job(job_id).error == "max_attempts is 0: the job may have no attempt"
    assert queue_db.event_kinds(job_id) == ["queued", "failed"]
    assert queue_db.queue.events(job_id)[-1].payload["error"] == queue_db.job(job_id).error
    assert queue_db.sql("SELECT event FROM dl_deliveries") == [("job.failed",)]


def test_jobs_with_attempts_of_the_same_insert_stay(queue_db):
    queue_db.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, max_attempts)"
        " SELECT 'q', 't', 'k' || n, n % 2 FROM generate_series(1, 10) n"
    )

    assert queue_db.sql("SELECT status::text, count(*) FROM dl_jobs GROUP BY 1 ORDER BY 1") == [
        ("failed", 5),
        ("queued", 5),
    ]
    assert len(queue_db.claim(10)) == 5


def test_attempts_taken_away_from_a_queued_job_fail_it(queue_db):
    job_id = queue_db.enqueue()

    queue_db.sql("UPDATE dl_jobs SET max_attempts = 0")

    ended_without_run(queue_db, job_id, Status.FAILED)
    assert queue_db.queue.retry(job_id).status is Status.FAILED
    queue_db.check_invariants()


# ── cancel_requested ────────────────────────────────────────────────────────────────────────────────────────────────

CANCEL = "UPDATE dl_jobs SET cancel_requested = true"


@pytest.mark.parametrize("wait_state", ["scheduled", "ready", "blocked"])
def test_cancel_by_update_ends_a_queued_job_at_once(queue_db, webhook, wait_state):
    columns = {"available_at": "2999-01-01"} if wait_state == "scheduled" else {}
    job_id = queue_db.insert(webhook='{"url": "http://b"}', **columns)
    if wait_state == "blocked":
        queue_db.sql("UPDATE dl_jobs SET wait_state = 'blocked'")
    assert queue_db.wait_state(job_id) == wait_state

    queue_db.sql(CANCEL)
    queue_db.sql(CANCEL)

    ended_without_run(queue_db, job_id, Status.CANCELED)
    assert queue_db.job(job_id).error is None
    assert queue_db.event_kinds(job_id) == ["queued", "canceled"]
    assert queue_db.sql("SELECT event, url FROM dl_deliveries ORDER BY url") == [
        ("job.canceled", "http://b"),
        ("job.canceled", None),
    ]


def test_cancel_by_update_unblocks_next_job_of_the_key(queue_db, listener):
    first, second, third = queue_db.enqueue(priority=1), queue_db.enqueue(priority=2), queue_db.enqueue(priority=3)
    queue_db.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id <> %s", str(first))
    listener.payloads()

    queue_db.sql(CANCEL + " WHERE job_id <> %s", str(third))

    assert [queue_db.status(job_id) for job_id in (first, second)] == [Status.CANCELED] * 2
    assert queue_db.wait_state(third) == "ready"
    assert listener.payloads() == ["q"]
    assert [run.id for run in queue_db.claim()] == [third]


def test_cancel_by_update_unblocks_nothing_while_the_key_runs(queue_db):
    queue_db.enqueue_and_claim()
    second, third = queue_db.enqueue(), queue_db.enqueue()
    assert queue_db.claim(2) == []

    queue_db.sql(CANCEL + " WHERE job_id = %s", str(second))

    assert (queue_db.status(second), queue_db.wait_state(third)) == (Status.CANCELED, "blocked")


def test_open_transaction_with_a_cancel_holds_up_no_end(queue_db):
    """A person may leave it open for long; all ends of the process would wait with this one."""
    run, waiting, _ = queue_db.enqueue_and_claim(), queue_db.enqueue(), queue_db.enqueue()
    assert queue_db.claim(2) == []
    with queue_db.open_transaction() as step:
        step(CANCEL + f" WHERE job_id = '{waiting}'")
        queue_db.session.execute_raw("SET statement_timeout = '2s'")
        assert queue_db.settle(run).status is Status.SUCCEEDED

    queue_db.check_invariants()


def test_cancel_by_update_leaves_a_held_key_to_the_sweep(queue_db):
    """To wait for the key's lock with the row locked would be a deadlock with a transaction that waits for the row."""
    first, second = queue_db.enqueue(), queue_db.enqueue()
    queue_db.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id = %s", str(second))
    with queue_db.open_transaction() as step:
        step("SELECT pg_advisory_xact_lock(1684828526, hashtext('k'))")
        queue_db.sql(CANCEL + " WHERE job_id = %s", str(first))

    assert (queue_db.status(first), queue_db.wait_state(second)) == (Status.CANCELED, "blocked")
    assert queue_db.repair_blocked() == ("k",)


def test_cancel_by_update_notifies_worker_of_a_running_job_once(queue_db):
    control = queue_db.listener("dl_control")
    run = queue_db.enqueue_and_claim()

    queue_db.sql(CANCEL)
    queue_db.sql(CANCEL)
    queue_db.queue.cancel(run.id)

    assert control.payloads() == [f"cancel {run.run_id}"]
    assert queue_db.event_kinds(run.id) == ["queued", "picked", "cancel_requested"]
    assert queue_db.settle(run, Status.FAILED).status is Status.CANCELED
    queue_db.check_invariants()


def test_cancel_by_an_older_version_is_journaled_once(queue_db):
    """Its statement writes the event itself, and its processes may run next to ours."""
    run = queue_db.enqueue_and_claim()

    queue_db.sql(
        "WITH canceled AS ("
        "    UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s RETURNING job_id, queue, attempt)"
        " INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)"
        " SELECT job_id, queue, clock_timestamp(), 'cancel_requested',"
        "        jsonb_build_object('status', 'running', 'attempt', attempt) FROM canceled",
        str(run.id),
    )

    assert queue_db.event_kinds(run.id) == ["queued", "picked", "cancel_requested"]


def test_cancel_by_update_of_a_finished_job_changes_nothing(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.settle(run)

    queue_db.sql(CANCEL)

    assert (queue_db.status(run.id), queue_db.event_kinds(run.id)) == (Status.SUCCEEDED, ["queued", "picked", "done"])


def test_job_inserted_with_its_cancel_asked_for_is_canceled(queue_db):
    ended_without_run(queue_db, queue_db.insert(cancel_requested=True), Status.CANCELED)


def test_cancel_of_many_jobs_takes_no_lock_per_key(queue_db):
    """The server's lock table has room for some thousand."""
    queue_db.sql("INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'q', 't', 'k' || n FROM generate_series(1, 300) n")

    with queue_db.open_transaction() as step:
        step(CANCEL)
        (held,) = step("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
    assert held == (0,)
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE status = 'canceled'") == 300


ROWS = """INSERT INTO dl_jobs (queue, task, lock_key, wait_state)
          SELECT 'q', 't', {key}, {state} FROM generate_series(1, %s) n"""
GRAPH = """SELECT dl_enqueue_graph(jsonb_build_object('jobs', (
    SELECT jsonb_agg(jsonb_build_object('key', 'k' || n, 'queue', 'q', 'task', 't', 'lock_key', 'k' || n,
                                        'after', CASE WHEN n > 1 THEN '[{"job": "k1"}]' ELSE '[]' END::jsonb))
      FROM generate_series(1, %s) n)))"""


@pytest.mark.parametrize(
    ("insert", "count"),
    [
        (ROWS.format(key="'k' || n", state="'ready'"), 6_000),
        (ROWS.format(key="'k'", state="CASE n WHEN 1 THEN 'ready' ELSE 'blocked' END::dl_wait_state"), 12_000),
        (GRAPH, 6_000),
    ],
    ids=["distinct keys", "one key", "graph"],
)
def test_cancel_by_update_takes_the_same_time_for_each_of_many(queue_db, insert, count):
    """With a search at each job through all that were canceled before, this took a minute."""
    queue_db.sql(insert, count)
    queue_db.sql("ANALYZE dl_jobs")

    with queue_db.open_transaction() as step:
        step("SET LOCAL statement_timeout = '8s'")
        step(CANCEL)
        step("SET CONSTRAINTS ALL IMMEDIATE")  # what otherwise runs at the commit
        assert step("SELECT status, count(*) FROM dl_jobs GROUP BY status") == [("canceled", count)]


def test_cancel_by_update_that_writes_an_event_of_its_own_unblocks_next_job(queue_db):
    first, second = queue_db.enqueue(priority=1), queue_db.enqueue(priority=2)
    queue_db.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id = %s", str(second))

    queue_db.sql(
        "WITH canceled AS (UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s RETURNING job_id, queue)"
        " INSERT INTO dl_job_events (job_id, queue, kind) SELECT job_id, queue, 'note' FROM canceled",
        str(first),
    )

    assert queue_db.status(first) == Status.CANCELED
    assert queue_db.wait_state(second) == "ready"
