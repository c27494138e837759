"""The processes under test: workers, and the API under gunicorn. Killed, frozen, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.chaos.clock import clock
from tests.chaos.job_requests import OTHER_QUEUE, QUEUE
from tests.chaos.observer import OBSERVER_DSN_VARIABLE
from tests.support.processes import ROOT, Process

HEARTBEAT_SEC = 0.5
REAPER_INTERVAL_SEC = 0.5
THREADS, OTHER_THREADS = 8, 2


# What is killed when it ends is killed with it, as the processes of a container are.
_UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def can_have_namespaces() -> bool:
    """Whether a process may be given a namespace of pids of its own here."""
    done = subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True, timeout=20)
    return done.returncode == 0


@dataclass(frozen=True)
class Death:
    """A process that was killed: what it was running is to be recovered."""

    name: str
    pid: int
    at: float


def service_environment(
    dsn: str,
    observer_dsn: str,
    *,
    target_dsn: str | None = None,  # None: the load has none
    threads: int = THREADS,
    has_schedules: bool = False,
    engine: str | None = None,
) -> dict[str, str]:
    """Short leases and short periods: what takes minutes otherwise is seen in seconds."""
    targets = {"default": dsn, "witness": observer_dsn} | ({"warehouse": target_dsn} if target_dsn else {})
    pipelines = [
        "tests.chaos.etl",
        *(["tests.chaos.target_etl"] if target_dsn else []),
        *(["tests.chaos.scheduled_etl"] if has_schedules else []),
    ]
    engines = {} if engine is None else {"DL_EXECUTORS": json.dumps({"fake": {"address": engine}})}
    return engines | {
        "DL_DB_DSN": dsn,
        OBSERVER_DSN_VARIABLE: observer_dsn,
        "DL_TARGETS": json.dumps(targets),
        "DL_HEARTBEAT_SEC": str(HEARTBEAT_SEC),
        "DL_REAPER_PERIOD_SEC": str(REAPER_INTERVAL_SEC),
        "DL_CLAIM_BACKOFF_SEC": "2",
        "DL_DEFAULT_LEASE_TTL_SEC": "3",
        "DL_SHUTDOWN_GRACE_SEC": "1",
        "DL_STOP_STEP_SEC": "0.5",
        "PG_CONNECT_TIMEOUT": "2",
        "PG_COMMAND_TIMEOUT": "4",
        "PG_POOL_SIZE": "4",
        "PG_MAX_OVERFLOW": "4",
        "DL_PIPELINES": ",".join(pipelines),
        "DL_LOG_FORMAT": "json",
        "WORKERS_JSON": json.dumps(
            [{"queue": QUEUE, "concurrency": threads}, {"queue": OTHER_QUEUE, "concurrency": OTHER_THREADS}]
        ),
        "PYTHONPATH": str(ROOT),
    }


@dataclass
class ManagedService:
    """One of them, whichever process it is just now."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    mutant: str = ""  # which broken protocol it is started with
    own_namespace: bool = False  # of pids, as a container has: its pids mean other processes to the others
    deaths: list[Death] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)  # exit codes of unplanned ends
    is_kept_down: bool = False  # a fault keeps it down: do not restart it meanwhile
    code: Path = ROOT  # the folder that its modules come from: this checkout, or an unpacked wheel
    _process: Process | None = None
    _frozen: list[int] = field(default_factory=list)

    def start(self) -> None:
        """Start it if it does not run."""
        if self._process is not None:
            code = self._process.exit_code
            if code is None:
                return
            if not any(death.pid == self._process.pid for death in self.deaths):
                self.exit_codes.append(code)
            self._process.kill()
        launcher = ["tests.chaos.launch", self.mutant, *self.argv]
        self._process = Process(
            [*(_UNSHARE if self.own_namespace else ()), sys.executable, "-m", *launcher],
            env={**self.env, "PYTHONPATH": f"{self.code}:{self.env['PYTHONPATH']}"},
            output=self.folder / f"{self.name}.log",
            cwd=self.code,
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        inner = self._children() if self.own_namespace else []
        return inner[0] if inner else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.exit_code is None

    def worker_pids(self) -> list[int]:
        """The processes that run jobs: gunicorn's are children of its arbiter."""
        if self.argv[0] != "gunicorn":
            return [self.pid]
        return [child for child in self._children() if _kind_of(child) is None]

    def kill(self, pid: int | None = None) -> int:
        """SIGKILL: to the process, or to one of its children."""
        victim = self.pid if pid is None else pid
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self.deaths.append(Death(self.name, victim, clock()))
        return victim

    def kill_tree(self) -> int:
        """SIGKILL to the process and to everything below it; how many were below it."""
        below = self._descendants()
        self.kill()
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(below)

    def job_pids(self) -> list[int]:
        """The processes that jobs have of their own, without their watchdogs."""
        return [pid for pid in self._descendants() if _kind_of(pid) == "job"]

    def fork_server_pids(self) -> list[int]:
        return [pid for pid in self._descendants() if _kind_of(pid) == "fork-server"]

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def freeze(self, pids: list[int]) -> None:
        """SIGSTOP: they do not notice, and neither does the server."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._frozen.append(pid)

    def thaw(self) -> None:
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen.clear()

    def stop(self, timeout: float = 30) -> int | None:
        """SIGTERM, as a service manager does it; None: it had to be killed."""
        self.thaw()
        if not self.alive or self._process is None:
            return None
        self.terminate()
        try:
            return self._process.wait(timeout)
        except AssertionError:
            return None
        finally:
            self.kill_remaining()

    def kill_remaining(self) -> None:
        """Nothing of it is left, gunicorn's orphans included."""
        self.thaw()
        left = self._children() if self.alive else []
        if self._process is not None:
            self._process.kill()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def text(self) -> str:
        return "" if self._process is None else self._process.text

    def _descendants(self) -> list[int]:
        return self._children(recursive=True)

    def _children(self, *, recursive: bool = False) -> list[int]:
        if self._process is None:
            return []
        try:
            return [child.pid for child in psutil.Process(self._process.pid).children(recursive=recursive)]
        except psutil.NoSuchProcess:
            return []


def _kind_of(pid: int) -> str | None:
    """Of a process of isolation: a forked one by its name, an interpreter by its arguments. None: another process."""
    try:
        name, command = str(psutil.Process(pid).name()), " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return None
    if name.startswith("dl-"):
        return name.removeprefix("dl-")
    if "watchdog" in command:
        return "watchdog"
    return "job" if "child_main" in command else "fork-server" if "fork_server_main" in command else None
