"""PostgreSQL servers of the campaign's own: started, crashed, filled up, copied into a standby, promoted."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2

from dataloader.app.postgres.binaries import Binaries, Choice, ServerAccount, choose_binaries
from dataloader.app.postgres.cluster import Cluster, setting_options
from tests.support.waiting import eventually

_PORT = 5432  # of the Unix socket's name alone: clients come through the proxies
_USER = "dataloader"
_NOTIFY_QUEUE_PAGES = 17  # from this version on the queue of notifications may be made smaller than 8 GB
# A crash of ours kills processes and not the machine, so nothing needs to reach a disk; what was committed must have
# been handed to the kernel all the same.
_SETTINGS = {
    "listen_addresses": "",
    "port": str(_PORT),
    "fsync": "off",
    "synchronous_commit": "on",
    "shared_buffers": "64MB",
    "max_connections": "90",
    "wal_keep_size": "64MB",
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
    "wal_retrieve_retry_interval": "100ms",
    "log_line_prefix": "%m [%p] %a ",
    "timezone": "UTC",
}


class Server:
    """One PostgreSQL on one folder. `disk_mb`: its folder is a file system of its own, which can be full."""

    def __init__(
        self, folder: Path, *, binaries: Choice, disk_mb: int | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self._settings = folder, {**_SETTINGS, **(settings or {})}
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        self.mounted = disk_mb is not None and _mount(folder, disk_mb)
        self._account = ServerAccount.choose(folder / "cluster")
        self._cluster = Cluster(folder / "cluster", self._account)
        self._binaries: Binaries = choose_binaries(binaries, account=self._account, data_folder=folder, major=None)
        if self.version >= _NOTIFY_QUEUE_PAGES:
            self._settings.setdefault("max_notify_queue_pages", "512")  # so that it can be filled
        self.sockets = folder / "run"
        self.sockets.mkdir(mode=0o755)
        self._account.take_ownership(self.sockets)
        self.dsn = f"host={self.sockets} port={_PORT} user={_USER} dbname=postgres"

    @property
    def address(self) -> str:
        """The path of its socket."""
        return f"{self.sockets}/.s.PGSQL.{_PORT}"

    @property
    def version(self) -> int:
        return int(self._binaries.major)

    def describe(self) -> str:
        return str(self._binaries)

    # ── a life ──────────────────────────────────────────────────────────────────────────────────────────────────

    def create(self) -> None:
        self._cluster.create(self._binaries, sync=False)
        self.start()

    def start(self, timeout: float = 60) -> None:
        """Start it, however it ended; what a killed one has left is waited for."""
        eventually(lambda: not self._cluster.orphans(), timeout, "the old server's processes have ended")
        self._cluster.clear_leftovers(self.sockets)
        log = self.folder / "server.log"
        log.touch(mode=0o600)
        self._account.take_ownership(log)
        words = shlex.join([*setting_options(self._settings), "-k", str(self.sockets)])
        done = self._pg_ctl("start", "-w", "-t", str(int(timeout)), "-l", log, "-o", words, timeout=timeout + 30)
        if done.returncode != 0:
            raise RuntimeError(f"the server in {self.folder} did not start: {_tail(log)}")

    def stop(self, mode: str = "fast") -> None:
        if self.alive:
            self._pg_ctl("stop", "-w", "-t", "30", "-m", mode, timeout=60)
        if self.alive:
            self._pg_ctl("stop", "-w", "-t", "30", "-m", "immediate", timeout=60)

    def restart(self, mode: str) -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill -9 the main process and its remaining children."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for pid in self._cluster.orphans():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        self.stop("immediate")
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def alive(self) -> bool:
        return self._cluster.postmaster() is not None

    @property
    def pid(self) -> int:
        found = self._cluster.postmaster()
        if found is None:
            raise ProcessLookupError(f"no server runs in {self.folder}")
        return found.pid

    def _pg_ctl(self, *arguments: str | Path, timeout: float) -> subprocess.CompletedProcess[str]:
        argv: list[str | Path] = [self._binaries.program("pg_ctl"), *arguments, "-D", self._cluster.folder]
        return self._account.run(argv, timeout_sec=timeout)

    # ── what may be asked of it ─────────────────────────────────────────────────────────────────────────────────

    def connect(self, *, timeout_sec: int = 10, dsn: str | None = None, name: str = "chaos") -> Any:
        """A connection past every proxy."""
        connection = psycopg2.connect(dsn or self.dsn, connect_timeout=timeout_sec, application_name=name)
        connection.autocommit = True
        return connection

    def query(self, statement: str, *parameters: Any, timeout_sec: int = 10) -> list[tuple[Any, ...]]:
        with closing(self.connect(timeout_sec=timeout_sec)) as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def is_accepting(self) -> bool:
        try:
            return self.query("SELECT 1", timeout_sec=3) == [(1,)]
        except psycopg2.Error:
            return False

    def backend_pids(self) -> list[int]:
        """The processes that serve clients; not those that keep the server."""
        try:
            children = psutil.Process(self.pid).children()
        except (psutil.NoSuchProcess, ProcessLookupError):
            return []
        return [child.pid for child in children if _is_client_backend(child)]

    # ── a standby ───────────────────────────────────────────────────────────────────────────────────────────────

    def follow(self, primary: Server, timeout: float = 60) -> None:
        """Become a standby of the primary, and wait until every commit there waits for us."""
        program = self._binaries.program("pg_basebackup")
        self._cluster.folder.mkdir(mode=0o700)
        self._account.take_ownership(self._cluster.folder)
        argv: list[str | Path] = [
            program,
            "-h",
            primary.sockets,
            "-p",
            str(_PORT),
            "-U",
            _USER,
            "-D",
            self._cluster.folder,
        ]
        done = self._account.run([*argv, "--checkpoint=fast", "-X", "stream", "-R", "--no-sync"], timeout_sec=timeout)
        if done.returncode != 0:
            raise RuntimeError(f"the base backup failed: {done.stderr.strip()}")
        self.start()
        primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.query("SELECT pg_reload_conf()")
        eventually(
            lambda: primary.query(
                "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'"
                "   AND flush_lsn >= pg_current_wal_flush_lsn()"
            ),
            timeout,
            "the standby has all that the primary has",
        )

    def detach_standby(self, primary: Server) -> None:
        """No commit there waits for us any more."""
        primary.query("ALTER SYSTEM RESET synchronous_standby_names")
        primary.query("SELECT pg_reload_conf()")
        self.remove()

    def promote(self) -> None:
        self._pg_ctl("promote", "-w", "-t", "30", timeout=60)
        eventually(lambda: self.query("SELECT pg_is_in_recovery()") == [(False,)], 30, "the standby takes writes")


class FullDisk:
    """Takes a server's room away, and gives it back.

    Its folder is a tmpfs, which a file of ours fills up. Where mounting is not permitted, its processes are forbidden
    to let any file grow: to PostgreSQL both are the same refusal to write.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._ballast = server, server.folder / "ballast"

    @property
    def method(self) -> str:
        return "a file fills its tmpfs" if self._server.mounted else "RLIMIT_FSIZE of its processes"

    def fill(self) -> None:
        if self._server.mounted:
            with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
                for size in (1 << 20, 1 << 12):  # the last pages too
                    with suppress(OSError):
                        while True:
                            file.write(b"\0" * size)
        else:
            self._limit(8192)

    def free(self) -> None:
        """And bring the server back, if it gave up: without room for its log it cannot go on."""
        self._ballast.unlink(missing_ok=True)
        if not self._server.mounted:
            self._limit(psutil.RLIM_INFINITY)
        deadline = time.monotonic() + 60
        while not self._server.is_accepting():
            if not self._server.alive:
                with suppress(RuntimeError):
                    self._server.start()
            elif time.monotonic() > deadline:
                raise RuntimeError("the server did not recover from a full disk")
            time.sleep(0.1)

    def _limit(self, max_bytes: int) -> None:
        with suppress(psutil.Error, ProcessLookupError):
            postmaster = psutil.Process(self._server.pid)
            for process in (postmaster, *postmaster.children()):
                with suppress(psutil.Error):
                    process.rlimit(psutil.RLIMIT_FSIZE, (max_bytes, psutil.RLIM_INFINITY))


def _mount(folder: Path, size_mb: int) -> bool:
    """A file system of its own for the folder; False: that is not permitted here."""
    if os.geteuid() != 0 or os.environ.get("CHAOS_NO_MOUNT"):
        return False
    argv = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=755", "dataloader-chaos", str(folder)]
    try:
        return subprocess.run(argv, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _is_client_backend(process: Any) -> bool:
    try:
        result = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return "[local]" in result


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
