"""Faults of PostgreSQL: it restarts, dies, is slow, full or locked."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg2

from tests.chaos.fault import Fault, signal_all
from tests.chaos.servers import FullDisk
from tests.support.waiting import eventually


class ImmediateRestart(Fault):
    name, mode = "PostgreSQL immediate restart", "immediate"
    duration_sec = (0.1, 4.0)

    def begin(self) -> None:
        self.environment.primary.stop(self.mode)

    def end(self) -> None:
        self.environment.primary.start()


class FastRestart(ImmediateRestart):
    name, mode = "PostgreSQL fast restart", "fast"


class ServerKilled(ImmediateRestart):
    name = "PostgreSQL SIGKILL"

    def begin(self) -> None:
        self.environment.primary.kill()


class DiskFull(Fault):
    name, duration_sec = "disk full", (2.0, 5.0)

    def begin(self) -> None:
        self._disk = FullDisk(self.environment.primary)
        self._disk.fill()
        self.detail = self._disk.method

    def end(self) -> None:
        self._disk.free()


class DatabaseSlow(Fault):
    """Stops the server's processes intermittently, while scans and sorts use the CPU."""

    name, duration_sec, breaks_sessions = "database too slow", (3.0, 6.0), False

    def begin(self) -> None:
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._stutter, daemon=True)]
        self._threads += [threading.Thread(target=self._burn, daemon=True) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def _stutter(self) -> None:
        chance = random.Random(self.random.random())
        while not self._stopping.is_set():
            pids = self.environment.primary.backend_pids()
            signal_all(pids, signal.SIGSTOP)
            self._stopping.wait(chance.uniform(0.2, 0.9))
            signal_all(pids, signal.SIGCONT)
            self._stopping.wait(chance.uniform(0.1, 0.4))

    def _burn(self) -> None:
        with suppress(psycopg2.Error):
            while not self._stopping.is_set():
                self.environment.primary.query(
                    "SELECT md5(string_agg(random()::text, '')) FROM generate_series(1, 200000) ORDER BY 1"
                )

    def end(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)
        signal_all(self.environment.primary.backend_pids(), signal.SIGCONT)


class ConnectionsExhausted(Fault):
    name, duration_sec = "connection limit reached", (2.0, 5.0)

    def begin(self) -> None:
        """Take what is left, again and again: what a service gives back, it does not get back."""
        self._held: list[Any] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._take_connections, daemon=True)
        self._thread.start()
        eventually(lambda: self._refused, 20, "the server refuses a connection")

    _refused = 0

    def _take_connections(self) -> None:
        while not self._stopping.is_set():
            try:
                self._held.append(self.environment.primary.connect(timeout_sec=3, name="chaos-hog"))
            except psycopg2.OperationalError:
                self._refused += 1
                self._stopping.wait(0.05)

    def end(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        self.detail = f"{len(self._held)} taken"
        for connection in self._held:
            connection.close()


class NotifyQueueFilling(Fault):
    """A session that has asked to listen stays idle in a transaction: nothing it has not read can be thrown away.

    Where the server lets the queue be made small (17 and newer) it is filled until NOTIFY fails. Older
    ones have room for 8 GB, of which some thousand large notifications are a small part; the report has the number.
    """

    name, duration_sec, breaks_sessions = "NOTIFY queue filling", (2.0, 5.0), False

    def begin(self) -> None:
        self._listener = self.environment.primary.connect(name="chaos-deaf")
        self._listener.autocommit = False
        with self._listener.cursor() as cursor:
            cursor.execute("LISTEN chaos_flood")
            self._listener.commit()
            cursor.execute("SELECT 1")
        full = self._fill_queue()
        ((usage,),) = self.environment.primary.query("SELECT pg_notification_queue_usage()")
        self.detail = f"{usage:.2%} used{', and refused to take more' if full else ''}"

    def _fill_queue(self, max_notifications: int = 4500) -> bool:
        """Each large notification takes a page. True: the server takes no more."""
        for many in (500, 20, 1):
            try:
                while max_notifications > 0:
                    max_notifications -= many
                    self.environment.primary.query(
                        "SELECT count(pg_notify('chaos_flood', repeat('x', 7900) || n)) FROM generate_series(1, %s) n",
                        many,
                    )
            except psycopg2.Error:
                continue
            return False
        return True

    def end(self) -> None:
        self._listener.close()


class LongTransaction(Fault):
    """A snapshot that is held open: nothing that dies meanwhile can be cleaned away."""

    name, duration_sec, breaks_sessions = "long transaction", (5.0, 12.0), False

    def begin(self) -> None:
        self._connection = self.environment.primary.connect(name="chaos-long")
        self._connection.set_session(isolation_level=self.isolation, autocommit=False)
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM dl_jobs")
            cursor.execute(self.STATEMENT, self.parameters())

    isolation = "REPEATABLE READ"
    STATEMENT = "CREATE TEMP TABLE chaos_long AS SELECT job_id FROM dl_jobs LIMIT %s"

    def parameters(self) -> Sequence[Any]:
        return (10,)

    def end(self) -> None:
        self._connection.close()


class RowsLocked(LongTransaction):
    """An open transaction holds the rows of waiting and running jobs."""

    name, duration_sec = "rows of jobs locked", (1.0, 4.0)
    isolation = "READ COMMITTED"
    STATEMENT = """SELECT job_id FROM dl_jobs WHERE status IN ('queued', 'running')
               ORDER BY md5(job_id::text || %s) LIMIT 8 FOR UPDATE SKIP LOCKED"""

    def parameters(self) -> Sequence[Any]:
        return (str(self.random.random()),)


class Failover(Fault):
    """The primary dies, and a standby that every commit waited for takes its place."""

    name, duration_sec = "failover to the standby", (0.2, 1.5)

    def begin(self) -> None:
        world = self.environment
        self._standby = world.make_server(disk_mb=world.disk_mb)
        try:
            self._standby.follow(world.primary)
        except Exception:
            self._standby.detach_standby(world.primary)
            raise
        world.primary.kill()
        self._dead = True

    _dead = False

    def end(self) -> None:
        if not self._dead:
            return
        self._standby.promote()
        self.environment.promote_to_primary(self._standby)
        self.detail = f"now in {self._standby.folder.name}"


SERVER_FAULTS: tuple[type[Fault], ...] = (
    ImmediateRestart, FastRestart, ServerKilled, DiskFull, DatabaseSlow, ConnectionsExhausted, NotifyQueueFilling,
    LongTransaction, RowsLocked, Failover,
)  # fmt: skip
