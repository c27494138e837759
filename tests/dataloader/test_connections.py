"""`enqueue` on the connections of each driver, inside the caller's transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from dataloader import enqueue
from tests.support import Databases
from tests.support.queue_fixture import QueueFixture

OPTIONS: dict[str, Any] = {"queue": "q", "lock_key": "k", "priority": 3, "retry": {"kind": "fixed", "seconds": 5}}
AT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as made:
        yield made


@pytest.fixture
def queue(dsn: str) -> Iterator[QueueFixture]:
    fixture = QueueFixture(dsn)
    yield fixture
    fixture.close()


def open_engine(dsn: str, driver: str) -> sqlalchemy.Engine:
    fields = psycopg2.extensions.parse_dsn(dsn)
    return sqlalchemy.create_engine(f"postgresql+{driver}://", connect_args=fields, poolclass=sqlalchemy.NullPool)


def open_psycopg2(dsn: str) -> Any:
    return closing(psycopg2.connect(dsn))


def open_psycopg2_with_dict_rows(dsn: str) -> Any:
    return closing(psycopg2.connect(dsn, cursor_factory=psycopg2.extras.RealDictCursor))


def open_psycopg(dsn: str) -> Any:
    return closing(psycopg.connect(dsn))


def open_psycopg_with_dict_rows(dsn: str) -> Any:
    return closing(psycopg.connect(dsn, row_factory=dict_row))


def open_sqlalchemy_psycopg2(dsn: str) -> Any:
    return open_engine(dsn, "psycopg2").connect()


def open_sqlalchemy_psycopg(dsn: str) -> Any:
    return open_engine(dsn, "psycopg").connect()


def open_session(dsn: str) -> Any:
    return Session(open_engine(dsn, "psycopg"))


def open_scoped_session(dsn: str) -> Any:
    return closing(scoped_session(sessionmaker(open_engine(dsn, "psycopg2"))))


@pytest.mark.parametrize(
    "open_connection",
    [
        open_psycopg2, open_psycopg2_with_dict_rows, open_psycopg, open_psycopg_with_dict_rows,
        open_sqlalchemy_psycopg2, open_sqlalchemy_psycopg, open_session, open_scoped_session,
    ],
)  # fmt: skip
def test_job_exists_if_the_transaction_commits(dsn, queue, open_connection):
    with open_connection(dsn) as connection:
        rolled_back = enqueue(connection, "t", {"n": 1}, **OPTIONS)
        connection.rollback()
        committed = enqueue(connection, "t", {"n": 2}, available_at=AT, **OPTIONS)
        visible_before = queue.queue.get(committed)
        connection.commit()

    job = queue.job(committed)
    assert isinstance(committed, UUID)
    assert queue.queue.get(rolled_back) is None
    assert visible_before is None
    assert (job.args, job.priority, job.available_at) == ({"n": 2}, 3, AT)
    assert job.retry is not None


def test_enqueue_in_the_sessions_own_transaction(dsn, queue):
    engine = open_engine(dsn, "psycopg2")
    with pytest.raises(ZeroDivisionError), Session(engine) as session, session.begin():
        session.execute(sqlalchemy.text("CREATE TABLE never (n int)"))
        job_id = enqueue(session, "t", queue="q", lock_key="k", schema="public")
        raise ZeroDivisionError

    assert queue.queue.get(job_id) is None


def test_savepoint_rolls_back_the_job_alone(dsn, queue):
    with psycopg.connect(dsn) as connection:
        kept = enqueue(connection, "t", queue="q", lock_key="k")
        with connection.transaction(force_rollback=True):
            lost = enqueue(connection, "t", queue="q", lock_key="k")

    assert queue.queue.get(lost) is None
    assert queue.job(kept).task == "t"


def test_each_driver_raises_its_own_error(dsn):
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.InvalidParameterValue, match="priority"):
        enqueue(connection, "t", queue="q", lock_key="k", priority=-1)
    with open_engine(dsn, "psycopg").connect() as engine, pytest.raises(sqlalchemy.exc.DBAPIError, match="priority"):
        enqueue(engine, "t", queue="q", lock_key="k", priority=-1)


async def _enqueue_asynchronously(dsn: str) -> None:
    connection = await psycopg.AsyncConnection.connect(dsn)
    try:
        enqueue(connection, "t", queue="q", lock_key="k")
    finally:
        await connection.close()


def test_asynchronous_connections_are_refused(dsn):
    with pytest.raises(TypeError, match="AsyncConnection"):
        asyncio.run(_enqueue_asynchronously(dsn))
    with closing(psycopg2.connect(dsn, async_=True)) as connection:
        psycopg2.extras.wait_select(connection)
        with pytest.raises(TypeError, match="asynchronous"):
            enqueue(connection, "t", queue="q", lock_key="k")
    with pytest.raises(TypeError, match="AsyncSession"):
        enqueue(AsyncSession(), "t", queue="q", lock_key="k")
