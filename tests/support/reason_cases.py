"""A case of each reason that a job can have for being where it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg2

from dataloader.app.acts.reasons import ReasonCode
from dataloader.app.features.limits.breakers import Breakers, BreakerState
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.where.accounts import Accounts
from dataloader.app.queue.attempt_sessions import attempt_application_name
from dataloader.app.queue.job import ClaimedJob, Released, ReleaseReason, Status
from dataloader.app.queue.queues import QueueState
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.app.state.queues import Queues
from dataloader.pipelines.effects import STILL_OPEN
from tests.support.accounts import make_account
from tests.support.queue_fixture import BackgroundCall, QueueFixture
from tests.support.waiting import eventually

DOING = '[{"run_id": "%s", "stop_reason": "cancel", "stop_step": "interrupt"}]'


def worker(queue_db: QueueFixture, threads: int = 2, tasks: tuple[str, ...] = ("t",)) -> UUID:
    info = WorkerInfo(
        uuid4(), "worker-1", "1", ("q", "r"), tasks, 2 * threads, queue_threads={"q": threads, "r": threads}
    )
    WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=60)
    return info.id


def closed(state: QueueState) -> Callable[[QueueFixture], UUID]:
    def make(queue_db: QueueFixture) -> UUID:
        worker(queue_db)
        Queues(queue_db.session).change_settings("q", state=state, changed_by="ann", note="maintenance")
        return queue_db.enqueue()

    return make


def at_limit(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    Queues(queue_db.session).change_settings("q", concurrency=1)
    queue_db.enqueue_and_claim("other")
    return queue_db.enqueue()


def task_unknown(queue_db: QueueFixture) -> UUID:
    worker(queue_db, tasks=("other",))
    return queue_db.enqueue()


def deferred(queue_db: QueueFixture) -> UUID:
    job_id = task_unknown(queue_db)
    queue_db.queue.defer_unknown_tasks("q", ["other"])
    return job_id


def labels_missing(queue_db: QueueFixture) -> UUID:
    job_id = task_unknown(queue_db)
    queue_db.sql('UPDATE dl_workers SET unserved_tasks = \'{"t": {"gpu": true}}\'')
    return job_id


def drained(queue_db: QueueFixture) -> UUID:
    Queues(queue_db.session).drain_worker(worker(queue_db), draining=True)
    return queue_db.enqueue()


def not_due(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    return queue_db.enqueue(available_at=datetime.now(UTC) + timedelta(hours=1))


def key_busy(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    queue_db.enqueue_and_claim("k")
    job_id = queue_db.enqueue("k")
    queue_db.claim_once()
    return job_id


def key_freed(queue_db: QueueFixture) -> UUID:
    job_id = key_busy(queue_db)
    queue_db.sql(
        "UPDATE dl_jobs SET status = 'canceled', finished_at = now(), lease_expires_at = NULL WHERE status = 'running'"
    )
    return job_id


def key_locked(queue_db: QueueFixture) -> UUID:
    job_id = key_freed(queue_db)
    queue_db.sql("SELECT pg_advisory_lock(hashtext('k'))")  # until the session is closed
    return job_id


def limited(**setting: Any) -> Callable[[QueueFixture], UUID]:
    def make(queue_db: QueueFixture) -> UUID:
        worker(queue_db)
        Limits(queue_db.session).set("warehouse", **setting)
        queue_db.enqueue("first", limits={"warehouse": 1})
        job_id = queue_db.enqueue("second", limits={"warehouse": 1})
        queue_db.claim_once(2)
        return job_id

    make.__name__ = "limited"
    return make


def waiting_for_jobs(queue_db: QueueFixture) -> UUID:
    parent = queue_db.enqueue("parent")
    return queue_db.enqueue("child", after=[{"job_id": str(parent)}])


def waiting_for_engine(queue_db: QueueFixture) -> UUID:
    run = queue_db.enqueue_and_claim()
    queue_db.sql(
        "INSERT INTO dl_offloads (name, job_id, run_id, call, number, engine, fingerprint, fence_token)"
        " VALUES ('dl-1', %s, %s, '1', 1, 'ray', 'f', 't')",
        run.id_text,
        run.run_text,
    )
    queue_db.queue.release([(run, Released(ReleaseReason.WAITS, offloads=("dl-1",)))])
    return run.id


def skipped(queue_db: QueueFixture) -> UUID:
    job_id = waiting_for_jobs(queue_db)
    (run,) = queue_db.claim()
    queue_db.settle(run, Status.FAILED)
    return job_id


def per_worker(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    Queues(queue_db.session).change_settings("q", per_worker=1)
    queue_db.enqueue_and_claim("other")
    return queue_db.enqueue()


def threads_busy(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    for key in "ab":
        queue_db.enqueue_and_claim(key)
    return queue_db.enqueue()


def breaker_open(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    Breakers(queue_db.session).set("t", failures=1)
    queue_db.settle(queue_db.enqueue_and_claim("first"), Status.FAILED)
    job_id = queue_db.enqueue()
    queue_db.claim()
    return job_id


def task_paused(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    Breakers(queue_db.session).set("t", state=BreakerState.OPEN, reason="moving")
    job_id = queue_db.enqueue()
    queue_db.claim()
    return job_id


def target_busy(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    run = queue_db.enqueue_and_claim()
    claim_target(queue_db, run)
    queue_db.settle(run, Status.QUEUED, error=f"{STILL_OPEN} 'warehouse'", retry_in_sec=30)
    return run.id


def target_not_fenced(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    run = queue_db.enqueue_and_claim()
    claim_target(queue_db, run, "it has no table dl_effects")
    return run.id


def claim_target(queue_db: QueueFixture, run: ClaimedJob, problem: str | None = None) -> None:
    queue_db.sql("SELECT dl_draw_fence(%s::uuid, %s::uuid, 'warehouse', %s)", str(run.id), str(run.run_id), problem)


def tenants_in_turn(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    Queues(queue_db.session).change_settings("q", fair="args.tenant")
    queue_db.enqueue("first", args={"tenant": "a"})
    return queue_db.enqueue(args={"tenant": "a"})


def memory_high(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    queue_db.enqueue_and_claim("other")
    queue_db.sql("UPDATE dl_workers SET running_attempts = '[{\"memory_high\": true}]'")
    return queue_db.enqueue()


def jobs_ahead(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    queue_db.enqueue("first")
    return queue_db.enqueue()


def next_one(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    return queue_db.enqueue()


def running(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    return queue_db.enqueue_and_claim().id


def expired(queue_db: QueueFixture) -> UUID:
    job_id = running(queue_db)
    queue_db.expire_lease(job_id)
    return job_id


def stopping(queue_db: QueueFixture) -> UUID:
    worker(queue_db)
    run = queue_db.enqueue_and_claim()
    queue_db.queue.cancel(run.id)
    queue_db.save_progress(run, {"processed": 3}, age_sec=4000)
    queue_db.sql("UPDATE dl_workers SET running_attempts = %s", DOING % run.run_id)
    return run.id


def old_progress(queue_db: QueueFixture) -> UUID:
    job_id = stopping(queue_db)
    queue_db.sql("UPDATE dl_workers SET running_attempts = jsonb_set(running_attempts, '{0,stop_reason}', 'null')")
    queue_db.sql("UPDATE dl_jobs SET cancel_requested = false")
    return job_id


def ended(status: Status) -> Callable[[QueueFixture], UUID]:
    def make(queue_db: QueueFixture) -> UUID:
        run = queue_db.enqueue_and_claim(max_attempts=1)
        queue_db.settle(run, status)
        return run.id

    return make


def lost(queue_db: QueueFixture) -> UUID:
    run = queue_db.enqueue_and_claim(max_attempts=1)
    queue_db.lose_attempt(run)
    return run.id


def sql_blocked(queue_db: QueueFixture) -> UUID:
    """A session of the attempt waits for the lock of another one, until the fixture closes that."""
    worker(queue_db)
    run = queue_db.enqueue_and_claim()
    with queue_db.connect(autocommit=True).cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(77)")
    name = attempt_application_name(run.id, run.run_id)

    def wait_for_lock() -> None:
        with closing(psycopg2.connect(queue_db.dsn, application_name=name)) as connection:
            connection.cursor().execute("SET statement_timeout = '60s'; SELECT pg_advisory_lock(77)")

    BackgroundCall(wait_for_lock)
    waits = f"application_name = '{name}' AND wait_event_type = 'Lock' AND state_change < now() - interval '1.1 s'"
    eventually(lambda: queue_db.session_count(waits) == 1, message="the session waits")
    return run.id


def slower_than_usual(queue_db: QueueFixture) -> UUID:
    """The account of the attempt has ten times the time of the task's usual run."""
    worker(queue_db)
    accounts = Accounts(queue_db.queue.executor)
    for _ in range(3):
        usual = queue_db.enqueue_and_claim()
        accounts.write([make_account(usual, 60.0)])
        queue_db.settle(usual)
    run = queue_db.enqueue_and_claim()
    accounts.write([make_account(run, 600.0, has_ended=False)])
    return run.id


CASES: list[tuple[ReasonCode, Callable[[QueueFixture], UUID]]] = [
    (ReasonCode.QUEUE_PAUSED, closed(QueueState.PAUSED)),
    (ReasonCode.QUEUE_DRAINING, closed(QueueState.DRAINING)),
    (ReasonCode.QUEUE_AT_LIMIT, at_limit),
    (ReasonCode.NO_WORKER, lambda queue_db: queue_db.enqueue()),
    (ReasonCode.TASK_UNKNOWN, task_unknown),
    (ReasonCode.TASK_UNKNOWN, deferred),
    (ReasonCode.LABELS_MISSING, labels_missing),
    (ReasonCode.WORKERS_DRAINING, drained),
    (ReasonCode.NOT_DUE, not_due),
    (ReasonCode.KEY_BUSY, key_busy),
    (ReasonCode.KEY_FREED, key_freed),
    (ReasonCode.KEY_LOCKED_ELSEWHERE, key_locked),
    (ReasonCode.LIMIT_FULL, limited(concurrency=1)),
    (ReasonCode.LIMIT_CLOSED, limited(concurrency=0)),
    (ReasonCode.RATE_LIMITED, limited(rate=1, per_sec=3600)),
    (ReasonCode.BREAKER_OPEN, breaker_open),
    (ReasonCode.TASK_PAUSED, task_paused),
    (ReasonCode.TENANTS_IN_TURN, tenants_in_turn),
    (ReasonCode.MEMORY_HIGH, memory_high),
    (ReasonCode.WAITS_FOR_JOBS, waiting_for_jobs),
    (ReasonCode.WAITS_FOR_ENGINE, waiting_for_engine),
    (ReasonCode.TARGET_BUSY, target_busy),
    (ReasonCode.TARGET_NOT_FENCED, target_not_fenced),
    (ReasonCode.SKIPPED, skipped),
    (ReasonCode.PER_WORKER_LIMIT, per_worker),
    (ReasonCode.THREADS_BUSY, threads_busy),
    (ReasonCode.JOBS_AHEAD, jobs_ahead),
    (ReasonCode.NEXT, next_one),
    (ReasonCode.LEASE_EXPIRED, expired),
    (ReasonCode.WORKER_SILENT, lambda queue_db: queue_db.enqueue_and_claim().id),
    (ReasonCode.STOP_NOT_OBEYED, stopping),
    (ReasonCode.PROGRESS_OLD, old_progress),
    (ReasonCode.SQL_BLOCKED, sql_blocked),
    (ReasonCode.SLOWER_THAN_USUAL, slower_than_usual),
    (ReasonCode.RUNNING, running),
    *((ReasonCode(status), ended(status)) for status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)),
    (ReasonCode.LOST, lost),
]
