"""What runs themselves say, on a server that suffers no fault: who began, acted and ended, by a clock of all processes.

It is the evidence against the queue: nothing of it passes through the queue's own database.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2

from dataloader.pipelines.contract import Context
from dataloader.workers.connections.own_sessions import reset_owner, set_owner
from tests.chaos.clock import clock

OBSERVER_DSN_VARIABLE = "CHAOS_WITNESS"
CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS witness (
        n        bigserial PRIMARY KEY,
        run_id   uuid   NOT NULL,
        job_id   uuid   NOT NULL,
        lock_key text   NOT NULL,
        attempt  int    NOT NULL,
        task     text   NOT NULL,
        what     text   NOT NULL,  -- began | acted | trusted | wrote | ended
        at       float8 NOT NULL,  -- by the clock of all processes, read *before* the reported step
        pid      int    NOT NULL
    )"""
_INSERT_REPORT = """INSERT INTO witness (run_id, job_id, lock_key, attempt, task, what, at, pid)
          VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"""


class Observer:
    """Where runs of this process speak. A thread a connection, kept."""

    def __init__(self) -> None:
        self._local = threading.local()

    def report(self, ctx: Context, action: str, at: float | None = None) -> None:
        job: Any = ctx.job  # type: ignore[attr-defined]  # a worker's own context has it
        result = (job.run_text, job.id_text, job.lock_key, job.attempt, job.task)
        token = set_owner(None)  # the product ends the sessions of an attempt, and refuses one whose lease is lost
        try:
            with self._connection().cursor() as cursor:
                cursor.execute(_INSERT_REPORT, (*result, action, clock() if at is None else at, os.getpid()))
        finally:
            reset_owner(token)

    def _connection(self) -> Any:
        kept = getattr(self._local, "connection", None)
        if kept is None or kept.closed:
            kept = self._local.connection = psycopg2.connect(os.environ[OBSERVER_DSN_VARIABLE], connect_timeout=20)
            kept.autocommit = True
        return kept


OBSERVER = Observer()


def pass_safe_point(ctx: Context) -> None:
    """A safe point, and the word that it was passed. The clock is read before: a run that is frozen after it cannot
    seem to have passed the point later than it did."""
    at = clock()
    ctx.check()
    OBSERVER.report(ctx, "acted", at)


@contextmanager
def observed_run(ctx: Context) -> Iterator[str]:
    """A run, from its first word to its last; gives its id. The clock is read before its thread connects."""
    OBSERVER.report(ctx, "began", clock())
    yield str(ctx.job.run_id)  # type: ignore[attr-defined]  # as above
    OBSERVER.report(ctx, "ended")
