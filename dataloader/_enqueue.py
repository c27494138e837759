"""Enqueueing a job inside the caller's own transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any, Unpack
from uuid import UUID

from dataloader._job_fields import JOB_FIELDS, JobOptions

_PLACEHOLDERS = {"text[]": "ARRAY(SELECT jsonb_array_elements_text(%s::jsonb))"}


def enqueue(
    connection: Any,
    task: str,
    args: Mapping[str, Any] | None = None,
    *,
    queue: str,
    lock_key: str,
    schema: str | None = None,
    **options: Unpack[JobOptions],
) -> UUID:
    """Enqueue a job in the open transaction of `connection`, and return its id: the job exists if that commits.

    `connection` leads to the queue's database: a psycopg2 or psycopg connection, Django's `connection`, a SQLAlchemy
    `Connection` or `Session`, or any DB-API connection with the parameter style `%s`. `schema` is that of the queue's
    tables, if it is not in the search path. The driver raises its own error for an invalid value (SQLSTATE 22023), and
    for an idempotency key of a different job (23505).
    """
    unknown = options.keys() - JobOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"enqueue() got an unexpected keyword argument {min(unknown)!r}")
    values: dict[str, Any] = {"task": task, "args": args or {}, "queue": queue, "lock_key": lock_key, **options}
    values = {name: _encode(value) for name, value in values.items() if value is not None}
    arguments = ", ".join(f"{name} => {_placeholder(name)}" for name in values)
    quoted_schema = "" if schema is None else '"' + schema.replace('"', '""').replace("%", "%%") + '".'
    return UUID(str(_fetch_value(connection, f"SELECT {quoted_schema}dl_enqueue({arguments})", tuple(values.values()))))


def _placeholder(name: str) -> str:
    sql_type = JOB_FIELDS[name].kind.sql_type
    return _PLACEHOLDERS.get(sql_type, f"%s::{sql_type}")


def _fetch_value(connection: Any, statement: str, parameters: tuple[Any, ...]) -> Any:
    """Execute the statement in the connection's transaction; return the only value of its only row."""
    if hasattr(connection, "get_bind") and hasattr(connection, "connection"):  # SQLAlchemy's Session
        _refuse_asynchronous(connection, connection.connection)
        connection = connection.connection()
    if hasattr(connection, "exec_driver_sql"):  # SQLAlchemy's Connection
        _refuse_asynchronous(connection, connection.exec_driver_sql)
        return connection.exec_driver_sql(statement, parameters).scalar_one()
    cursor = connection.cursor()
    _refuse_asynchronous(connection, cursor.execute)
    with closing(cursor):
        if hasattr(connection, "row_factory"):  # psycopg's: its own may make anything of a row
            cursor.row_factory = lambda _: tuple
        cursor.execute(statement, parameters)
        row = cursor.fetchone()
    return next(iter(row.values())) if isinstance(row, Mapping) else row[0]


def _refuse_asynchronous(connection: Any, execute: Any) -> None:
    if iscoroutinefunction(execute) or getattr(connection, "async_", False):
        raise TypeError(
            f"enqueue() needs a connection that waits for its answer, not an asynchronous {type(connection).__name__}; "
            "execute SELECT dl_enqueue(…) on that one"
        )


def _encode(value: Any) -> Any:
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, allow_nan=False)
    return value.isoformat() if isinstance(value, datetime) else value
