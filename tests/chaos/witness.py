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

from pipelines.contract import Context
from tests.chaos.moments import clock

VARIABLE = "CHAOS_WITNESS"
TABLE = """
    CREATE TABLE IF NOT EXISTS witness (
        n        bigserial PRIMARY KEY,
        run_id   uuid   NOT NULL,
        job_id   uuid   NOT NULL,
        lock_key text   NOT NULL,
        attempt  int    NOT NULL,
        task     text   NOT NULL,
        what     text   NOT NULL,  -- began | acted | wrote | ended
        at       float8 NOT NULL,  -- by the clock of all processes, read *before* what it tells of
        pid      int    NOT NULL
    )"""
_SAY = """INSERT INTO witness (run_id, job_id, lock_key, attempt, task, what, at, pid)
          VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"""


class Stand:
    """Where runs of this process speak. A thread a connection, kept."""

    def __init__(self) -> None:
        self._kept = threading.local()

    def say(self, ctx: Context, what: str, at: float | None = None) -> None:
        facts: Any = ctx.facts  # type: ignore[attr-defined]  # a worker's own context has them
        told = (str(facts.run_id), str(facts.job_id), facts.lock_key, facts.attempt, facts.task)
        with self._connection().cursor() as cursor:
            cursor.execute(_SAY, (*told, what, clock() if at is None else at, os.getpid()))

    def _connection(self) -> Any:
        kept = getattr(self._kept, "connection", None)
        if kept is None or kept.closed:
            kept = self._kept.connection = psycopg2.connect(os.environ[VARIABLE], connect_timeout=20)
            kept.autocommit = True
        return kept


STAND = Stand()


def act(ctx: Context) -> None:
    """A safe point, and the word that it was passed. The clock is read before: a run that is frozen after it cannot
    seem to have passed the point later than it did."""
    at = clock()
    ctx.check()
    STAND.say(ctx, "acted", at)


@contextmanager
def seen(ctx: Context) -> Iterator[str]:
    """A run, from its first word to its last; gives its id."""
    STAND.say(ctx, "began")
    yield str(ctx.facts.run_id)  # type: ignore[attr-defined]  # as above
    STAND.say(ctx, "ended")
