"""A notification is left out only where a worker claims anyway, in each order of an insert and a change of
`needs_notification`.
"""

from __future__ import annotations

from uuid import uuid4

import pytest

from app.queue.workers import NotifyStateTable, WorkerInfo, WorkerLiveness
from tests.support.queue_fixture import BackgroundCall, QueueFixture
from tests.support.waiting import eventually

HELD = "SELECT pg_advisory_xact_lock(1684828530, hashtext('q'))"
BLOCKED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = 1684828530"
INSERT = "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')"


def a_process(desk: QueueFixture, *queues: str) -> NotifyStateTable:
    """A live worker process that serves these queues, and has said nothing yet."""
    worker = uuid4()
    info = WorkerInfo(worker, "w", "0", queues or ("q",), ("t",), 1)
    WorkerLiveness(desk.session).beat(info, heartbeat_sec=3600)
    return NotifyStateTable(desk.new_session(), worker)


@pytest.fixture
def process(desk) -> NotifyStateTable:
    return a_process(desk)


@pytest.fixture
def listener(desk):
    return desk.listener()


# ── who is rung for ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_that_sleeps_is_rung_and_one_that_is_awake_is_not(desk, process, listener):
    process.set_needs_notification(["q"], needs_notification=True)
    desk.insert()
    assert listener.payloads() == ["q"]

    process.set_needs_notification(["q"], needs_notification=False)
    desk.insert()
    desk.enqueue()
    desk.settle(desk.enqueue_and_claim("r", queue="q", priority=0), retry_in_sec=0)
    assert listener.payloads() == []


def test_whoever_frees_a_key_rings_only_for_one_that_sleeps(desk, process, listener):
    process.set_needs_notification(["q"], needs_notification=False)
    first = desk.enqueue_and_claim("k")
    for _ in range(2):
        desk.enqueue("k")
    assert desk.claim() == []
    listener.payloads()

    desk.settle(first)
    assert listener.payloads() == []
    (second,) = desk.claim()
    process.set_needs_notification(["q"], needs_notification=True)
    desk.settle(second)
    assert listener.payloads() == ["q"]


def test_one_that_has_said_nothing_is_rung(desk, process, listener):
    desk.insert()

    assert listener.payloads() == ["q"]


def test_of_two_that_serve_a_queue_each_must_be_awake(desk, process, listener):
    process.set_needs_notification(["q"], needs_notification=False)
    other = a_process(desk)
    desk.insert()
    other.set_needs_notification(["q"], needs_notification=True)
    desk.insert()
    assert listener.payloads() == ["q", "q"]

    other.set_needs_notification(["q"], needs_notification=False)
    desk.insert()
    assert listener.payloads() == []


def test_the_word_of_a_process_that_is_gone_counts_for_nothing(desk, process, listener):
    process.set_needs_notification(["q"], needs_notification=False)
    desk.sql("UPDATE dl_workers SET seen_at = now() - interval '1 day', heartbeat_sec = 1")

    desk.insert()

    assert listener.payloads() == ["q"]
    process.clear()
    assert desk.fetch_row("SELECT count(*) FROM dl_notify_state") == 0


def test_a_queue_that_no_process_serves_is_rung_for_once_as_long_as_a_job_waits(desk, listener):
    a_process(desk, "another").set_needs_notification(["another"], needs_notification=True)
    desk.enqueue("a")
    desk.enqueue("b")
    desk.insert("c")
    assert listener.payloads() == ["q"]

    desk.claim(3)
    desk.enqueue("d")
    assert listener.payloads() == ["q"]


def test_plain_inserts_into_a_queue_that_no_process_serves_are_no_different(desk, listener):
    a_process(desk, "another").set_needs_notification(["another"], needs_notification=False)
    desk.insert("a")
    desk.insert("b")

    assert listener.payloads() == ["q"]


def test_where_no_process_lives_every_insert_rings(desk, listener):
    desk.enqueue("a")
    desk.enqueue("b")

    assert listener.payloads() == ["q", "q"]


# ── the orders in which they meet ───────────────────────────────────────────────────────────────────────────────────


def test_an_insert_that_stayed_silent_is_waited_for_before_the_last_look(desk, process, listener):
    """Insert sees `awake` … mark … insert commits."""
    process.set_needs_notification(["q"], needs_notification=False)
    with desk.open_transaction() as step:
        step(INSERT)
        process.set_needs_notification(["q"], needs_notification=True)
        assert desk.claim() == [], "the job cannot be seen yet"
        assert not process.has_no_silent_insert("q"), "so it must not be slept yet"

    assert listener.payloads() == []
    assert process.has_no_silent_insert("q")
    assert len(desk.claim()) == 1


def test_an_insert_that_stayed_silent_and_fails_is_waited_for_too(desk, process):
    process.set_needs_notification(["q"], needs_notification=False)
    connection = desk.connect()
    connection.cursor().execute(INSERT)
    process.set_needs_notification(["q"], needs_notification=True)
    assert not process.has_no_silent_insert("q")

    connection.rollback()

    assert process.has_no_silent_insert("q")
    assert desk.claim() == []


def test_an_insert_that_has_seen_awake_and_not_yet_the_lock_sees_the_mark_that_came_between(desk, process, listener):
    """Insert sees `awake` … mark, lock, look … insert has the lock."""
    process.set_needs_notification(["q"], needs_notification=False)
    with desk.open_transaction() as step:
        step(HELD)  # the process makes sure at this moment
        inserting = BackgroundCall(desk.insert)
        eventually(lambda: step(BLOCKED)[0][0] == 1, message="the insert waits for the lock")
        process.set_needs_notification(["q"], needs_notification=True)

    inserting.result()
    assert listener.payloads() == ["q"]


def test_an_insert_after_the_mark_rings_whatever_the_process_does_meanwhile(desk, process, listener):
    """Mark … insert … quiet, look."""
    process.set_needs_notification(["q"], needs_notification=False)
    process.set_needs_notification(["q"], needs_notification=True)
    with desk.open_transaction() as step:
        step(INSERT)
        assert process.has_no_silent_insert("q"), "it need not be waited for: it rings"
        assert desk.claim() == []
        assert listener.payloads() == []

    assert listener.payloads() == ["q"]


def test_an_insert_of_a_transaction_with_an_old_view_rings(desk, process, listener):
    process.set_needs_notification(["q"], needs_notification=False)
    connection = desk.connect()
    connection.set_session(isolation_level="REPEATABLE READ")
    connection.cursor().execute("SELECT count(*) FROM dl_jobs")  # from now on it sees `awake`
    process.set_needs_notification(["q"], needs_notification=True)
    assert process.has_no_silent_insert("q")
    assert desk.claim() == []

    connection.cursor().execute(INSERT)
    connection.commit()

    assert listener.payloads() == ["q"]


def test_a_second_insert_that_relied_on_the_first_is_waited_for_by_a_process_that_starts(desk, listener):
    """Nobody serves the queue; the first rings, the second does not; a process starts, takes the first, looks again."""
    a_process(desk, "another").set_needs_notification(["another"], needs_notification=True)
    desk.enqueue("a")
    with desk.open_transaction() as step:
        step(INSERT)
        starting = a_process(desk)
        assert len(desk.claim()) == 1
        starting.set_needs_notification(["q"], needs_notification=True)
        assert desk.claim() == []
        assert not starting.has_no_silent_insert("q")

    assert listener.payloads() == ["q"]
    assert starting.has_no_silent_insert("q")
    assert len(desk.claim()) == 1


def test_those_who_stay_silent_do_not_wait_for_each_other(desk, process):
    process.set_needs_notification(["q"], needs_notification=False)
    with desk.open_transaction() as step:
        step(INSERT)
        BackgroundCall(desk.insert, "other").result()

    assert desk.fetch_row("SELECT count(*) FROM dl_jobs") == 2


def test_many_queues_of_one_statement_are_each_rung_or_not(desk, process, listener):
    process.set_needs_notification(["q"], needs_notification=False)
    a_process(desk, "r").set_needs_notification(["r"], needs_notification=True)

    desk.sql("INSERT INTO dl_jobs (queue, task, lock_key) SELECT unnest('{q,r,q,r}'::text[]), 't', 'k'")

    assert listener.payloads() == ["r"]
