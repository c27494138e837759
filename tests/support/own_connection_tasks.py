"""Tasks whose code opens its own connections by one driver or library each, and writes a row each 50 ms by one long
statement in autocommit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg2
from psycopg2.extensions import parse_dsn

from dataloader.pipelines.contract import Context, register

TABLES = """CREATE TABLE own_rows (job uuid, attempt int, at timestamptz DEFAULT clock_timestamp());
            CREATE TABLE own_starts (job uuid, attempt int, at timestamptz DEFAULT clock_timestamp());
            CREATE PROCEDURE write_slowly(job uuid, attempt int) LANGUAGE plpgsql AS $$
            BEGIN FOR n IN 1..6000 LOOP
                INSERT INTO own_rows VALUES (job, attempt); COMMIT; PERFORM pg_sleep(0.05);
            END LOOP; END $$"""


def write_with_psycopg2(dsn: str, statement: str) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    connection.cursor().execute(statement)


def write_with_psycopg(dsn: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)


def write_with_async_psycopg(dsn: str, statement: str) -> None:
    import psycopg

    async def write() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute(statement)

    asyncio.run(write())


def write_with_sqlalchemy(dsn: str, statement: str, driver: str = "psycopg2") -> None:
    from sqlalchemy import create_engine

    engine = create_engine(f"postgresql+{driver}://", connect_args=parse_dsn(dsn))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(statement)


def write_with_sqlalchemy_psycopg(dsn: str, statement: str) -> None:
    write_with_sqlalchemy(dsn, statement, "psycopg")


def write_with_pandas(dsn: str, statement: str) -> None:
    import pandas  # type: ignore[import-untyped]
    from sqlalchemy import create_engine

    engine = create_engine("postgresql+psycopg2://", connect_args=parse_dsn(dsn))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        pandas.read_sql(statement, connection)


def write_in_another_thread(dsn: str, statement: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(write_with_psycopg2, dsn, statement).result()


STARTED_POOL = ThreadPoolExecutor(1)  # a job of each process starts its thread, and ends: `own.start-pool`


def write_in_started_pool(dsn: str, statement: str) -> None:
    STARTED_POOL.submit(write_with_psycopg2, dsn, statement).result()


@register("own.start-pool")
def start_pool(args: dict[str, Any]) -> None:
    STARTED_POOL.submit(lambda: None).result()


WRITERS: dict[str, Callable[[str, str], None]] = {
    "psycopg2": write_with_psycopg2,
    "psycopg": write_with_psycopg,
    "async-psycopg": write_with_async_psycopg,
    "sqlalchemy": write_with_sqlalchemy,
    "sqlalchemy-psycopg": write_with_sqlalchemy_psycopg,
    "pandas": write_with_pandas,
    "other-thread": write_in_another_thread,
    "started-pool": write_in_started_pool,
}


def _task_of(write: Callable[[str, str], None]) -> Callable[[dict[str, Any], Context], None]:
    def run(args: dict[str, Any], ctx: Context) -> None:
        """The first attempt writes; the next one notes that it has started."""
        with closing(psycopg2.connect(args["dsn"])) as connection, connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO own_starts VALUES (%s, %s)", (str(ctx.job_id), ctx.attempt))
        if ctx.attempt == 1:
            write(args["dsn"], f"CALL write_slowly('{ctx.job_id}', {ctx.attempt})")

    return run


for _name, _write in WRITERS.items():
    for _isolation in ("thread", "process"):
        register(f"own.{_name}.{_isolation}", isolation=_isolation)(_task_of(_write))
