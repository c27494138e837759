"""Enqueueing a job inside the caller's own transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
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


class TriggerOptions(JobOptions, total=False):
    """Options of a job that is triggered over HTTP. The task may have a default queue and lock key."""

    queue: str | None
    lock_key: str | None
    webhook: Mapping[str, Any] | None


_CASTS = dict.fromkeys(("args", "retry", "limits", "after", "debounce", "throttle"), "jsonb") | dict.fromkeys(
    ("available_at", "expires_at", "logical_at", "interval_start", "interval_end"), "timestamptz"
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

    `connection` is a DB-API connection to the queue's database whose parameter style is `%s`, such as psycopg's.
    `schema` is that of the queue's tables, if it is not in the search path. The driver raises its own error for an
    invalid value (SQLSTATE 22023), and for an idempotency key of a different job (23505).
    """
    unknown = options.keys() - JobOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"enqueue() got an unexpected keyword argument {min(unknown)!r}")
    values: dict[str, Any] = {"task": task, "args": args or {}, "queue": queue, "lock_key": lock_key, **options}
    values = {name: _encode(value) for name, value in values.items() if value is not None}
    arguments = ", ".join(f"{name} => %s::{_CASTS[name]}" if name in _CASTS else f"{name} => %s" for name in values)
    quoted_schema = "" if schema is None else '"' + schema.replace('"', '""').replace("%", "%%") + '".'
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"SELECT {quoted_schema}dl_enqueue({arguments})", tuple(values.values()))
        (job_id,) = cursor.fetchone()
    return UUID(str(job_id))


def _encode(value: Any) -> Any:
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, allow_nan=False)
    return value.isoformat() if isinstance(value, datetime) else value
