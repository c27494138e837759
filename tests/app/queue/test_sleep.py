"""A bell is left out only where somebody looks anyway: each order in which an insert and a falling asleep may meet."""

from __future__ import annotations

from uuid import uuid4

import pytest

from app.queue.job import WorkerInfo
from app.queue.sleep import Sleep
from tests.support.desk import Aside, Desk
from tests.support.waiting import eventually

HELD = "SELECT pg_advisory_xact_lock(1684828530, hashtext('q'))"
BLOCKED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = 1684828530"
INSERT = "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')"


def a_process(desk: Desk, *queues: str) -> Sleep:
    """A live worker process that serves these queues, and has said nothing yet."""
    worker = uuid4()
    info = WorkerInfo(worker, "w", "0", queues or ("q",), ("t",), 1)
    desk.queue.register_worker(info, heartbeat_sec=3600)
    return Sleep(desk.another_session(), worker)


@pytest.fixture
def process(desk) -> Sleep:
    return a_process(desk)


@pytest.fixture
def listener(desk):
    return desk.listener()


# ── who is rung for ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_that_sleeps_is_rung_and_one_that_is_awake_is_not(desk, process, listener):
    process.mark(["q"], asleep=True)
    desk.insert()
    assert listener.heard() == ["q"]

    process.mark(["q"], asleep=False)
    desk.insert()
    desk.enqueue()
    desk.settle(desk.claimed("r", queue="q", priority=0), retry_in=0)
    assert listener.heard() == []


def test_whoever_frees_a_key_rings_only_for_one_that_sleeps(desk, process, listener):
    process.mark(["q"], asleep=False)
    first = desk.claimed("k")
    for _ in range(2):
        desk.enqueue("k")
    assert desk.claim() == []
    listener.heard()

    desk.settle(first)
    assert listener.heard() == []
    (second,) = desk.claim()
    process.mark(["q"], asleep=True)
    desk.settle(second)
    assert listener.heard() == ["q"]


def test_one_that_has_said_nothing_is_rung(desk, process, listener):
    desk.insert()

    assert listener.heard() == ["q"]


def test_of_two_that_serve_a_queue_each_must_be_awake(desk, process, listener):
    process.mark(["q"], asleep=False)
    other = a_process(desk)
    desk.insert()
    other.mark(["q"], asleep=True)
    desk.insert()
    assert listener.heard() == ["q", "q"]

    other.mark(["q"], asleep=False)
    desk.insert()
    assert listener.heard() == []


def test_the_word_of_a_process_that_is_gone_counts_for_nothing(desk, process, listener):
    process.mark(["q"], asleep=False)
    desk.sql("UPDATE dl_workers SET seen_at = now() - interval '1 day', heartbeat_sec = 1")

    desk.insert()

    assert listener.heard() == ["q"]
    process.forget()
    assert desk.one("SELECT count(*) FROM dl_watch") == 0


def test_a_queue_that_no_process_serves_is_rung_for_once_as_long_as_a_job_waits(desk, listener):
    a_process(desk, "another").mark(["another"], asleep=True)
    desk.enqueue("a")
    desk.enqueue("b")
    desk.insert("c")
    assert listener.heard() == ["q"]

    desk.claim(3)
    desk.enqueue("d")
    assert listener.heard() == ["q"]


def test_plain_inserts_into_a_queue_that_no_process_serves_are_no_different(desk, listener):
    a_process(desk, "another").mark(["another"], asleep=False)
    desk.insert("a")
    desk.insert("b")

    assert listener.heard() == ["q"]


def test_where_no_process_lives_every_insert_rings(desk, listener):
    desk.enqueue("a")
    desk.enqueue("b")

    assert listener.heard() == ["q", "q"]


# ── the orders in which they meet ───────────────────────────────────────────────────────────────────────────────────


def test_an_insert_that_stayed_silent_is_waited_for_before_the_last_look(desk, process, listener):
    """Insert sees `awake` … mark … insert commits."""
    process.mark(["q"], asleep=False)
    with desk.held() as step:
        step(INSERT)
        process.mark(["q"], asleep=True)
        assert desk.claim() == [], "the job cannot be seen yet"
        assert not process.is_quiet("q"), "so it must not be slept yet"

    assert listener.heard() == []
    assert process.is_quiet("q")
    assert len(desk.claim()) == 1


def test_an_insert_that_stayed_silent_and_fails_is_waited_for_too(desk, process):
    process.mark(["q"], asleep=False)
    connection = desk.connect()
    connection.cursor().execute(INSERT)
    process.mark(["q"], asleep=True)
    assert not process.is_quiet("q")

    connection.rollback()

    assert process.is_quiet("q")
    assert desk.claim() == []


def test_an_insert_that_has_seen_awake_and_not_yet_the_lock_sees_the_mark_that_came_between(desk, process, listener):
    """Insert sees `awake` … mark, lock, look … insert has the lock."""
    process.mark(["q"], asleep=False)
    with desk.held() as step:
        step(HELD)  # the process makes sure at this moment
        inserting = Aside(desk.insert)
        eventually(lambda: step(BLOCKED)[0][0] == 1, message="the insert waits for the lock")
        process.mark(["q"], asleep=True)

    inserting.result()
    assert listener.heard() == ["q"]


def test_an_insert_after_the_mark_rings_whatever_the_process_does_meanwhile(desk, process, listener):
    """Mark … insert … quiet, look."""
    process.mark(["q"], asleep=False)
    process.mark(["q"], asleep=True)
    with desk.held() as step:
        step(INSERT)
        assert process.is_quiet("q"), "it need not be waited for: it rings"
        assert desk.claim() == []
        assert listener.heard() == []

    assert listener.heard() == ["q"]


def test_an_insert_of_a_transaction_with_an_old_view_rings(desk, process, listener):
    process.mark(["q"], asleep=False)
    connection = desk.connect()
    connection.set_session(isolation_level="REPEATABLE READ")
    connection.cursor().execute("SELECT count(*) FROM dl_jobs")  # from now on it sees `awake`
    process.mark(["q"], asleep=True)
    assert process.is_quiet("q")
    assert desk.claim() == []

    connection.cursor().execute(INSERT)
    connection.commit()

    assert listener.heard() == ["q"]


def test_a_second_insert_that_relied_on_the_first_is_waited_for_by_a_process_that_starts(desk, listener):
    """Nobody serves the queue; the first rings, the second does not; a process starts, takes the first, looks again."""
    a_process(desk, "another").mark(["another"], asleep=True)
    desk.enqueue("a")
    with desk.held() as step:
        step(INSERT)
        starting = a_process(desk)
        assert len(desk.claim()) == 1
        starting.mark(["q"], asleep=True)
        assert desk.claim() == []
        assert not starting.is_quiet("q")

    assert listener.heard() == ["q"]
    assert starting.is_quiet("q")
    assert len(desk.claim()) == 1


def test_those_who_stay_silent_do_not_wait_for_each_other(desk, process):
    process.mark(["q"], asleep=False)
    with desk.held() as step:
        step(INSERT)
        Aside(desk.insert, "other").result()

    assert desk.one("SELECT count(*) FROM dl_jobs") == 2


def test_many_queues_of_one_statement_are_each_rung_or_not(desk, process, listener):
    process.mark(["q"], asleep=False)
    a_process(desk, "r").mark(["r"], asleep=True)

    desk.sql("INSERT INTO dl_jobs (queue, task, lock_key) SELECT unnest('{q,r,q,r}'::text[]), 't', 'k'")

    assert listener.heard() == ["r"]
