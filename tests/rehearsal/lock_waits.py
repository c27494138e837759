"""How long other sessions wait for a lock while a migration runs, seen every 20 ms."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg2

_INTERVAL_SEC = 0.02
_WAITS = """
SELECT l.pid, a.application_name, extract(epoch FROM clock_timestamp() - l.waitstart)::float8, left(a.query, 80)
  FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE NOT l.granted AND l.locktype = 'relation' AND l.waitstart IS NOT NULL
   AND a.application_name <> 'dataloader-migrate'
   AND EXISTS (SELECT FROM pg_stat_activity m
                WHERE m.application_name = 'dataloader-migrate' AND m.pid = ANY (pg_blocking_pids(l.pid)))
"""


@dataclass(frozen=True)
class LockWait:
    application: str
    seconds: float
    statement: str


class LockWaits:
    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._stopping = threading.Event()
        self._longest: dict[int, LockWait] = {}  # by session, written by the thread

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._stopping.clear()
        thread = threading.Thread(target=self._run, name="lock-waits", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(30)

    @property
    def longest(self) -> LockWait | None:
        return max(self._longest.values(), key=lambda wait: wait.seconds, default=None)

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(psycopg2.Error), closing(self._connect()) as connection, connection.cursor() as cursor:
                connection.autocommit = True
                while not self._stopping.wait(_INTERVAL_SEC):
                    cursor.execute(_WAITS)
                    for pid, application, seconds, statement in cursor.fetchall():
                        wait = LockWait(application, seconds, statement)
                        if pid not in self._longest or self._longest[pid].seconds < seconds:
                            self._longest[pid] = wait
