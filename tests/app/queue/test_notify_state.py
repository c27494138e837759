"""A notification is left out only where a worker claims anyway, in each order of an insert and a change of
`needs_notification`.
"""

from __future__ import annotations

from uuid import uuid4

import pytest

from dataloader.app.queue.workers import NotifyStateTable, WorkerInfo, WorkerLiveness
from tests.support.queue_fixture import BackgroundCall, QueueFixture
from tests.support.waiting import eventually

HELD = "SELECT pg_advisory_xact_lock(1684828530, hashtext('q'))"
BLOCKED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = 1684828530"
INSERT = "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')"


def a_process(queue_db: QueueFixture, *queues: str) -> NotifyStateTable:
    """A live worker process that serves these queues, and has not reported yet."""
    worker = uuid4()
    info = WorkerInfo(worker, "w", "0", queues or ("q",), ("t",), 1)
    WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=3600)
    return NotifyStateTable(queue_db.new_session(), worker)


@pytest.fixture
def process(queue_db) -> NotifyStateTable:
    return a_process(queue_db)


@pytest.fixture
def listener(queue_db):
    return queue_db.listener()


# ── who is rung for ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_that_sleeps_is_rung_and_one_that_is_awake_is_not(queue_db, process, listener):
    process.set_needs_notification(["q"], needs_notification=True)
    queue_db.insert()
    assert listener.payloads() == ["q"]

    process.set_needs_notification(["q"], needs_notification=False)
    queue_db.insert()
    queue_db.enqueue()
    queue_db.settle(queue_db.enqueue_and_claim("r", queue="q", priority=0), retry_in_sec=0)
    assert listener.payloads() == []


def test_freed_key_notifies_only_idle_process(queue_db, process, listener):
    process.set_needs_notification(["q"], needs_notification=False)
    first = queue_db.enqueue_and_claim("k")
    for _ in range(2):
        queue_db.enqueue("k")
    assert queue_db.claim() == []
    listener.payloads()

    queue_db.settle(first)
    assert listener.payloads() == []
    (second,) = queue_db.claim()
    process.set_needs_notification(["q"], needs_notification=True)
    queue_db.settle(second)
    assert listener.payloads() == ["q"]


def test_process_without_state_is_notified(queue_db, process, listener):
    queue_db.insert()

    assert listener.payloads() == ["q"]


def test_of_two_that_serve_a_queue_each_must_be_awake(queue_db, process, listener):
    process.set_needs_notification(["q"], needs_notification=False)
    other = a_process(queue_db)
    queue_db.insert()
    other.set_needs_notification(["q"], needs_notification=True)
    queue_db.insert()
    assert listener.payloads() == ["q", "q"]

    other.set_needs_notification(["q"], needs_notification=False)
    queue_db.insert()
    assert listener.payloads() == []


def test_the_word_of_a_process_that_is_gone_counts_for_nothing(queue_db, process, listener):
    process.set_needs_notification(["q"], needs_notification=False)
    queue_db.sql("UPDATE dl_workers SET seen_at = now() - interval '1 day', heartbeat_sec = 1")

    queue_db.insert()

    assert listener.payloads() == ["q"]
    process.clear()
    assert queue_db.fetch_row("SELECT count(*) FROM dl_notify_state") == 0


def test_unserved_queue_is_notified_once_while_a_job_waits(queue_db, listener):
    a_process(queue_db, "another").set_needs_notification(["another"], needs_notification=True)
    queue_db.enqueue("a")
    queue_db.enqueue("b")
    queue_db.insert("c")
    assert listener.payloads() == ["q"]

    queue_db.claim(3)
    queue_db.enqueue("d")
    assert listener.payloads() == ["q"]


def test_plain_inserts_into_unserved_queue_notify_alike(queue_db, listener):
    a_process(queue_db, "another").set_needs_notification(["another"], needs_notification=False)
    queue_db.insert("a")
    queue_db.insert("b")

    assert listener.payloads() == ["q"]


def test_where_no_process_lives_every_insert_rings(queue_db, listener):
    queue_db.enqueue("a")
    queue_db.enqueue("b")

    assert listener.payloads() == ["q", "q"]


# ── the orders in which they meet ───────────────────────────────────────────────────────────────────────────────────


def test_silent_insert_is_waited_for_before_last_claim(queue_db, process, listener):
    """Insert sees `awake` … mark … insert commits."""
    process.set_needs_notification(["q"], needs_notification=False)
    with queue_db.open_transaction() as step:
        step(INSERT)
        process.set_needs_notification(["q"], needs_notification=True)
        assert queue_db.claim() == [], "the job cannot be seen yet"
        assert not process.has_no_silent_insert("q"), "so it must not be slept yet"

    assert listener.payloads() == []
    assert process.has_no_silent_insert("q")
    assert len(queue_db.claim()) == 1


def test_failed_silent_insert_is_waited_for(queue_db, process):
    process.set_needs_notification(["q"], needs_notification=False)
    connection = queue_db.connect()
    connection.cursor().execute(INSERT)
    process.set_needs_notification(["q"], needs_notification=True)
    assert not process.has_no_silent_insert("q")

    connection.rollback()

    assert process.has_no_silent_insert("q")
    assert queue_db.claim() == []


def test_insert_between_busy_check_and_lock_sees_idle_mark(queue_db, process, listener):
    """Insert sees `awake` … mark, lock, look … insert has the lock."""
    process.set_needs_notification(["q"], needs_notification=False)
    with queue_db.open_transaction() as step:
        step(HELD)  # the process makes sure at this moment
        inserting = BackgroundCall(queue_db.insert)
        eventually(lambda: step(BLOCKED)[0][0] == 1, message="the insert waits for the lock")
        process.set_needs_notification(["q"], needs_notification=True)

    inserting.result()
    assert listener.payloads() == ["q"]


def test_insert_after_idle_mark_always_notifies(queue_db, process, listener):
    """Mark … insert … quiet, look."""
    process.set_needs_notification(["q"], needs_notification=False)
    process.set_needs_notification(["q"], needs_notification=True)
    with queue_db.open_transaction() as step:
        step(INSERT)
        assert process.has_no_silent_insert("q"), "it need not be waited for: it rings"
        assert queue_db.claim() == []
        assert listener.payloads() == []

    assert listener.payloads() == ["q"]


def test_an_insert_of_a_transaction_with_an_old_view_rings(queue_db, process, listener):
    process.set_needs_notification(["q"], needs_notification=False)
    connection = queue_db.connect()
    connection.set_session(isolation_level="REPEATABLE READ")
    connection.cursor().execute("SELECT count(*) FROM dl_jobs")  # from now on it sees `awake`
    process.set_needs_notification(["q"], needs_notification=True)
    assert process.has_no_silent_insert("q")
    assert queue_db.claim() == []

    connection.cursor().execute(INSERT)
    connection.commit()

    assert listener.payloads() == ["q"]


def test_starting_process_waits_for_second_silent_insert(queue_db, listener):
    """Without a worker the first job notifies, the second does not; a process starts and takes both."""
    a_process(queue_db, "another").set_needs_notification(["another"], needs_notification=True)
    queue_db.enqueue("a")
    with queue_db.open_transaction() as step:
        step(INSERT)
        starting = a_process(queue_db)
        assert len(queue_db.claim()) == 1
        starting.set_needs_notification(["q"], needs_notification=True)
        assert queue_db.claim() == []
        assert not starting.has_no_silent_insert("q")

    assert listener.payloads() == ["q"]
    assert starting.has_no_silent_insert("q")
    assert len(queue_db.claim()) == 1


def test_those_who_stay_silent_do_not_wait_for_each_other(queue_db, process):
    process.set_needs_notification(["q"], needs_notification=False)
    with queue_db.open_transaction() as step:
        step(INSERT)
        BackgroundCall(queue_db.insert, "other").result()

    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 2


def test_many_queues_of_one_statement_are_each_rung_or_not(queue_db, process, listener):
    process.set_needs_notification(["q"], needs_notification=False)
    a_process(queue_db, "r").set_needs_notification(["r"], needs_notification=True)

    queue_db.sql("INSERT INTO dl_jobs (queue, task, lock_key) SELECT unnest('{q,r,q,r}'::text[]), 't', 'k'")

    assert listener.payloads() == ["r"]
