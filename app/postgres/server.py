"""A server on a data folder, shared by all processes that start it, and stopped by the last."""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import re
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dataloader.app.errors import EmbeddedServerError
from dataloader.app.postgres.binaries import Binaries, Choice, ServerAccount, choose_binaries
from dataloader.app.postgres.cluster import DATABASE, PORT, USER, Cluster, last_lines, setting_options

START_TIMEOUT_SEC = 60
PROBE_TIMEOUT_SEC = 5
STOP_TIMEOUT_SEC = 60
EXCLUSIVE_TIMEOUT_SEC = START_TIMEOUT_SEC + STOP_TIMEOUT_SEC + 60  # for an initdb, a recovery and a stop
MAX_SOCKET_PATH_BYTES = 80  # with its file name a socket's path may have about 100
MAX_LOG_BYTES = 10 * 1024 * 1024
DEFAULT_SETTINGS = {
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
}


@dataclass(frozen=True)
class _RunningServer:
    cluster: Cluster
    binaries: Binaries
    socket_folder: Path
    usage_lock: UsageLock
    started_by_pid: int  # a forked child inherits this object, but not the lock

    @property
    def data_folder(self) -> Path:
        return self.cluster.folder.parent


class EmbeddedServer:
    """A PostgreSQL server that listens on a private Unix socket only.

    Processes that name the same data folder share one server; the last to stop it ends it. A server that a killed
    process left behind is taken over as it is, with the settings it was started with. Raises EmbeddedServerError
    with what was found and what would do.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        binaries: Choice = "auto",
        settings: Mapping[str, str] | None = None,
        fallback_dir: Path = Path("/var/lib/dataloader"),
    ) -> None:
        self._data_dir = data_dir.resolve()
        self._binaries_choice = binaries
        self._settings = {**DEFAULT_SETTINGS, **(settings or {})}
        # Where root keeps the cluster when the account that runs it cannot reach the data folder.
        self._fallback_dir = fallback_dir.resolve()
        self._running: _RunningServer | None = None

    def start(self) -> str:
        """Start the server, or join the running one, and return the DSN."""
        if self._running is None:
            try:
                self._running = self._start_or_join()
            except (OSError, subprocess.SubprocessError) as error:
                raise EmbeddedServerError(
                    f"the server could not be started in {self._data_dir}: {error}; make the folder usable for this "
                    "account, name another with DL_DATA_DIR, or a server with DL_DB_DSN"
                ) from error
            atexit.register(self.stop)
        return self.dsn

    def revive(self, stopping: threading.Event) -> bool:
        """Start the server again if it is gone and this process still uses it; return whether it was.

        Not if `stopping` is set: a stopping service must not start the server.
        """
        running = self._running
        if running is None or running.started_by_pid != os.getpid() or running.cluster.postmaster() is not None:
            return False
        with exclusive(self._data_dir / "turn.lock", timeout_sec=EXCLUSIVE_TIMEOUT_SEC):
            # Another process may have started it meanwhile, and this one may have stopped it.
            if stopping.is_set() or self._running is not running or running.cluster.postmaster() is not None:
                return False
            if not os.path.exists(running.cluster.folder):
                raise EmbeddedServerError(f"{running.cluster.folder} is gone; put it back, or start the service again")
            self._ensure_running(running.cluster, running.binaries)
            return True

    def stop(self) -> None:
        """Release the usage lock; the last process stops the server. A forked child only closes its copy."""
        running = self._running
        if running is None:
            return
        if running.started_by_pid != os.getpid():
            self._running = None
            running.usage_lock.detach()
            return
        with exclusive(self._data_dir / "turn.lock", timeout_sec=EXCLUSIVE_TIMEOUT_SEC):
            self._running = None
            atexit.unregister(self.stop)
            if running.usage_lock.release():
                _stop_server(running)

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def dsn(self) -> str:
        folder = str(self._require_running().socket_folder)
        return f"host={folder} port={PORT} user={USER} dbname={DATABASE}"

    @property
    def pid(self) -> int | None:
        """The server's main process; None when it has died."""
        postmaster = self._require_running().cluster.postmaster()
        return postmaster.pid if postmaster else None

    def describe(self) -> str:
        """Describe the server in one line for people."""
        if self._running is None:
            return f"embedded PostgreSQL, not started, data in {self._data_dir}"
        running = self._running
        text = f"{running.binaries}, data in {running.data_folder}"
        if running.cluster.account.borrowed:
            text += f", run as {running.cluster.account.name}"
        if running.data_folder != self._data_dir:
            text += f", which may not reach {self._data_dir}"
        return text

    def _require_running(self) -> _RunningServer:
        if self._running is None:
            raise EmbeddedServerError(f"the server of {self._data_dir} is not started; call start() first")
        return self._running

    def _start_or_join(self) -> _RunningServer:
        made = not os.path.exists(self._data_dir)
        self._data_dir.mkdir(parents=True, exist_ok=True)
        if made:
            # Only for a folder made here. The account that root lends must be able to enter it.
            self._data_dir.chmod(0o755 if os.geteuid() == 0 else 0o700)
        with exclusive(self._data_dir / "turn.lock", timeout_sec=EXCLUSIVE_TIMEOUT_SEC):
            place, account = self._choose_folder()
            cluster = Cluster(place / "cluster", account)
            binaries = choose_binaries(self._binaries_choice, account=account, data_folder=place, major=cluster.major)
            usage_lock = UsageLock(self._data_dir / "sharers.lock")
            try:
                socket_folder = self._ensure_running(cluster, binaries)
            except BaseException:
                usage_lock.release()
                raise
            return _RunningServer(cluster, binaries, socket_folder, usage_lock, os.getpid())

    def _choose_folder(self) -> tuple[Path, ServerAccount]:
        """Return the cluster's folder and its owner: the data folder, if the account that root lends can enter it."""
        pointer = self._data_dir / "elsewhere"
        if os.path.exists(pointer):
            place = Path(pointer.read_text(encoding="utf-8").strip())
            place.mkdir(parents=True, exist_ok=True)
            return place, ServerAccount.choose(place / "cluster")
        account = ServerAccount.choose(self._data_dir / "cluster")
        if not account.borrowed or account.can_access(self._data_dir):
            return self._data_dir, account
        if os.path.exists(self._data_dir / "cluster"):
            raise EmbeddedServerError(
                f"{account.name}, who owns {self._data_dir}/cluster, may not reach it any more; "
                "give the folder back its permissions, or name another with DL_DATA_DIR"
            )
        place = self._make_fallback_folder(account)
        pointer.write_text(f"{place}\n", encoding="utf-8")
        return place, account

    def _make_fallback_folder(self, account: ServerAccount) -> Path:
        if not os.path.exists(self._fallback_dir):
            self._fallback_dir.mkdir(parents=True)
            self._fallback_dir.chmod(0o755)
        place = Path(tempfile.mkdtemp(prefix="postgres-", dir=self._fallback_dir))
        place.chmod(0o755)
        if not account.can_access(place):
            place.rmdir()
            raise EmbeddedServerError(
                f"{account.name} may reach neither {self._data_dir} nor {self._fallback_dir}; "
                "name a folder it can reach with DL_DATA_DIR, or start as an ordinary user"
            )
        return place

    def _ensure_running(self, cluster: Cluster, binaries: Binaries) -> Path:
        """Make sure that a server runs on the cluster, and return the folder of its socket."""
        if not os.path.exists(cluster.folder):
            cluster.create(binaries, sync=self._settings.get("fsync") != "off")
        deadline = time.monotonic() + START_TIMEOUT_SEC
        while (found := cluster.read_pid_file()) is not None:
            if _accepts_connections(binaries, found.socket_folder):
                return found.socket_folder  # of another process, or left behind by a killed one
            if cluster.postmaster() is None:
                break
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"the server with pid {found.pid} holds {cluster.folder} but does not answer; stop it with "
                    f"`{binaries.program('pg_ctl')} stop -m immediate -D {cluster.folder}` and start again"
                )
            time.sleep(0.02)
        return self._launch(cluster, binaries, deadline)

    def _launch(self, cluster: Cluster, binaries: Binaries, deadline: float) -> Path:
        account = cluster.account
        while cluster.orphans():
            if time.monotonic() > deadline:
                pids = " ".join(map(str, cluster.orphans()))
                raise EmbeddedServerError(
                    f"the server of {cluster.folder} was killed, and its processes {pids} still work on; "
                    f"end them (`kill -QUIT {pids}`) and start again"
                )
            time.sleep(0.02)
        place = cluster.folder.parent
        socket_folder = _socket_folder(place, account)
        cluster.clear_leftovers(socket_folder)
        log = _open_log(place, account)
        size_before = log.stat().st_size
        settings = {"listen_addresses": "", "port": str(PORT), **self._settings}
        words = [*setting_options(settings), "-k", str(socket_folder)]
        options: list[str | Path] = [
            "-w",
            "-t",
            str(START_TIMEOUT_SEC),
            "-D",
            cluster.folder,
            "-l",
            log,
            "-o",
            shlex.join(words),
        ]
        done = binaries.run("pg_ctl", "start", *options, timeout_sec=START_TIMEOUT_SEC + 30)
        if done.returncode != 0 or not _accepts_connections(binaries, socket_folder):
            with log.open(encoding="utf-8", errors="replace") as file:
                file.seek(size_before)
                output = file.read() or done.stderr or done.stdout
            raise EmbeddedServerError(
                f"{binaries} did not start as {account.name}; mend what it says in {log}, then start again:\n"
                f"{last_lines(output)}"
            )
        return socket_folder


def _socket_folder(data_folder: Path, account: ServerAccount) -> Path:
    """Return a private folder of the account with a path that is short and plain enough for a socket."""
    folder = data_folder / "run"
    if len(os.fsencode(folder)) > MAX_SOCKET_PATH_BYTES or not re.fullmatch(r"[\w./+-]+", str(folder), re.ASCII):
        name = hashlib.sha256(os.fsencode(data_folder)).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"dataloader-{account.uid}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid not in (os.geteuid(), account.uid):
        raise EmbeddedServerError(f"{folder} belongs to someone else, who could listen in; remove it and start again")
    folder.chmod(0o700)
    account.take_ownership(folder)
    return folder


def _open_log(data_folder: Path, account: ServerAccount) -> Path:
    log = data_folder / "server.log"
    if os.path.exists(log) and log.stat().st_size > MAX_LOG_BYTES:
        log.rename(data_folder / "server.log.1")
    log.touch(mode=0o600)
    account.take_ownership(log)
    return log


def _accepts_connections(binaries: Binaries, socket_folder: Path) -> bool:
    """Return whether a server answers: a pid, a file or a socket may all outlive theirs.

    One that refuses this connection, because it has too many for example, works too; one that starts or stops does not.
    """
    if not socket_folder.is_absolute():
        return False  # not written to the pid file yet
    options: list[str | Path] = [
        "-h",
        socket_folder,
        "-p",
        str(PORT),
        "-U",
        USER,
        "-d",
        DATABASE,
        "-t",
        str(PROBE_TIMEOUT_SEC),
    ]
    return binaries.run("pg_isready", *options, timeout_sec=PROBE_TIMEOUT_SEC + 30).returncode == 0


def _stop_server(running: _RunningServer) -> None:
    cluster = running.cluster
    if cluster.postmaster() is not None:
        options: list[str | Path] = ["-w", "-t", str(STOP_TIMEOUT_SEC), "-D", cluster.folder]
        done = running.binaries.run("pg_ctl", "stop", *options, "-m", "fast", timeout_sec=STOP_TIMEOUT_SEC + 30)
        if done.returncode != 0 and cluster.postmaster() is not None:
            # The cluster recovers at the next start; an unused server must not stay behind.
            running.binaries.run("pg_ctl", "stop", *options, "-m", "immediate", timeout_sec=STOP_TIMEOUT_SEC + 30)
    if running.socket_folder.parent != running.data_folder:
        for left in running.socket_folder.iterdir():
            left.unlink()
        running.socket_folder.rmdir()


# ── which processes use the server: the kernel releases their locks when they are killed ───────────────────────────


class UsageLock:
    """A shared lock of a process that uses the server. A child of fork() shares its parent's."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def release(self) -> bool:
        """Release the lock. Return whether no other process has one. Call only inside `exclusive`."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # not left to close(): a forked child keeps the file open
            is_last = _try_lock(self._fd)
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            return is_last
        finally:
            os.close(self._fd)

    def detach(self) -> None:
        """Close the copy of a forked child, so that the lock ends with the parent."""
        os.close(self._fd)


@contextmanager
def exclusive(path: Path, *, timeout_sec: float) -> Iterator[None]:
    """Let one process at a time start or stop the server."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + timeout_sec
        while not _try_lock(fd):
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"another process has been starting or stopping the server for over {timeout_sec:.0f} s; "
                    f"see who has {path} open (`fuser {path}`), end it, and start again"
                )
            time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
