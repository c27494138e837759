"""Enqueueing a job inside the caller's own transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any, TypedDict, Unpack
from uuid import UUID


class JobOptions(TypedDict, total=False):
    """Options of a new job; docs/http-api.md describes each."""

    idempotency_key: str | None
    partition_key: str | None
    priority: int | None
    available_at: datetime | None
    max_attempts: int | None
    lease_ttl_sec: int | None
    producer: str | None
    consumer_group: str | None
    live_key: str | None
    time_limit_sec: int | None
    retry: Mapping[str, Any] | None
    limits: Mapping[str, int] | None
    after: Sequence[Mapping[str, str]] | None
    need: str | None
    fair_key: str | None
    debounce: Mapping[str, Any] | None
    throttle: Mapping[str, Any] | None
    expires_at: datetime | None
    start_within_sec: int | None
    logical_at: datetime | None
    interval_start: datetime | None
    interval_end: datetime | None
    tags: Sequence[str] | None


class TriggerOptions(JobOptions, total=False):
    """Options of a job that is triggered over HTTP. The task may have a default queue and lock key."""

    queue: str | None
    lock_key: str | None
    webhook: Mapping[str, Any] | None


_PLACEHOLDERS = (
    dict.fromkeys(("args", "retry", "limits", "after", "debounce", "throttle"), "%s::jsonb")
    | dict.fromkeys(("available_at", "expires_at", "logical_at", "interval_start", "interval_end"), "%s::timestamptz")
    | {"tags": "ARRAY(SELECT jsonb_array_elements_text(%s::jsonb))"}
)


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
    arguments = ", ".join(f"{name} => {_PLACEHOLDERS.get(name, '%s')}" for name in values)
    quoted_schema = "" if schema is None else '"' + schema.replace('"', '""').replace("%", "%%") + '".'
    return UUID(str(_fetch_value(connection, f"SELECT {quoted_schema}dl_enqueue({arguments})", tuple(values.values()))))


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
