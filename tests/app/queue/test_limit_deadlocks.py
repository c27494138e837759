"""Claims and sweeps that lock the same limits at the same time wait for each other in one direction only."""

from __future__ import annotations

import threading
from collections.abc import Callable

from app.admin.limits import Limits
from tests.support import eventually


def waiting_locks(queue_db) -> int:
    waiting = "locktype = 'advisory' AND classid = 1684828529 AND NOT granted"
    return int(queue_db.fetch_row(f"SELECT count(*) FROM pg_locks WHERE {waiting}"))


def names_against_hashes(queue_db) -> tuple[str, str]:
    """Two names in their order whose hashes are in the other."""
    hashes = {name: queue_db.fetch_row("SELECT hashtext(%s)", name) for name in (f"limit {n}" for n in range(20))}
    return next((a, b) for a in sorted(hashes) for b in sorted(hashes) if a < b and hashes[a] > hashes[b])


def run(work: Callable[[], object], errors: list[Exception]) -> threading.Thread:
    def guarded() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    return thread


def test_sweep_and_claim_do_not_deadlock(queue_db):
    limits = Limits(queue_db.session)
    first, second = names_against_hashes(queue_db)
    for name in (first, second):
        limits.set(name, concurrency=1)
        queue_db.enqueue(f"{name} runs", limits={name: 1})
        queue_db.enqueue(f"{name} waits", limits={name: 1})
    assert len(queue_db.claim(9)) == 2
    queue_db.enqueue("both", limits={first: 1, second: 1})
    holder, sweeper, claimer = queue_db.new_session(), Limits(queue_db.new_session()), queue_db.new_queue()
    holder.execute_raw("BEGIN")
    holder.execute_raw(f"SELECT dl_lock_limits(ARRAY['{first}'])")
    errors: list[Exception] = []

    sweep = run(sweeper.wake, errors)
    eventually(lambda: waiting_locks(queue_db) == 1)
    claim = run(lambda: queue_db.claim_once(3, by=claimer), errors)
    eventually(lambda: waiting_locks(queue_db) == 2)
    holder.execute_raw("COMMIT")
    sweep.join(20)
    claim.join(20)

    assert errors == []


def test_claims_with_busy_keys_do_not_deadlock(queue_db):
    limits = Limits(queue_db.session)
    first, second = names_against_hashes(queue_db)
    for name in (first, second):
        limits.set(name, concurrency=5)
    holder, claimers = queue_db.new_session(), [queue_db.new_queue(), queue_db.new_queue()]
    # Claim n meets a job of one limit that may start, and a job woken for the other limit whose key is busy.
    for queue, own, other in (("q1", first, second), ("q2", second, first)):
        queue_db.enqueue(f"{queue} busy", queue="running")
        assert queue_db.claim(1, queue="running")
        queue_db.enqueue(f"{queue} own", queue=queue, limits={own: 1})
        queue_db.enqueue(f"{queue} busy", queue=queue, limits={other: 1})
        queue_db.sql("UPDATE dl_jobs SET waits_on = %s WHERE queue = %s AND lock_key LIKE '%% busy'", other, queue)
    errors: list[Exception] = []
    holder.execute_raw("BEGIN")
    holder.execute_raw(f"SELECT dl_lock_limits(ARRAY['{first}', '{second}'])")

    threads = [
        run(lambda: queue_db.claim_once(2, by=claimers[0], queue="q1"), errors),
        run(lambda: queue_db.claim_once(2, by=claimers[1], queue="q2"), errors),
    ]
    eventually(lambda: waiting_locks(queue_db) == 2)
    holder.execute_raw("COMMIT")
    for thread in threads:
        thread.join(20)

    assert errors == []
