"""The databases that pipelines write to: a connection of one's own, and tables made where there are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg2
from psycopg2.extensions import connection, parse_dsn

from pipelines import targets
from pipelines.contract import Context

# A silent network is noticed within a minute or so; a DSN that says otherwise is followed.
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


@contextmanager
def opened(target: str, ctx: Context) -> Iterator[connection]:
    """A connection to a target, closed at the end; what was not committed by then is undone.

    It carries the job's id, so that `pg_stat_activity` tells who is at work.
    """
    given: dict[str, Any] = parse_dsn(targets.target(target))
    parameters = {**_PATIENCE, **given, "application_name": f"dataloader {ctx.job_id}"}
    with closing(psycopg2.connect(**parameters)) as conn:
        yield conn


def ensure(conn: connection, tables: Sequence[str], statements: str) -> None:
    """Run the statements if one of the tables is missing, and commit.

    Where all of them are there nothing is run: a role that may not create a schema may still load.
    """
    with conn.cursor() as cur:
        cur.execute("SELECT count(*) FROM unnest(%s) AS t (name) WHERE to_regclass(name) IS NULL", [list(tables)])
        (missing,) = cur.fetchone() or (0,)
        if missing:
            # Two jobs that both find nothing: IF NOT EXISTS alone lets the second one fail.
            cur.execute("SELECT pg_advisory_xact_lock(hashtext('dataloader: tables of pipelines'), 0)")
            cur.execute(statements)
    conn.commit()
