"""Jobs of one lock_key never run at the same time, and waiting for a key costs nothing."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg2
import pytest

from dataloader.app.queue.claims import ClaimRequest
from dataloader.app.queue.job import Released, ReleaseReason, Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from tests.support import eventually

APP = Path(__file__).parents[3] / "app"


@pytest.fixture
def hot(queue_db):
    """A running job, and three that wait for its key in two queues: (running, best, middle, worst)."""
    running = queue_db.enqueue_and_claim()
    worst = queue_db.enqueue(priority=9)
    best = queue_db.enqueue(queue="r", priority=1)
    middle = queue_db.enqueue(priority=5)
    assert queue_db.claim(5) == []
    assert queue_db.claim(5, queue="r") == []
    assert [queue_db.wait_state(job) for job in (worst, best, middle)] == ["blocked"] * 3
    return running, best, middle, worst


def ready(queue_db) -> list:
    return [
        row[0] for row in queue_db.sql("SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready'")
    ]


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_job_of_busy_key_is_blocked_once_and_reported(queue_db):
    queue_db.enqueue_and_claim()
    waiting = queue_db.enqueue()

    taken, outlook = queue_db.claim_once()
    assert (taken, outlook.skipped) == ([], 1)
    version = queue_db.fetch_row("SELECT xmin::text FROM dl_jobs WHERE job_id = %s", str(waiting))
    for _ in range(3):
        assert queue_db.claim_once() == ([], type(outlook)(0, None))

    assert queue_db.fetch_row("SELECT xmin::text FROM dl_jobs WHERE job_id = %s", str(waiting)) == version
    assert queue_db.event_kinds(waiting) == ["queued"]
    assert queue_db.job(waiting).attempt == 0


def test_other_keys_are_not_held_back_by_a_hot_one(queue_db):
    for n in range(20):
        queue_db.enqueue("hot", priority=n)
    others = [queue_db.enqueue(f"cold {n}") for n in range(3)]

    runs = queue_db.claim(4)

    assert [run.lock_key for run in runs] == ["hot", "cold 0", "cold 1", "cold 2"]
    assert [run.id for run in runs[1:]] == others
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE wait_state = 'blocked'") == 19


def test_of_one_keys_jobs_in_one_batch_the_best_runs(queue_db):
    queue_db.enqueue(priority=5)
    best = queue_db.enqueue(priority=1)

    assert [run.id for run in queue_db.claim(10)] == [best]


def test_jobs_of_one_key_run_in_order_across_queues(queue_db, hot):
    running, best, middle, worst = hot
    order = []
    while True:
        queue_db.settle(running)
        runs = queue_db.claim(3) + queue_db.claim(3, queue="r")
        if not runs:
            break
        (running,) = runs
        order.append(running.id)

    assert order == [best, middle, worst]
    assert queue_db.fetch_row("SELECT count(*) FROM dl_job_events WHERE kind = 'picked'") == 4  # no claim in vain
    queue_db.check_invariants()


# ── waking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def retried(queue_db, run):
    queue_db.settle(run, Status.QUEUED, retry_in_sec=3600)


def settled(queue_db, run):
    queue_db.settle(run)


def released(queue_db, run):
    queue_db.release(run)
    queue_db.queue.cancel(run.id)


def reaped(queue_db, run):
    queue_db.lose_attempt(run, pause_sec=3600)


def canceled(queue_db, run):
    queue_db.queue.cancel(run.id)
    queue_db.settle(run, Status.CANCELED)


@pytest.mark.parametrize("free", [settled, retried, released, reaped, canceled])
def test_freed_key_unblocks_best_job_and_notifies_queue(queue_db, hot, free):
    running, best, middle, worst = hot
    listener = queue_db.listener()

    free(queue_db, running)

    assert queue_db.wait_state(best) == "ready"
    assert "r" in listener.payloads()
    assert [run.id for run in queue_db.claim(queue="r")] == [best]
    queue_db.settle(queue_db.queue.recover_claim([queue_db.job(best).run_id])[0])
    assert queue_db.wait_state(middle) == "ready"
    assert queue_db.wait_state(worst) in ("ready", "blocked")
    queue_db.check_invariants()


def test_a_canceled_job_passes_its_turn_on(queue_db, hot):
    running, best, middle, _ = hot
    queue_db.settle(running)
    assert queue_db.wait_state(best) == "ready"

    queue_db.queue.cancel(best)

    assert queue_db.wait_state(middle) == "ready"


def test_cancel_of_queued_job_unblocks_none_while_key_is_busy(queue_db, hot):
    _, best, middle, worst = hot

    queue_db.queue.cancel(best)

    assert [queue_db.wait_state(job) for job in (middle, worst)] == ["blocked", "blocked"]


def test_sweep_unblocks_forgotten_jobs(queue_db, hot):
    running, best, middle, _ = hot
    queue_db.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(running.id))

    assert queue_db.claim(5) == []
    sweep = queue_db.queue.repair_blocked(after="")

    assert (sweep.unblocked, sweep.cursor, sweep.made_ready) == (("k",), "k", (best,))
    assert [queue_db.wait_state(job) for job in (best, middle)] == ["ready", "blocked"]
    assert queue_db.queue.repair_blocked(after="", repaired_jobs=sweep.made_ready).unblocked == ()
    assert [run.id for run in queue_db.claim(queue="r")] == [best]


def test_key_of_a_repaired_job_that_waits_again_is_repaired_again(queue_db, hot):
    """A claim may find the limit of the job full, or its task unknown: the key is free then."""
    running, best, middle, _ = hot
    queue_db.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(running.id))
    sweep = queue_db.queue.repair_blocked(after="")
    queue_db.sql("UPDATE dl_jobs SET wait_state = 'limited', waits_on = 'w' WHERE job_id = %s", str(best))

    again = queue_db.queue.repair_blocked(after="", repaired_jobs=sweep.made_ready)

    assert again.made_ready == (middle,)
    assert queue_db.wait_state(middle) == "ready"


def test_sweep_skips_busy_keys_and_visits_all_in_turn(queue_db):
    for key in ("", "a", "b", "c", "d"):
        queue_db.insert(key)
        assert len(queue_db.claim()) == 1
        queue_db.insert(key)
        assert queue_db.claim() == []
    assert queue_db.queue.repair_blocked(after="").unblocked == ()
    queue_db.sql("DELETE FROM dl_jobs WHERE status = 'running' AND lock_key <> 'c'")

    woken, after = [], ""
    for _ in range(9):
        sweep = queue_db.queue.repair_blocked(after=after, limit=2)
        woken += sweep.unblocked
        after = sweep.cursor
        if not after:
            break

    assert after == ""
    assert sorted(woken) == ["", "a", "b", "d"]


def test_two_sweeps_do_not_work_at_the_same_time(queue_db, hot):
    running, *_ = hot
    queue_db.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(running.id))
    with queue_db.open_transaction() as step:
        step("SELECT pg_advisory_xact_lock(1684828527, 0)")
        assert queue_db.repair_blocked() == ()

    assert queue_db.repair_blocked() == ("k",)


# ── two at once ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_claim_racing_key_change_skips_job_and_reports_it(queue_db):
    job_id = queue_db.enqueue()
    with queue_db.open_transaction() as step:
        step("SELECT pg_advisory_xact_lock(1684828526, hashtext('k'))")

        taken, outlook = queue_db.claim_once()

        assert (taken, outlook.skipped) == ([], 1)
        assert queue_db.wait_state(job_id) == "ready"

    assert [run.id for run in queue_db.claim()] == [job_id]


def test_two_sessions_never_get_two_jobs_of_one_key(queue_db):
    for _ in range(40):
        queue_db.enqueue("k")
    queues = [queue_db.new_queue() for _ in range(4)]

    def drain(queue) -> int:
        done = 0
        while queue_db.fetch_row("SELECT EXISTS (SELECT FROM dl_jobs WHERE status <> 'succeeded')"):
            runs, _ = queue_db.claim_once(3, by=queue)
            assert len(runs) <= 1
            queue.settle([(run, Settlement(Status.SUCCEEDED)) for run in runs])
            done += len(runs)
        return done

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(drain, queues)) == 40

    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE attempt <> 1") == 0
    queue_db.check_invariants()  # no two of them ran at a time


# ── the session's lock ──────────────────────────────────────────────────────────────────────────────────────────────


def test_key_lock_of_zombie_keeps_successor_out(queue_db):
    zombie = queue_db.new_session()
    run = queue_db.enqueue_and_claim()
    assert JobQueue(zombie).lock_keys([run]) == [(True, True)]
    queue_db.lose_attempt(run)
    (successor,) = queue_db.claim()

    assert queue_db.queue.lock_keys([successor]) == [(False, True)]
    assert queue_db.release(successor, ReleaseReason.LOCK_BUSY).status is Status.QUEUED
    assert (queue_db.wait_state(run.id), queue_db.job(run.id).attempt) == ("blocked", 1)
    assert queue_db.repair_blocked() == ()
    assert queue_db.claim() == []

    zombie.close()
    assert eventually(queue_db.repair_blocked) == ("k",)  # the server takes a moment to see that it has gone
    (successor,) = queue_db.claim()
    assert queue_db.queue.lock_keys([successor]) == [(True, True)]
    assert (successor.attempt, queue_db.settle(successor).outcome) == (2, "applied")
    queue_db.check_invariants()


def test_a_guard_says_when_the_run_is_not_ours_any_more(queue_db):
    kept, lost = queue_db.enqueue_and_claim("a"), queue_db.enqueue_and_claim("b")
    queue_db.lose_attempt(lost)

    assert queue_db.queue.lock_keys([lost, kept]) == [(True, False), (True, True)]


def test_session_lock_is_held_until_it_is_released(queue_db):
    run = queue_db.enqueue_and_claim()
    other = queue_db.new_queue()
    queue_db.queue.lock_keys([run])
    assert other.lock_keys([run]) == [(False, True)]

    queue_db.queue.unlock_keys([run.key_hash])

    assert other.lock_keys([run]) == [(True, True)]


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


def test_two_keys_with_one_hash_run_side_by_side_in_one_process(queue_db, twins):
    runs = [queue_db.enqueue_and_claim(key) for key in twins]
    assert runs[0].key_hash == runs[1].key_hash

    assert queue_db.queue.lock_keys(runs) == [(True, True), (True, True)]
    queue_db.queue.unlock_keys([runs[0].key_hash])
    assert queue_db.settle(runs[0]).outcome == "applied"
    assert queue_db.new_queue().lock_keys([runs[1]]) == [(False, True)]  # the lock was taken twice and given back once
    assert queue_db.settle(runs[1]).outcome == "applied"


def test_two_keys_with_one_hash_delay_another_process_only(queue_db, twins):
    here = queue_db.enqueue_and_claim(twins[0])
    queue_db.queue.lock_keys([here])
    other = queue_db.new_queue()
    job_id = queue_db.enqueue(twins[1])
    ((there,), _) = queue_db.claim_once(by=other)
    assert other.lock_keys([there]) == [(False, True)]
    other.release([(there, Released(ReleaseReason.LOCK_BUSY))])
    assert queue_db.repair_blocked() == ()

    queue_db.queue.unlock_keys([here.key_hash])
    queue_db.settle(here)
    assert queue_db.wait_state(job_id) == "blocked"  # its own key was never freed, for it was never busy
    assert queue_db.repair_blocked() == (twins[1],)
    ((there,), _) = queue_db.claim_once(by=other)

    assert there.attempt == 1
    assert other.lock_keys([there]) == [(True, True)]
    queue_db.check_invariants()


def test_two_keys_with_one_hash_settle_in_one_batch(queue_db, twins):
    for key in twins:
        queue_db.enqueue(key)
        queue_db.enqueue(key)

    runs = queue_db.claim(4)
    fates = queue_db.queue.settle([(run, Settlement(Status.SUCCEEDED)) for run in runs])

    assert sorted(run.lock_key for run in runs) == sorted(twins)
    assert [fate.outcome for fate in fates] == ["applied"] * 2
    assert len(ready(queue_db)) == 2


def test_a_timed_job_of_a_busy_key_is_parked_when_it_falls_due(queue_db):
    running = queue_db.enqueue_and_claim()
    job_id = queue_db.enqueue(available_at=datetime.now(UTC) + timedelta(hours=1))
    assert queue_db.claim() == []
    assert queue_db.wait_state(job_id) == "scheduled"

    queue_db.make_due(job_id)
    assert queue_db.promote() == 1
    assert queue_db.claim() == []
    assert queue_db.wait_state(job_id) == "blocked"
    queue_db.settle(running)

    assert [run.id for run in queue_db.claim()] == [job_id]


def test_claim_with_larger_scan_passes_jobs_of_one_busy_key(queue_db):
    queue_db.enqueue("hot")
    assert len(queue_db.claim_once(1)[0]) == 1
    for _ in range(30):
        queue_db.enqueue("hot")
    queue_db.enqueue("cool")

    nearby, outlook = queue_db.queue.claim("q", ["t"], new_run_ids(1), "w")
    further, _ = queue_db.queue.claim("q", ["t"], new_run_ids(1), "w", ClaimRequest(scan_limit=40))

    assert (nearby, outlook.skipped) == ([], 1)
    assert [job.lock_key for job in further] == ["cool"]
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE wait_state = 'blocked'") == 30


def test_running_job_of_a_key_is_looked_up_by_a_range():
    """With =, and many dead entries in the index of running jobs, plans read all finished jobs of the key."""
    by_value = re.compile(r"lock_key = \S+ AND (?:\w+\.)?status(?:::text)? = 'running'")
    assert by_value.search("WHERE h.lock_key = j.lock_key AND h.status = 'running'")

    files = [*APP.rglob("*.sql")]
    found = [path.name for path in files if "migrations" not in path.parts and by_value.search(path.read_text())]

    assert len(files) > 10
    assert found == []
