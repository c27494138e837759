"""The API's connections: bounded, checked, given up in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.db import pool as pool_module
from dataloader.app.db.connection import AsyncConnection, Session, connect
from dataloader.app.db.pool import BorrowedConnection, Pool
from dataloader.app.errors import DatabaseUnavailable, IdempotencyConflict, InvalidJob, PoolExhausted
from dataloader.app.features.doctor.facts import DatabaseFacts
from dataloader.app.queue.job import NewJob, Status
from dataloader.app.queue.jobs import JobQueue
from tests.support import answer_of, eventually, free_port
from tests.support.proxy import SilentProxy
from tests.support.queue_fixture import BackgroundCall, QueueFixture, list_jobs

GENEROUS = 15.0
REQUEST: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k"}


@pytest.fixture
def made(queue_db: QueueFixture) -> Iterator[Any]:
    """Makes pools; they are closed at the end."""
    with ExitStack() as closing:

        def make(dsn: str = queue_db.dsn, **settings: Any) -> Pool:
            pool = Pool(dsn, application_name="pooled", **settings)
            closing.callback(pool.close)
            return pool

        yield make


def backends(queue_db: QueueFixture) -> list[int]:
    mine = "application_name = 'pooled' AND datname = current_database()"  # other tests run next to this one
    return [row[0] for row in queue_db.sql(f"SELECT pid FROM pg_stat_activity WHERE {mine} ORDER BY pid")]


@contextmanager
def all_busy(queue_db: QueueFixture, pool: Pool, count: int) -> Iterator[list[BackgroundCall]]:
    """So many askers of the pool wait for a row that is held."""
    job_id = queue_db.enqueue()
    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(job_id))
        askers = [BackgroundCall(JobQueue(pool).cancel, job_id) for _ in range(count)]
        queue_db.wait_for_lock_waiters(count)
        yield askers


def test_a_job_goes_all_its_way_through_a_pool(queue_db, made):
    queue = JobQueue(made())
    done = queue.enqueue(NewJob(**REQUEST, args={"a": "%s %(b)s"}, idempotency_key="%"))
    (run,) = queue_db.claim()
    queue_db.settle(run, Status.FAILED)

    assert queue.retry(done.job_id).status is Status.QUEUED
    assert queue.cancel(done.job_id).status is Status.CANCELED
    assert queue_db.job(done.job_id).args == {"a": "%s %(b)s"}
    with pytest.raises(IdempotencyConflict):
        queue.enqueue(NewJob(**REQUEST | {"task": "u"}, idempotency_key="%"))
    queue_db.check_invariants()


@pytest.mark.parametrize("options", [{}, {"transactions_only": True}, None])
def test_statements_are_read_committed_with_any_default(queue_db, made, options):
    dsn = make_dsn(queue_db.dsn, options="-c default_transaction_isolation=serializable")
    session = Session(dsn, application_name="session")
    executor: Any = session if options is None else made(dsn, **options)

    levels = {DatabaseFacts(executor).server(["transaction_isolation"])[0]["settings"]["transaction_isolation"]}
    if options is not None:
        with executor.transaction() as inside:
            levels.add(DatabaseFacts(inside).server(["transaction_isolation"])[0]["settings"]["transaction_isolation"])

    assert levels == {"read committed"}
    session.close()


def test_pool_connects_on_first_use_and_keeps_connections(queue_db, made):
    pool = made(size=2)
    eventually(lambda: backends(queue_db) == [], message="those of the test before are gone")

    for _ in range(5):
        pool.execute("ping")

    assert len(backends(queue_db)) == 1
    stats = pool.stats()
    assert (stats.in_use, stats.idle, stats.waiting, stats.exhausted) == (0, 1, 0, 0)


def test_what_is_beyond_its_size_is_closed_when_it_is_given_back(queue_db, made):
    pool = made(size=1, overflow=2)
    with all_busy(queue_db, pool, 3) as askers:
        assert pool.stats().in_use == 3

    for asker in askers:
        asker.result()
    assert pool.stats().idle == 1
    eventually(lambda: len(backends(queue_db)) == 1)


def test_an_exhausted_pool_says_so_in_time(queue_db, made):
    pool = made(size=1, overflow=1, wait_sec=0.2)
    with all_busy(queue_db, pool, 2) as askers:
        began = time.monotonic()
        with pytest.raises(PoolExhausted, match="all 2 connections are busy"):
            pool.execute("ping")
        assert 0.2 <= time.monotonic() - began < GENEROUS
        assert pool.stats().exhausted == 1

    for asker in askers:
        assert asker.result().status is Status.CANCELED
    pool.execute("ping")


def test_waiting_is_bounded_and_gets_returned_connection(queue_db, made):
    pool = made(size=1, overflow=0, wait_sec=GENEROUS, max_waiting=1)
    with all_busy(queue_db, pool, 1) as askers:
        waiting = BackgroundCall(pool.execute, "ping")
        eventually(lambda: pool.stats().waiting == 1)
        with pytest.raises(PoolExhausted):  # at once, though the wait is long
            pool.execute("ping")

    assert waiting.result() == [(1,)]
    askers[0].result()


def test_ended_idle_connections_are_replaced_before_use(queue_db, made):
    pool = made()
    for _ in range(3):
        pool.execute("ping")
        (pid,) = backends(queue_db)
        queue_db.sql("SELECT pg_terminate_backend(%s)", pid)
        eventually(lambda: backends(queue_db) == [])

    assert pool.execute("ping") == [(1,)]


def test_long_idle_connection_is_checked_before_use(queue_db, made, monkeypatch):
    monkeypatch.setattr(pool_module, "_CHECK_AFTER_IDLE_SEC", 0.0)
    with SilentProxy(queue_db.dsn) as proxy:
        pool = made(proxy.dsn, connect_timeout_sec=0.4)
        answer_of(lambda: pool.execute("ping"))
        answer_of(lambda: pool.execute("ping"))
        proxy.silence()
        with pytest.raises(DatabaseUnavailable):
            pool.execute("ping")
        assert pool.stats().idle == 0


def test_old_connections_are_not_kept(queue_db, made):
    pool = made(recycle_sec=0.0)
    pool.execute("ping")

    assert pool.stats().idle == 0


def test_without_a_pool_each_question_has_its_own_connection(queue_db, made):
    pool = made(use_pool=False, size=3, overflow=1)
    for _ in range(3):
        pool.execute("ping")
        assert pool.stats().idle == 0
    eventually(lambda: backends(queue_db) == [])


def test_a_statement_that_takes_too_long_is_given_up(queue_db, made):
    pool = made(command_timeout_sec=0.3)
    job_id = queue_db.enqueue()
    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(job_id))
        with pytest.raises(DatabaseUnavailable):
            JobQueue(pool).cancel(job_id)

    assert answer_of(lambda: JobQueue(pool).cancel(job_id)).status is Status.CANCELED


def test_a_server_that_falls_silent_is_given_up_in_time(queue_db, made):
    with SilentProxy(queue_db.dsn) as proxy:
        pool = made(proxy.dsn, connect_timeout_sec=0.4, command_timeout_sec=0.4)
        answer_of(lambda: pool.execute("ping"))
        proxy.silence()
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            pool.execute("ping")
        assert time.monotonic() - began < GENEROUS
        assert pool.stats().in_use == 0


def test_while_the_database_is_away_only_the_first_finds_it_out(made, monkeypatch):
    pool = made(f"host=127.0.0.1 port={free_port()} dbname=x")
    with pytest.raises(DatabaseUnavailable, match="refused"):
        pool.execute("ping")
    with pytest.raises(DatabaseUnavailable, match="failed a moment ago"):
        pool.execute("ping")

    monkeypatch.setattr(pool_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 1.0))
    with pytest.raises(DatabaseUnavailable, match="refused"):
        pool.execute("ping")
    assert pool.stats().in_use == 0


def test_slow_connect_delays_no_other_thread(queue_db, made, monkeypatch):
    pool = made(size=2, overflow=2)
    pool.execute("ping")
    may_go, opening = threading.Event(), threading.Event()

    def slowly(*args: Any, **options: Any) -> Any:
        opening.set()
        assert may_go.wait(GENEROUS)
        return connect(*args, **options)

    monkeypatch.setattr(pool_module, "connect", slowly)
    with all_busy(queue_db, pool, 1) as askers:  # has the one that is open
        slow = BackgroundCall(pool.execute, "ping")
        assert opening.wait(GENEROUS)
        assert pool.stats().in_use == 1  # answered though someone is connecting
    askers[0].result()
    assert pool.execute("ping") == [(1,)]
    may_go.set()
    assert slow.result() == [(1,)]


def test_a_refused_value_or_a_break_leaves_nothing_behind(queue_db, made):
    pool = made()
    queue = JobQueue(pool)
    for _ in range(3):
        with pytest.raises(InvalidJob):
            queue.enqueue(NewJob(**REQUEST, priority=-1))
    assert queue_db.session_count("state LIKE 'idle in transaction%'") == 0

    with all_busy(queue_db, pool, 1) as askers:
        queue_db.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pooled'")
        with pytest.raises(DatabaseUnavailable):
            askers[0].result()
    assert pool.stats().in_use == 0
    assert queue.ping() > 0


def test_stale_statement_is_prepared_again_on_its_connection(own_queue_db, monkeypatch):
    sent: list[str] = []
    execute = AsyncConnection.execute

    def record(connection: AsyncConnection, sql: str, *arguments: Any) -> Any:
        sent.append(sql.removeprefix("SET LOCAL enable_seqscan = off; ").split()[0])
        return execute(connection, sql, *arguments)

    job_id, pool = own_queue_db.enqueue(), Pool(own_queue_db.dsn)
    queue = JobQueue(pool)
    queue.get(job_id)
    own_queue_db.sql("ALTER TABLE dl_jobs ALTER COLUMN traceback TYPE varchar")
    monkeypatch.setattr(AsyncConnection, "execute", record)
    for _ in range(3):
        queue.get(job_id)
    pool.close()

    assert sent == ["EXECUTE", "DEALLOCATE", "SELECT", "PREPARE", "EXECUTE", "EXECUTE"]


# ── someone else's transaction ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("commits", [True, False])
def test_enqueue_in_caller_transaction_commits_with_it(queue_db, commits):
    listener = queue_db.listener()
    own = queue_db.connect()
    queue = JobQueue(BorrowedConnection(own))
    job_id = queue.enqueue(NewJob(**REQUEST)).job_id

    assert [job.id for job in list_jobs(queue)] == [job_id]
    assert (queue_db.queue.get(job_id), queue_db.claim(), listener.payloads()) == (None, [], [])
    own.commit() if commits else own.rollback()

    assert [run.id for run in queue_db.claim()] == ([job_id] if commits else [])
    assert listener.payloads() == (["q"] if commits else [])


def test_refusal_in_caller_transaction_raises_our_error(queue_db):
    own = queue_db.connect()

    with pytest.raises(InvalidJob, match="max_attempts: must be 1 or more"):
        JobQueue(BorrowedConnection(own)).enqueue(NewJob(**REQUEST, max_attempts=-1))

    own.rollback()
    assert JobQueue(BorrowedConnection(own)).enqueue(NewJob(**REQUEST)).created
