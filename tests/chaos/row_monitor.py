"""Looks at the rows of running jobs all the time, as a monitor does that knows only the tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any
from uuid import UUID

import psycopg2

from tests.chaos.history import RowLook

_INTERVAL_SEC = 0.25
# Of the jobs that run, and of those that ran at the last look: what became of their progress.
_LOOK = """
    SELECT job_id, run_id, status::text, clock_timestamp(), pg_postmaster_start_time()::text, lease_expires_at,
           dl_is_lease_expired(lease_expires_at, heartbeat_at, lease_ttl_sec), heartbeat_at IS NULL,
           progress ->> 'run', coalesce(progress ->> 'done', progress ->> 'at')::float8
      FROM (SELECT job_id, run_id, status, lease_expires_at, heartbeat_at, lease_ttl_sec,
                   dl_current_progress(status, job_id, run_id, heartbeat_at, progress) AS progress
              FROM dl_jobs
             WHERE status = 'running' OR job_id = ANY (%s::uuid[])) j"""


class RowMonitor:
    """A thread that looks until `stop`. It connects past all proxies; while the server is away it sees nothing."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="row-monitor", daemon=True)
        self._running: set[str] = set()  # jobs, at the last look
        self.looks: list[RowLook] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(30)

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL_SEC):
            with suppress(psycopg2.Error), closing(self._connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = '3s'")
                while not self._stopping.wait(_INTERVAL_SEC):
                    self._look(cursor)

    def _look(self, cursor: Any) -> None:
        cursor.execute(_LOOK, (list(self._running),))
        rows = cursor.fetchall()
        self._running = {row[0] for row in rows if row[2] == "running"}
        self.looks += [RowLook(UUID(row[0]), UUID(row[1]), *row[2:]) for row in rows if row[1]]
