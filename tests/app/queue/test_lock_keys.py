"""Jobs of one lock_key never run at the same time, and waiting for a key costs nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest

from app.queue.job import ReleaseReason, ReleaseRequest, Settlement, Status, new_run_ids
from app.queue.jobs import JobQueue
from tests.support import eventually


@pytest.fixture
def hot(desk):
    """A running job, and three that wait for its key in two queues: (running, best, middle, worst)."""
    running = desk.enqueue_and_claim()
    worst = desk.enqueue(priority=9)
    best = desk.enqueue(queue="r", priority=1)
    middle = desk.enqueue(priority=5)
    assert desk.claim(5) == []
    assert desk.claim(5, queue="r") == []
    assert [desk.wait_state(job) for job in (worst, best, middle)] == ["blocked"] * 3
    return running, best, middle, worst


def ready(desk) -> list:
    return [row[0] for row in desk.sql("SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready'")]


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_of_a_busy_key_is_parked_once_and_told_so(desk):
    desk.enqueue_and_claim()
    waiting = desk.enqueue()

    taken, outlook = desk.claim_once()
    assert (taken, outlook.skipped) == ([], 1)
    version = desk.fetch_row("SELECT xmin::text FROM dl_jobs WHERE job_id = %s", str(waiting))
    for _ in range(3):
        assert desk.claim_once() == ([], type(outlook)(0, None))

    assert desk.fetch_row("SELECT xmin::text FROM dl_jobs WHERE job_id = %s", str(waiting)) == version
    assert desk.event_kinds(waiting) == ["queued"]
    assert desk.job(waiting).attempt == 0


def test_other_keys_are_not_held_back_by_a_hot_one(desk):
    for n in range(20):
        desk.enqueue("hot", priority=n)
    others = [desk.enqueue(f"cold {n}") for n in range(3)]

    runs = desk.claim(4)

    assert [run.lock_key for run in runs] == ["hot", "cold 0", "cold 1", "cold 2"]
    assert [run.id for run in runs[1:]] == others
    assert desk.fetch_row("SELECT count(*) FROM dl_jobs WHERE wait_state = 'blocked'") == 19


def test_of_one_keys_jobs_in_one_batch_the_best_runs(desk):
    desk.enqueue(priority=5)
    best = desk.enqueue(priority=1)

    assert [run.id for run in desk.claim(10)] == [best]


def test_jobs_of_one_key_run_one_after_the_other_in_order_across_queues(desk, hot):
    running, best, middle, worst = hot
    order = []
    while True:
        desk.settle(running)
        runs = desk.claim(3) + desk.claim(3, queue="r")
        if not runs:
            break
        (running,) = runs
        order.append(running.id)

    assert order == [best, middle, worst]
    assert desk.fetch_row("SELECT count(*) FROM dl_job_events WHERE kind = 'picked'") == 4  # no claim in vain
    desk.check_invariants()


# ── waking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def retried(desk, run):
    desk.settle(run, Status.QUEUED, retry_in_sec=3600)


def settled(desk, run):
    desk.settle(run)


def released(desk, run):
    desk.release(run)
    desk.queue.cancel(run.id)


def reaped(desk, run):
    desk.lose_attempt(run, pause_sec=3600)


def canceled(desk, run):
    desk.queue.cancel(run.id)
    desk.settle(run, Status.CANCELED)


@pytest.mark.parametrize("free", [settled, retried, released, reaped, canceled])
def test_whatever_frees_a_key_wakes_its_best_job_and_rings_its_queue(desk, hot, free):
    running, best, middle, worst = hot
    listener = desk.listener()

    free(desk, running)

    assert desk.wait_state(best) == "ready"
    assert "r" in listener.payloads()
    assert [run.id for run in desk.claim(queue="r")] == [best]
    desk.settle(desk.queue.recover_claim([desk.job(best).run_id])[0])
    assert desk.wait_state(middle) == "ready"
    assert desk.wait_state(worst) in ("ready", "blocked")
    desk.check_invariants()


def test_a_canceled_job_passes_its_turn_on(desk, hot):
    running, best, middle, _ = hot
    desk.settle(running)
    assert desk.wait_state(best) == "ready"

    desk.queue.cancel(best)

    assert desk.wait_state(middle) == "ready"


def test_the_cancel_of_a_waiting_job_wakes_nobody_while_its_key_is_busy(desk, hot):
    _, best, middle, worst = hot

    desk.queue.cancel(best)

    assert [desk.wait_state(job) for job in (middle, worst)] == ["blocked", "blocked"]


def test_the_sweep_finds_what_nobody_woke(desk, hot):
    running, best, middle, _ = hot
    desk.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(running.id))

    assert desk.claim(5) == []
    assert desk.queue.repair_blocked(after="", recently_repaired=["k"]).unblocked == ()
    sweep = desk.queue.repair_blocked(after="", recently_repaired=[])

    assert (sweep.unblocked, sweep.cursor) == (("k",), "k")
    assert [desk.wait_state(job) for job in (best, middle)] == ["ready", "blocked"]
    assert [run.id for run in desk.claim(queue="r")] == [best]


def test_the_sweep_leaves_busy_keys_alone_and_goes_through_all_in_turns(desk):
    for key in ("", "a", "b", "c", "d"):
        desk.enqueue_and_claim(key)
        desk.enqueue(key)
        assert desk.claim() == []
    assert desk.queue.repair_blocked(after="", recently_repaired=[]).unblocked == ()
    desk.sql("DELETE FROM dl_jobs WHERE status = 'running' AND lock_key <> 'c'")

    woken, after = [], ""
    for _ in range(9):
        sweep = desk.queue.repair_blocked(after=after, recently_repaired=[], limit=2)
        woken += sweep.unblocked
        after = sweep.cursor
        if not after:
            break

    assert after == ""
    assert sorted(woken) == ["", "a", "b", "d"]


def test_two_sweeps_do_not_work_at_the_same_time(desk, hot):
    running, *_ = hot
    desk.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(running.id))
    with desk.open_transaction() as step:
        step("SELECT pg_advisory_xact_lock(1684828527, 0)")
        assert desk.repair_blocked() == ()

    assert desk.repair_blocked() == ("k",)


# ── two at once ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_claim_that_meets_a_change_of_the_key_leaves_the_job_and_says_so(desk):
    job_id = desk.enqueue()
    with desk.open_transaction() as step:
        step("SELECT pg_advisory_xact_lock(1684828526, hashtext('k'))")

        taken, outlook = desk.claim_once()

        assert (taken, outlook.skipped) == ([], 1)
        assert desk.wait_state(job_id) == "ready"

    assert [run.id for run in desk.claim()] == [job_id]


def test_two_sessions_never_get_two_jobs_of_one_key(desk):
    for _ in range(40):
        desk.enqueue("k")
    queues = [desk.new_queue() for _ in range(4)]

    def drain(queue) -> int:
        done = 0
        while desk.fetch_row("SELECT EXISTS (SELECT FROM dl_jobs WHERE status <> 'succeeded')"):
            runs, _ = desk.claim_once(3, by=queue)
            assert len(runs) <= 1
            queue.settle([(run, Settlement(Status.SUCCEEDED)) for run in runs])
            done += len(runs)
        return done

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(drain, queues)) == 40

    assert desk.fetch_row("SELECT count(*) FROM dl_jobs WHERE attempt <> 1") == 0
    desk.check_invariants()  # no two of them ran at a time


# ── the session's lock ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_zombie_keeps_its_successor_out_until_its_session_is_gone(desk):
    zombie = desk.new_session()
    run = desk.enqueue_and_claim()
    assert JobQueue(zombie).lock_keys([run]) == [(True, True)]
    desk.lose_attempt(run)
    (successor,) = desk.claim()

    assert desk.queue.lock_keys([successor]) == [(False, True)]
    assert desk.release(successor, ReleaseReason.LOCK_BUSY).status is Status.QUEUED
    assert (desk.wait_state(run.id), desk.job(run.id).attempt) == ("blocked", 1)
    assert desk.repair_blocked() == ()
    assert desk.claim() == []

    zombie.close()
    assert eventually(desk.repair_blocked) == ("k",)  # the server takes a moment to see that it has gone
    (successor,) = desk.claim()
    assert desk.queue.lock_keys([successor]) == [(True, True)]
    assert (successor.attempt, desk.settle(successor).outcome) == (2, "applied")
    desk.check_invariants()


def test_a_guard_says_when_the_run_is_not_ours_any_more(desk):
    kept, lost = desk.enqueue_and_claim("a"), desk.enqueue_and_claim("b")
    desk.lose_attempt(lost)

    assert desk.queue.lock_keys([lost, kept]) == [(True, False), (True, True)]


@pytest.mark.parametrize("end", ["settle", "release", "unguard"])
def test_the_end_of_a_run_gives_its_sessions_lock_back(desk, end):
    run = desk.enqueue_and_claim()
    other = desk.new_queue()
    desk.queue.lock_keys([run])
    assert other.lock_keys([run]) == [(False, True)]

    if end == "settle":
        desk.settle(run, guards=[run.key_hash])
    elif end == "release":
        desk.release(run, unlock_keys=[run.key_hash])
    else:
        desk.queue.unlock_keys([run.key_hash])

    assert other.lock_keys([run])[0][0] is True


def test_a_settlement_that_comes_too_late_still_gives_the_lock_back(desk):
    run = desk.enqueue_and_claim()
    desk.queue.lock_keys([run])
    desk.lose_attempt(run)

    assert desk.settle(run, guards=[run.key_hash]).outcome == "not ours"
    assert desk.new_queue().lock_keys([run])[0][0] is True


# ── two keys with one hash ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def twins(shared_dsn) -> tuple[str, str]:
    """Two keys that PostgreSQL hashes to the same number."""
    connection = psycopg2.connect(shared_dsn)
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT min(n), max(n) FROM (SELECT n, hashtext('key ' || n) AS h FROM generate_series(1, 200000) n) k"
                " GROUP BY h HAVING count(*) > 1 LIMIT 1"
            )
            ((one, two),) = cursor.fetchall()
            return f"key {one}", f"key {two}"
    finally:
        connection.close()


def test_two_keys_with_one_hash_run_side_by_side_in_one_process(desk, twins):
    runs = [desk.enqueue_and_claim(key) for key in twins]
    assert runs[0].key_hash == runs[1].key_hash

    assert desk.queue.lock_keys(runs) == [(True, True), (True, True)]
    assert desk.settle(runs[0], guards=[runs[0].key_hash]).outcome == "applied"
    assert desk.new_queue().lock_keys([runs[1]]) == [(False, True)]  # the lock was taken twice and given back once
    assert desk.settle(runs[1], guards=[runs[1].key_hash]).outcome == "applied"


def test_two_keys_with_one_hash_cost_another_process_a_wait_and_nothing_else(desk, twins):
    here = desk.enqueue_and_claim(twins[0])
    desk.queue.lock_keys([here])
    other = desk.new_queue()
    job_id = desk.enqueue(twins[1])
    ((there,), _) = desk.claim_once(by=other)
    assert other.lock_keys([there]) == [(False, True)]
    other.release([ReleaseRequest(there, ReleaseReason.LOCK_BUSY)])
    assert desk.repair_blocked() == ()

    desk.settle(here, guards=[here.key_hash])
    assert desk.wait_state(job_id) == "blocked"  # its own key was never freed, for it was never busy
    assert desk.repair_blocked() == (twins[1],)
    ((there,), _) = desk.claim_once(by=other)

    assert there.attempt == 1
    assert other.lock_keys([there]) == [(True, True)]
    desk.check_invariants()


def test_two_keys_with_one_hash_are_claimed_and_settled_in_one_batch(desk, twins):
    for key in twins:
        desk.enqueue(key)
        desk.enqueue(key)

    runs = desk.claim(4)
    fates = desk.queue.settle([(run, Settlement(Status.SUCCEEDED)) for run in runs])

    assert sorted(run.lock_key for run in runs) == sorted(twins)
    assert [fate.outcome for fate in fates] == ["applied"] * 2
    assert len(ready(desk)) == 2


def test_a_timed_job_of_a_busy_key_is_parked_when_it_falls_due(desk):
    running = desk.enqueue_and_claim()
    job_id = desk.enqueue(available_at=datetime.now(UTC) + timedelta(hours=1))
    assert desk.claim() == []
    assert desk.wait_state(job_id) == "scheduled"

    desk.make_due(job_id)
    assert desk.promote() == 1
    assert desk.claim() == []
    assert desk.wait_state(job_id) == "blocked"
    desk.settle(running)

    assert [run.id for run in desk.claim()] == [job_id]


def test_a_claim_that_looks_further_gets_past_a_long_row_of_one_busy_key(desk):
    desk.enqueue("hot")
    assert len(desk.claim_once(1)[0]) == 1
    for _ in range(30):
        desk.enqueue("hot")
    desk.enqueue("cool")

    nearby, outlook = desk.queue.claim("q", ["t"], new_run_ids(1), "w")
    further, _ = desk.queue.claim("q", ["t"], new_run_ids(1), "w", scan=40)

    assert (nearby, outlook.skipped) == ([], 1)
    assert [job.lock_key for job in further] == ["cool"]
    assert desk.fetch_row("SELECT count(*) FROM dl_jobs WHERE wait_state = 'blocked'") == 30
