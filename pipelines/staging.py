"""Connects to the databases that pipelines write to, and creates tables that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg2
from psycopg2.extensions import connection, parse_dsn

from dataloader.pipelines import targets
from dataloader.pipelines.contract import Context

# A network that drops packets is noticed within about a minute. The DSN's own settings win.
_CONNECTION_SETTINGS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


@contextmanager
def connect_target(target: str, ctx: Context) -> Iterator[connection]:
    """Connect to a target, with the job's id in the application name; at the end, roll back what is open and close."""
    dsn: dict[str, Any] = parse_dsn(targets.target(target))
    parameters = {**_CONNECTION_SETTINGS, **dsn, "application_name": f"dataloader {ctx.job_id}"}
    with closing(psycopg2.connect(**parameters)) as conn:
        yield conn


def ensure_tables(conn: connection, tables: Sequence[str], statements: str) -> None:
    """Run the statements if a table is missing, and commit. A role that may not create a schema may still load."""
    with conn.cursor() as cur:
        cur.execute("SELECT count(*) FROM unnest(%s) AS t (name) WHERE to_regclass(name) IS NULL", [list(tables)])
        (missing,) = cur.fetchone() or (0,)
        if missing:
            # With IF NOT EXISTS alone, the second of two jobs that run this at the same time fails.
            cur.execute("SELECT pg_advisory_xact_lock(hashtext('dataloader: tables of pipelines'), 0)")
            cur.execute(statements)
    conn.commit()
