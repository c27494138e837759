"""Claims and sweeps that lock the same limits at the same time wait for each other in one direction only."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from psycopg2.extensions import parse_dsn, quote_ident

from dataloader.app.features.limits.breakers import Breakers
from dataloader.app.features.limits.rows import Limits
from dataloader.app.queue.batch import enqueue_batch
from dataloader.app.queue.claims import FIRST_TURN, ClaimMode, ClaimRequest
from dataloader.app.queue.job import ClaimedJob, NewJob, Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.state.queues import Queues
from tests.support import eventually
from tests.support.databases import execute_sql


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


def test_settlement_that_closes_a_breaker_and_claim_do_not_deadlock(queue_db):
    breakers, limits = Breakers(queue_db.session), Limits(queue_db.session)
    hashes = {name: queue_db.fetch_row("SELECT hashtext(%s)", name) for name in (f"limit {n}" for n in range(50))}
    task_hash = queue_db.fetch_row("SELECT hashtext('task:t')")
    limit = next(name for name, its_hash in hashes.items() if its_hash < task_hash)
    limits.set(limit, concurrency=5)
    breakers.set("t", failures=1)
    queue_db.enqueue("probe", limits={limit: 1})
    (probe,) = queue_db.claim()
    queue_db.sql("UPDATE dl_breakers SET state = 'half_open'")
    queue_db.enqueue("next", limits={limit: 1})
    holder, settler, claimer = queue_db.new_session(), queue_db.new_queue(), queue_db.new_queue()
    holder.execute_raw("BEGIN")
    holder.execute_raw("SELECT dl_lock_limits(ARRAY['task:t'])")
    errors: list[Exception] = []

    settlement = run(lambda: settler.settle([(probe, Settlement(Status.SUCCEEDED))]), errors)
    eventually(lambda: waiting_locks(queue_db) == 1)
    claim = run(lambda: queue_db.claim_once(1, by=claimer), errors)
    eventually(lambda: waiting_locks(queue_db) == 2)
    holder.execute_raw("COMMIT")
    settlement.join(20)
    claim.join(20)

    assert errors == []


class Traffic:
    """Threads that do at random what processes and callers do, over few rows, limits and breakers."""

    def __init__(self, queue_db, seed: int) -> None:
        session = queue_db.new_session()
        self._random = random.Random(seed)
        self._queue, self._session = JobQueue(session), session
        self._limits, self._breakers = Limits(session), Breakers(session)
        self._queues = Queues(session)
        self._running: list[ClaimedJob] = []
        self._turn = FIRST_TURN

    def step(self) -> None:
        acts: dict[Callable[[], object], int] = {
            self._enqueue: 6, self._debounce: 3, self._claim: 8, self._claim_in_turn: 8, self._settle: 8,
            self._cancel: 2, self._queue.expire: 3, self._change_limit: 1, self._change_breaker: 2,
            self._breakers.probe: 2, self._limits.wake: 2,
        }  # fmt: skip
        self._random.choices(list(acts), weights=list(acts.values()))[0]()

    def _new_job(self, **rules: Any) -> NewJob:
        draw = self._random
        return NewJob(
            queue=draw.choice("qf"), task=draw.choice("tu"), lock_key=f"k{draw.randrange(12)}",
            args={"tenant": draw.choice("abc")}, limits={f"l{n}": 1 for n in draw.sample(range(4), 2)}, **rules,
        )  # fmt: skip

    def _enqueue(self) -> None:
        enqueue_batch(self._session, [self._new_job(start_within_sec=1) for _ in range(3)])

    def _debounce(self) -> None:
        keys = self._random.sample("de", 2)
        new = [self._new_job(debounce={"key": key, "wait_sec": 0.01, "args": "list"}) for key in keys]
        # The key belongs to one queue and task.
        enqueue_batch(self._session, [NewJob(**{**vars(job), "queue": "q", "task": "t"}) for job in new])

    def _claim(self) -> None:
        claimed, _ = self._queue.claim("q", ["t", "u"], new_run_ids(3), "w")
        self._running += claimed

    def _claim_in_turn(self) -> None:
        request = ClaimRequest(ClaimMode.IN_TURN, self._turn)
        claimed, hint = self._queue.claim("f", ["t", "u"], new_run_ids(3), "w", request)
        self._turn = hint.next_start or self._turn
        self._running += claimed

    def _settle(self) -> None:
        ended, self._running = self._running[:4], self._running[4:]
        endings = [Settlement(Status.SUCCEEDED), Settlement(Status.FAILED, error="it broke")]
        self._queue.settle([(job, self._random.choice(endings)) for job in ended])

    def _cancel(self) -> None:
        rows = self._session.execute_raw("SELECT job_id FROM dl_jobs WHERE status = 'queued' ORDER BY random() LIMIT 1")
        for (job_id,) in rows:
            self._queue.cancel(UUID(job_id))

    def _change_limit(self) -> None:
        self._limits.set(f"l{self._random.randrange(4)}", concurrency=self._random.randint(1, 3))

    def _change_breaker(self) -> None:
        self._breakers.set(self._random.choice("tu"), failures=2, resume_sec=1)
        self._session.execute_raw("UPDATE dl_breakers SET probe_at = clock_timestamp() WHERE state = 'open'")


@pytest.mark.superuser("deadlock_timeout, so that a deadlock is found at once")
def test_no_deadlock_in_random_traffic(queue_db, superuser):
    database = quote_ident(parse_dsn(queue_db.dsn)["dbname"], queue_db.db)
    execute_sql(superuser(queue_db.dsn), f"ALTER DATABASE {database} SET deadlock_timeout = '10ms'")
    Queues(queue_db.session).change_settings("f", fair="args.tenant")
    for n in range(4):
        Limits(queue_db.session).set(f"l{n}", concurrency=2)
    for task in "tu":
        Breakers(queue_db.session).set(task, failures=2, resume_sec=1)
    errors: list[Exception] = []

    def work(traffic: Traffic) -> None:
        ends_at = time.monotonic() + 8
        while time.monotonic() < ends_at and not errors:
            traffic.step()

    threads = [run(partial(work, Traffic(queue_db, seed)), errors) for seed in range(8)]
    for thread in threads:
        thread.join(60)
    queue_db.sql("DELETE FROM dl_queues")

    assert errors == []
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE status = 'succeeded'") > 10
