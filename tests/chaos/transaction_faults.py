"""Transactions that stay open for minutes in the queue's database, beside all other faults: vacuum removes nothing."""

from __future__ import annotations

import select
import threading
from typing import Any, ClassVar

import psycopg2

from tests.chaos.fault import Fault
from tests.support.waiting import eventually

_TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relname LIKE 'dl\\_%' AND relkind IN ('r', 'p')"
_CHECK_INTERVAL_SEC = 0.5


class OpenTransaction(Fault):
    """A session left idle in its transaction. When another fault ends the session, a new one takes its place."""

    duration_sec, breaks_sessions = (30.0, 120.0), False
    isolation: ClassVar[str] = "READ COMMITTED"

    def begin(self) -> None:
        self._opened = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_open, name="open-transaction", daemon=True)
        self._thread.start()
        eventually(lambda: self._opened, 30, "a transaction is open", interval_sec=0.1)

    def _keep_open(self) -> None:
        while not self._stopping.wait(_CHECK_INTERVAL_SEC):
            try:
                connection = self.environment.primary.connect(timeout_sec=3, name="chaos-open")
            except psycopg2.Error:
                continue
            try:
                connection.set_session(isolation_level=self.isolation, autocommit=False)
                with connection.cursor() as cursor:
                    self.use(cursor)
                self._opened += 1
                self._wait_until_over(connection)
            except psycopg2.Error:
                continue
            finally:
                connection.close()

    def _wait_until_over(self, connection: Any) -> None:
        """Until the fault ends, or the server sends something, which is the end of the session."""
        while not self._stopping.is_set() and not select.select([connection], [], [], _CHECK_INTERVAL_SEC)[0]:
            pass

    def use(self, cursor: Any) -> None:
        """The statements of the transaction."""
        raise NotImplementedError

    def end(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        self.detail = f"opened {self._opened} times"


class WritingTransaction(OpenTransaction):
    """As a load of hours: it has deleted and written rows, and is not committed."""

    name = "writing transaction left open"

    def use(self, cursor: Any) -> None:
        cursor.execute(
            "CREATE TEMP TABLE chaos_open (n int); DELETE FROM chaos_open; INSERT INTO chaos_open VALUES (1)"
        )
        cursor.execute("SELECT count(*) FROM dl_jobs")


class SnapshotHeld(OpenTransaction):
    """As a dump: a snapshot, and a lock that only reads of each table."""

    name, isolation = "snapshot held open", "REPEATABLE READ"

    def use(self, cursor: Any) -> None:
        cursor.execute("SELECT count(*) FROM dl_jobs")
        cursor.execute(_TABLES)
        for (table,) in cursor.fetchall():
            cursor.execute(f"LOCK TABLE ONLY {table} IN ACCESS SHARE MODE")


TRANSACTION_FAULTS: tuple[type[Fault], ...] = (WritingTransaction, SnapshotHeld)
