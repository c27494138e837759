"""A pool that is handed in: what its connections are given back like, and what it may not be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg2
import psycopg2.extras
import pytest
from psycopg2.extensions import make_dsn
from psycopg2.pool import ThreadedConnectionPool

from dataloader.app.db.callers_pool import CallersPool
from dataloader.app.db.pool import Pool
from dataloader.app.db.statements import open_transaction
from dataloader.app.errors import DatabaseUnavailable, InvalidJob, PoolExhausted
from dataloader.app.queue.job import NewJob
from dataloader.app.queue.jobs import JobQueue
from tests.support import eventually

JOB = NewJob(queue="q", task="t", lock_key="k")


@pytest.fixture
def pool(dsn: str) -> Iterator[ThreadedConnectionPool]:
    made = ThreadedConnectionPool(1, 2, dsn, cursor_factory=psycopg2.extras.RealDictCursor)
    yield made
    made.closeall()


class SingleConnection:
    """A pool that gives out a connection as it was left."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def getconn(self) -> Any:
        return self.connection

    def putconn(self, connection: Any) -> None:
        assert connection is self.connection


def settings_of(pool: Any) -> dict[str, str]:
    connection = pool.getconn()
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, setting FROM pg_settings")
        found = {row["name"]: row["setting"] for row in cursor.fetchall()}
    connection.rollback()
    pool.putconn(connection)
    return found


@pytest.mark.parametrize("owner", ["caller", "us"])
def test_transaction_takes_effect_as_a_whole_or_not(pool, dsn, owner):
    own = Pool(dsn)
    executor = CallersPool(pool) if owner == "caller" else own
    with pytest.raises(ZeroDivisionError), open_transaction(executor) as inside:
        lost = JobQueue(inside).enqueue(JOB).job_id
        raise ZeroDivisionError
    with pytest.raises(InvalidJob), open_transaction(executor) as inside:
        JobQueue(inside).enqueue(NewJob(queue="q", task="t", lock_key="k", max_attempts=-1))
    with open_transaction(executor) as inside:
        kept = [JobQueue(inside).enqueue(JOB).job_id for _ in range(2)]
        assert JobQueue(own).get(kept[0]) is None
        assert JobQueue(inside).get(kept[1]) is not None

    assert [JobQueue(executor).get(job_id) is not None for job_id in (lost, *kept)] == [False, True, True]
    assert own.stats().in_use == 0
    own.close()


def test_transaction_on_a_former_primary_drops_the_connection(dsn):
    own = Pool(make_dsn(dsn, options="-c default_transaction_read_only=on"))
    with pytest.raises(DatabaseUnavailable), open_transaction(own) as inside:
        JobQueue(inside).enqueue(JOB)

    assert own.stats().idle == 0
    own.close()


@pytest.mark.parametrize("autocommit", [False, True])
def test_connection_is_given_back_as_it_was(pool, autocommit):
    connection = pool.getconn()
    connection.autocommit = autocommit
    pool.putconn(connection)
    before = settings_of(pool)

    job_id = JobQueue(CallersPool(pool)).enqueue(JOB).job_id
    job = JobQueue(CallersPool(pool)).get(job_id)

    assert job is not None
    assert job.created_at.tzinfo is not None
    again = pool.getconn()
    assert again is connection
    assert again.autocommit == autocommit
    assert again.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_IDLE
    pool.putconn(again)
    assert before.items() <= settings_of(pool).items()


def test_other_isolation_and_open_transactions_do_no_harm(pool):
    connection = pool.getconn()
    connection.set_session(isolation_level="SERIALIZABLE", readonly=True)
    connection.cursor().execute("SELECT 1")

    JobQueue(CallersPool(SingleConnection(connection))).enqueue(JOB)

    assert connection.readonly
    pool.putconn(connection)


def test_errors_are_ours_and_leave_no_transaction(pool):
    executor = CallersPool(pool)
    with pytest.raises(InvalidJob):
        JobQueue(executor).enqueue(NewJob(queue="q", task="t", lock_key="k", priority=-1))
    taken = [pool.getconn(), pool.getconn()]
    with pytest.raises(PoolExhausted, match="handed in"):
        JobQueue(executor).enqueue(JOB)
    for connection in taken:
        assert connection.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_IDLE
        pool.putconn(connection)
    JobQueue(executor).enqueue(JOB)


def test_broken_connection_is_reported_and_replaced(pool, dsn):
    executor = CallersPool(pool)
    connection = pool.getconn()
    backend = connection.info.backend_pid
    pool.putconn(connection)
    with psycopg2.connect(dsn) as other, other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", (backend,))
    other.close()

    with pytest.raises(DatabaseUnavailable):
        JobQueue(executor).enqueue(JOB)
    assert JobQueue(executor).get(JobQueue(executor).enqueue(JOB).job_id) is not None


def count_open_transactions(connection: Any) -> int:
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
        )
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("owner", ["caller", "us"])
def test_transaction_left_open_is_ended_by_the_server(pool, dsn, owner):
    own = Pool(dsn, command_timeout_sec=2.0)
    executor = CallersPool(pool, command_timeout_sec=2.0) if owner == "caller" else own
    with pytest.raises(DatabaseUnavailable), open_transaction(executor) as inside:
        lost = JobQueue(inside).enqueue(JOB).job_id
        with closing(psycopg2.connect(dsn)) as other:
            eventually(lambda: not count_open_transactions(other))
        JobQueue(inside).enqueue(JOB)

    assert JobQueue(executor).get(lost) is None
    own.close()


def test_dsn_leads_to_the_same_database(pool, dsn):
    with psycopg2.connect(CallersPool(pool).dsn()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        names = cursor.fetchall()
    connection.close()

    assert names == [(psycopg2.extensions.parse_dsn(dsn)["dbname"],)]


def test_what_is_no_pool_of_psycopg2_is_refused(dsn):
    class OtherPool:
        def getconn(self) -> object:
            return object()

        def putconn(self, connection: object) -> None: ...

    with pytest.raises(TypeError, match="unlike str"):
        CallersPool(dsn)
    with pytest.raises(TypeError, match="need those of psycopg2"):
        CallersPool(OtherPool()).dsn()
    latin = ThreadedConnectionPool(1, 1, dsn, client_encoding="LATIN1")
    with pytest.raises(TypeError, match="LATIN1"):
        CallersPool(latin).dsn()
    latin.closeall()
