"""The faults. Each has a name, a beginning and an end, lasts for a bounded time, and undoes itself."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import psycopg2

from tests.chaos.environment import DISK_MB, Environment
from tests.chaos.servers import FullDisk
from tests.support.waiting import eventually

BEYOND_LEASE_SEC = (4.0, 8.0)  # the longest lease has three seconds
BRIEF_SEC = (0.2, 1.0)


class Fault:
    """One injection of a fault; `chance` selects its victim."""

    name: ClassVar[str]
    duration_sec: ClassVar[tuple[float, float]] = BRIEF_SEC
    breaks_sessions: ClassVar[bool] = True  # a connection may end that its client had not closed

    def __init__(self, environment: Environment, random_source: random.Random) -> None:
        self.environment, self.random = environment, random_source
        self.detail = ""  # what it did, for the report

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Nothing is left to undo, unless a fault says so."""


# ── processes ───────────────────────────────────────────────────────────────────────────────────────────────────────


class WorkerKilled(Fault):
    name, duration_sec = "worker SIGKILL", (0.5, 4.0)

    def begin(self) -> None:
        self.victim = _pick(self.environment.workers, self.random)
        self.victim.down = True
        self.victim.kill()
        self.detail = self.victim.name

    def end(self) -> None:
        self.victim.down = False


class WorkerTerminated(WorkerKilled):
    name, duration_sec = "worker SIGTERM", (3.0, 6.0)

    def begin(self) -> None:
        self.victim = _pick(self.environment.workers, self.random)
        self.victim.down = True
        self.victim.terminate()
        self.detail = self.victim.name


class WorkerFrozen(Fault):
    name, duration_sec, breaks_sessions = "worker SIGSTOP past the lease", BEYOND_LEASE_SEC, False

    def begin(self) -> None:
        self.victim = _pick(self.environment.workers, self.random)
        self.victim.freeze([self.victim.pid])
        self.detail = self.victim.name

    def end(self) -> None:
        self.victim.thaw()


class WorkerFrozenSessionsEnded(WorkerFrozen):
    """The worst zombie: frozen, and its keys' session locks are gone; its successor has begun when it thaws."""

    name, breaks_sessions = "worker SIGSTOP, its sessions ended", True

    def begin(self) -> None:
        super().begin()
        for proxy in self.environment.proxies:
            proxy.cut()


class WorkerFrozenKeysEnded(WorkerFrozen):
    """As bad: the session that holds its keys has ended, and the others live: what it commits late can arrive."""

    name, breaks_sessions = "worker SIGSTOP, its keys' session ended", True

    def begin(self) -> None:
        super().begin()
        eventually(self._end_sessions, 20, "a session that holds keys", interval_sec=0.1)

    def _end_sessions(self) -> list[Any]:
        with suppress(psycopg2.Error):  # the other lane may have the server down just now
            return self.environment.primary.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'dataloader-claim:%'"
            )
        return []


class WorkerTreeKilled(WorkerKilled):
    """As when a container is killed: the worker and all that it has started, watchdogs and jobs, at once."""

    name = "worker and its processes SIGKILL"

    def begin(self) -> None:
        self.victim = _pick(self.environment.workers, self.random)
        self.victim.down = True
        killed = self.victim.kill_tree()
        self.detail = f"{self.victim.name} and {killed} more"


class JobProcessKilled(Fault):
    """A job's own process dies, and what it asked of a server is still being done there."""

    name = "process of a job SIGKILL"

    def begin(self) -> None:
        pids = eventually(self._job_pids, 30, "a job has a process of its own", interval_sec=0.05)
        victim = _pick(pids, self.random)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self.detail = str(victim)

    def _job_pids(self) -> list[int]:
        return [pid for service in self.environment.services for pid in service.job_pids()]


class EngineDown(Fault):
    """Its programs run on, and it knows them when it is up again."""

    name, duration_sec, breaks_sessions = "engine down", (1.0, 6.0), False

    def begin(self) -> None:
        if self.environment.engine is not None:
            self.environment.engine.down()

    def end(self) -> None:
        if self.environment.engine is not None:
            self.environment.engine.up()


class ArbiterKilled(Fault):
    name, duration_sec = "gunicorn arbiter SIGKILL", (3.0, 5.0)

    def begin(self) -> None:
        gunicorn = self.environment.gunicorn
        gunicorn.is_kept_down = True
        for pid in gunicorn.worker_pids():  # they end by themselves when the arbiter has gone
            self.detail += f"{pid} orphaned "
        gunicorn.kill()

    def end(self) -> None:
        self.environment.gunicorn.is_kept_down = False


class GunicornWorkerKilled(Fault):
    name = "gunicorn worker SIGKILL"

    def begin(self) -> None:
        pids = eventually(self.environment.gunicorn.worker_pids, 20, "gunicorn has a worker", interval_sec=0.05)
        self.detail = str(self.environment.gunicorn.kill(_pick(pids, self.random)))


class GunicornTerminated(ArbiterKilled):
    name, duration_sec = "gunicorn SIGTERM", (3.0, 6.0)

    def begin(self) -> None:
        self.environment.gunicorn.is_kept_down = True
        self.environment.gunicorn.terminate()


class GunicornFrozen(Fault):
    name, duration_sec, breaks_sessions = "gunicorn SIGSTOP past the lease", BEYOND_LEASE_SEC, False

    def begin(self) -> None:
        gunicorn = self.environment.gunicorn
        pids = {"arbiter": [gunicorn.pid], "worker": gunicorn.worker_pids()}
        self.detail = self.random.choice(["arbiter", "worker", "both"])
        gunicorn.freeze([pid for who, those in pids.items() if self.detail in (who, "both") for pid in those])

    def end(self) -> None:
        self.environment.gunicorn.thaw()


# ── PostgreSQL ──────────────────────────────────────────────────────────────────────────────────────────────────────


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
            _signal_all(pids, signal.SIGSTOP)
            self._stopping.wait(chance.uniform(0.2, 0.9))
            _signal_all(pids, signal.SIGCONT)
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
        _signal_all(self.environment.primary.backend_pids(), signal.SIGCONT)


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
        self._standby = world.make_server(disk_mb=DISK_MB)
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


# ── connections ─────────────────────────────────────────────────────────────────────────────────────────────────────


class SessionsTerminated(Fault):
    """pg_terminate_backend of one kind of connection."""

    pattern: ClassVar[str]

    def begin(self) -> None:
        """There may be none just now: after a restart they come back one by one."""
        count = eventually(self._terminate, 10, f"a session of the kind {self.pattern}", interval_sec=0.1)
        self.detail = f"{count} sessions"

    def _terminate(self) -> int:
        with suppress(psycopg2.Error):
            ((count,),) = self.environment.primary.query(
                "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE application_name LIKE %s",
                self.pattern,
            )
            return int(count)
        return 0


class ListenTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: listen", "dataloader-listen:%"


class ClaimTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: claim", "dataloader-claim:%"


class SettleTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: settle", "dataloader-settle:%"


class RenewTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: renew", "dataloader-renew:%"


class ApiTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: API", "dataloader-api"


class TaskSessionsTerminated(SessionsTerminated):
    name, pattern = "pg_terminate_backend: pipelines' own", "dataloader:%"


class NetworkFault(Fault):
    """Something happens to all connections, or to those of one way to the server."""

    def begin(self) -> None:
        world = self.environment
        ways = {"all": world.proxies, "address": [world.address], "multi-host": world.slots}
        self.detail = self.random.choice(["all", "all", "address", "multi-host"])
        self.proxies = [proxy for proxy in ways[self.detail] if proxy is not world.slots[1 - world.slot]]
        for proxy in self.proxies:
            self.apply(proxy)

    apply: Callable[[Any], object]

    def end(self) -> None:
        for proxy in self.proxies:
            proxy.heal()


class NetworkSlow(NetworkFault):
    name, duration_sec, breaks_sessions = "network slow", (2.0, 6.0), False

    def apply(self, proxy: Any) -> None:
        proxy.slow(self.random.uniform(0.02, 0.25))


class NetworkCut(NetworkFault):
    name = "network cut"

    def apply(self, proxy: Any) -> None:
        proxy.cut()


class NetworkHalfOpen(NetworkFault):
    name, duration_sec = "network half open", (2.0, 7.0)

    def apply(self, proxy: Any) -> None:
        proxy.half_open()

    def end(self) -> None:
        for proxy in self.proxies:
            proxy.cut_half_open()


class NetworkSilent(NetworkFault):
    name, duration_sec = "network black hole", (2.0, 7.0)

    def apply(self, proxy: Any) -> None:
        proxy.silence()

    def end(self) -> None:
        super().end()
        if self.random.random() < 0.5:  # a firewall that has forgotten its connections
            for proxy in self.proxies:
                proxy.cut()


class NetworkOneWay(NetworkSilent):
    name, duration_sec = "network one way", (2.0, 5.0)

    def apply(self, proxy: Any) -> None:
        proxy.block_responses()


class NetworkRefused(NetworkFault):
    name, duration_sec = "network refuses", (2.0, 5.0)

    def apply(self, proxy: Any) -> None:
        proxy.refuse()
        proxy.cut()


class NetworkHangsUp(NetworkRefused):
    name = "network hangs up"

    def apply(self, proxy: Any) -> None:
        proxy.hang_up()
        proxy.cut()


PROCESS_FAULTS: tuple[type[Fault], ...] = (
    WorkerKilled, WorkerTreeKilled, JobProcessKilled, WorkerTerminated, WorkerFrozen, WorkerFrozenSessionsEnded,
    WorkerFrozenKeysEnded, GunicornWorkerKilled, ArbiterKilled, GunicornTerminated, GunicornFrozen,
    EngineDown,
)  # fmt: skip
SERVER_FAULTS: tuple[type[Fault], ...] = (
    ImmediateRestart, FastRestart, ServerKilled, DiskFull, DatabaseSlow, ConnectionsExhausted, NotifyQueueFilling,
    LongTransaction, RowsLocked, Failover, ListenTerminated, ClaimTerminated, SettleTerminated, RenewTerminated,
    ApiTerminated, TaskSessionsTerminated, NetworkSlow, NetworkCut, NetworkHalfOpen, NetworkSilent, NetworkOneWay,
    NetworkRefused, NetworkHangsUp,
)  # fmt: skip
FAULTS = {fault.name: fault for fault in (*PROCESS_FAULTS, *SERVER_FAULTS)}


def _pick(candidates: Sequence[Any], random_source: random.Random) -> Any:
    return random_source.choice(list(candidates))


def _signal_all(pids: Sequence[int], signal_number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal_number)
