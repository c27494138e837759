"""An engine of SQLAlchemy, and pandas, in a transaction that something else commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pandas  # type: ignore[import-untyped]
import psycopg
import psycopg2
import pytest
import sqlalchemy
from psycopg2 import extensions
from sqlalchemy.orm import Session

from dataloader.pipelines.commit_guard import CommitGuard
from dataloader.pipelines.toolkit.sqlalchemy import engine_for


class _Psycopg2(CommitGuard, extensions.connection):
    pass


class _Psycopg(CommitGuard, psycopg.Connection[Any]):
    pass


def _connect(driver: str, dsn: str) -> Any:
    return psycopg2.connect(dsn, connection_factory=_Psycopg2) if driver == "psycopg2" else _Psycopg.connect(dsn)


@pytest.fixture(params=["psycopg2", "psycopg"])
def connection(request: pytest.FixtureRequest, empty_dsn: str, another: Any) -> Iterator[Any]:
    """In the transaction that a context would have begun."""
    another.run("CREATE TABLE parts (key text)")
    with closing(_connect(request.param, empty_dsn)) as opened:
        opened.cursor().execute("INSERT INTO parts VALUES ('of the block')")
        opened.in_transaction = True
        yield opened


def parts(connection: Any) -> list[str]:
    cursor = connection.cursor()
    cursor.execute("SELECT key FROM parts ORDER BY key")
    return [key for (key,) in cursor.fetchall()]


def insert(connection: sqlalchemy.Connection | Session, key: str) -> None:
    connection.execute(sqlalchemy.text("INSERT INTO parts VALUES (:key)"), {"key": key})


def test_rows_of_an_engine_commit_with_the_block(connection, another):
    engine = engine_for(connection)
    with engine.begin() as sa:
        insert(sa, "a")
    with Session(engine) as session:
        insert(session, "b")
        session.commit()
        insert(session, "c")
        session.commit()

    assert parts(another.conn) == []
    connection.in_transaction = False
    connection.commit()
    assert parts(another.conn) == ["a", "b", "c", "of the block"]


def test_rows_of_an_engine_are_rolled_back_with_the_block(connection, another):
    with engine_for(connection).begin() as sa:
        insert(sa, "a")

    connection.rollback()

    assert parts(another.conn) == []


def test_what_an_engine_rolls_back_is_gone_and_the_block_continues(connection):
    engine = engine_for(connection)
    with engine.begin() as sa:
        insert(sa, "kept")
    with pytest.raises(sqlalchemy.exc.ProgrammingError), engine.begin() as sa:
        insert(sa, "lost")
        sa.execute(sqlalchemy.text("SELECT * FROM nothing"))
    with engine.connect() as sa:
        insert(sa, "not committed")

    assert parts(connection) == ["kept", "of the block"]


def test_closing_the_engine_leaves_the_connection_open(connection):
    engine = engine_for(connection)
    with engine.connect() as sa:
        assert sa.scalar(sqlalchemy.text("SELECT 1")) == 1
    engine.dispose()

    assert parts(connection) == ["of the block"]


def test_a_savepoint_of_the_engine_is_one_within(connection):
    with engine_for(connection).begin() as sa:
        insert(sa, "a")
        with pytest.raises(ValueError), sa.begin_nested():
            insert(sa, "b")
            raise ValueError

    assert parts(connection) == ["a", "of the block"]


def test_a_second_transaction_at_a_time_is_refused(connection):
    engine = engine_for(connection)
    with engine.begin() as sa, engine.connect() as other:
        insert(sa, "a")
        with pytest.raises(RuntimeError, match="this engine has one connection, and a transaction is open on it"):
            insert(other, "b")


def test_an_engine_of_a_block_that_has_ended_is_refused(connection):
    engine = engine_for(connection)
    with engine.begin() as sa:
        insert(sa, "a")
    connection.in_transaction = False
    connection.commit()

    with pytest.raises(RuntimeError, match="in which this engine was made has ended"), engine.begin() as sa:
        insert(sa, "b")
    assert connection.info.transaction_status == 0


def test_autocommit_is_refused(connection):
    engine = engine_for(connection)
    with (
        pytest.raises(RuntimeError, match="within ctx.transaction"),
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as sa,
    ):
        insert(sa, "a")


def test_pandas_reads_and_writes_in_the_block(connection, another):
    engine = engine_for(connection)
    frame = pandas.read_sql("SELECT key FROM parts", engine)
    pandas.concat([frame, pandas.DataFrame({"key": ["a"]})]).to_sql("copies", engine, index=False)
    frame.to_sql("copies", engine, index=False, if_exists="append")

    assert pandas.read_sql("SELECT count(*) AS n FROM copies", engine)["n"][0] == 3
    connection.rollback()
    assert another.value("SELECT to_regclass('copies')") is None
