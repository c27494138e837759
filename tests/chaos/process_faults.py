"""Faults of processes: killed, terminated, frozen."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

import psycopg2

from tests.chaos.fault import BEYOND_LEASE_SEC, Fault, pick_one
from tests.support.waiting import eventually


class WorkerKilled(Fault):
    name, duration_sec = "worker SIGKILL", (0.5, 4.0)

    def begin(self) -> None:
        self.victim = pick_one(self.environment.workers, self.random)
        self.victim.down = True
        self.victim.kill()
        self.detail = self.victim.name

    def end(self) -> None:
        self.victim.down = False


class WorkerTerminated(WorkerKilled):
    name, duration_sec = "worker SIGTERM", (3.0, 6.0)

    def begin(self) -> None:
        self.victim = pick_one(self.environment.workers, self.random)
        self.victim.down = True
        self.victim.terminate()
        self.detail = self.victim.name


class WorkerFrozen(Fault):
    name, duration_sec, breaks_sessions = "worker SIGSTOP past the lease", BEYOND_LEASE_SEC, False

    def begin(self) -> None:
        self.victim = pick_one(self.environment.workers, self.random)
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
        self.victim = pick_one(self.environment.workers, self.random)
        self.victim.down = True
        killed = self.victim.kill_tree()
        self.detail = f"{self.victim.name} and {killed} more"


class JobProcessKilled(Fault):
    """A job's own process dies, and what it asked of a server is still being done there."""

    name = "process of a job SIGKILL"

    def begin(self) -> None:
        pids = eventually(self._job_pids, 30, "a job has a process of its own", interval_sec=0.05)
        victim = pick_one(pids, self.random)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self.detail = str(victim)

    def _job_pids(self) -> list[int]:
        return [pid for service in self.environment.services for pid in service.job_pids()]


class ForkServerKilled(JobProcessKilled):
    """What forks the processes of jobs dies; the processes do not."""

    name = "fork server SIGKILL"

    def _job_pids(self) -> list[int]:
        return [pid for service in self.environment.services for pid in service.fork_server_pids()]


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
        self.detail = str(self.environment.gunicorn.kill(pick_one(pids, self.random)))


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


PROCESS_FAULTS: tuple[type[Fault], ...] = (
    WorkerKilled, WorkerTreeKilled, JobProcessKilled, ForkServerKilled, WorkerTerminated, WorkerFrozen,
    WorkerFrozenSessionsEnded, WorkerFrozenKeysEnded, GunicornWorkerKilled, ArbiterKilled, GunicornTerminated,
    GunicornFrozen, EngineDown,
)  # fmt: skip
