"""One server on one data folder, shared by every process that asks for it, and stopped by the last."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from app.errors import EmbeddedServerError
from app.postgres.account import Account
from app.postgres.binaries import Binaries, Choice, choose
from app.postgres.cluster import DATABASE, PORT, USER, Cluster, answers, last_lines, options
from app.postgres.sharers import Share, turn

START_TIMEOUT_SEC = 60
STOP_TIMEOUT_SEC = 60
PATIENCE_SEC = START_TIMEOUT_SEC + STOP_TIMEOUT_SEC + 60  # a turn may hold an initdb, a recovery and a stop
LONGEST_SOCKET_FOLDER = 80  # bytes; the socket's whole path must stay under about 100
LARGEST_LOG = 10 * 1024 * 1024
OURS = {
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
}


@dataclass(frozen=True)
class _Running:
    cluster: Cluster
    binaries: Binaries
    socket_folder: Path
    share: Share
    by: int  # the pid that asked: a forked child inherits this object, but not the share

    @property
    def place(self) -> Path:
        return self.cluster.folder.parent

    @property
    def account(self) -> Account:
        return self.cluster.account


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
        elsewhere: Path = Path("/var/lib/dataloader"),
    ) -> None:
        self._data_dir = data_dir.resolve()
        self._choice = binaries
        self._settings = {**OURS, **(settings or {})}
        # Where root keeps the cluster when the account that runs it cannot reach the data folder.
        self._elsewhere = elsewhere.resolve()
        self._running: _Running | None = None

    def start(self) -> str:
        """Start the server, or join the one that runs, and tell the DSN."""
        if self._running is None:
            try:
                self._running = self._join()
            except (OSError, subprocess.SubprocessError) as error:
                raise EmbeddedServerError(
                    f"the server could not be started in {self._data_dir}: {error}; make the folder usable for this "
                    "account, name another with DL_DATA_DIR, or a server with DL_DB_DSN"
                ) from error
            atexit.register(self.stop)
        return self.dsn

    def revive(self, stopping: threading.Event) -> bool:
        """Start the server again if it is gone and we still have our share in it; returns whether it was.

        Not if `stopping` is set: a service that ends must not start what it is about to stop.
        """
        running = self._running
        if running is None or running.by != os.getpid() or running.cluster.postmaster() is not None:
            return False
        with turn(self._data_dir / "turn.lock", patience_sec=PATIENCE_SEC):
            # Another sharer may have started it while we waited, and we may have stopped it ourselves.
            if stopping.is_set() or self._running is not running or running.cluster.postmaster() is not None:
                return False
            if not running.cluster.exists:
                raise EmbeddedServerError(f"{running.cluster.folder} is gone; put it back, or start the service again")
            self._run(running.cluster, running.binaries)
            return True

    def stop(self) -> None:
        """Give up our share; the last one stops the server. A forked child only lets go of its parent's."""
        running = self._running
        if running is None:
            return
        if running.by != os.getpid():
            self._running = None
            running.share.leave_to_parent()
            return
        with turn(self._data_dir / "turn.lock", patience_sec=PATIENCE_SEC):
            self._running = None
            atexit.unregister(self.stop)
            if running.share.give_up():
                _end(running)

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def dsn(self) -> str:
        folder = str(self._now().socket_folder)
        return f"host={folder} port={PORT} user={USER} dbname={DATABASE}"

    @property
    def pid(self) -> int | None:
        """The server's main process; None when it has died."""
        postmaster = self._now().cluster.postmaster()
        return postmaster.pid if postmaster else None

    @property
    def log(self) -> Path:
        """What the server itself says."""
        return self._now().place / "server.log"

    def describe(self) -> str:
        """One line for people."""
        if self._running is None:
            return f"embedded PostgreSQL, not started, data in {self._data_dir}"
        running = self._running
        told = f"{running.binaries}, data in {running.place}"
        if running.account.lent:
            told += f", run as {running.account.name}"
        if running.place != self._data_dir:
            told += f", which may not reach {self._data_dir}"
        return told

    def _now(self) -> _Running:
        if self._running is None:
            raise EmbeddedServerError(f"the server of {self._data_dir} is not started; call start() first")
        return self._running

    def _join(self) -> _Running:
        made = not self._data_dir.exists()
        self._data_dir.mkdir(parents=True, exist_ok=True)
        if made:
            # Only what we made ourselves: root's account has to pass through it, nobody else has to.
            self._data_dir.chmod(0o755 if os.geteuid() == 0 else 0o700)
        with turn(self._data_dir / "turn.lock", patience_sec=PATIENCE_SEC):
            place, account = self._settle()
            cluster = Cluster(place / "cluster", account)
            binaries = choose(self._choice, account=account, place=place, major=cluster.major)
            share = Share(self._data_dir / "sharers.lock")
            try:
                socket_folder = self._run(cluster, binaries)
            except BaseException:
                share.give_up()
                raise
            return _Running(cluster, binaries, socket_folder, share, os.getpid())

    def _settle(self) -> tuple[Path, Account]:
        """Where the cluster is, and whose: in the data folder, unless root's account cannot get there."""
        pointer = self._data_dir / "elsewhere"
        if pointer.exists():
            place = Path(pointer.read_text(encoding="utf-8").strip())
            place.mkdir(parents=True, exist_ok=True)
            return place, Account.choose(place / "cluster")
        account = Account.choose(self._data_dir / "cluster")
        if not account.lent or account.reaches(self._data_dir):
            return self._data_dir, account
        if (self._data_dir / "cluster").exists():
            raise EmbeddedServerError(
                f"{account.name}, who owns {self._data_dir}/cluster, may not reach it any more; "
                "give the folder back its permissions, or name another with DL_DATA_DIR"
            )
        place = self._make_place_elsewhere(account)
        pointer.write_text(f"{place}\n", encoding="utf-8")
        return place, account

    def _make_place_elsewhere(self, account: Account) -> Path:
        if not self._elsewhere.exists():
            self._elsewhere.mkdir(parents=True)
            self._elsewhere.chmod(0o755)
        place = Path(tempfile.mkdtemp(prefix="postgres-", dir=self._elsewhere))
        place.chmod(0o755)
        if not account.reaches(place):
            place.rmdir()
            raise EmbeddedServerError(
                f"{account.name} may reach neither {self._data_dir} nor {self._elsewhere}; "
                "name a folder it can reach with DL_DATA_DIR, or start as an ordinary user"
            )
        return place

    def _run(self, cluster: Cluster, binaries: Binaries) -> Path:
        """See that a server runs on the cluster, and tell the folder of its socket."""
        if not cluster.exists:
            cluster.make(binaries, sync=self._settings.get("fsync") != "off")
        deadline = time.monotonic() + START_TIMEOUT_SEC
        while (found := cluster.pid_file()) is not None:
            if answers(found.socket_folder):
                return found.socket_folder  # another sharer's, or left behind by one that was killed
            if cluster.postmaster() is None:
                break
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"the server with pid {found.pid} holds {cluster.folder} but answers nobody; stop it with "
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
        said_before = log.stat().st_size
        settings = {"listen_addresses": "", "port": str(PORT), **self._settings}
        words = [*options(settings), "-k", str(socket_folder)]
        argv: list[str | Path] = [
            binaries.program("pg_ctl"),
            "start",
            "-w",
            "-t",
            str(START_TIMEOUT_SEC),
            "-D",
            cluster.folder,
        ]
        done = account.run([*argv, "-l", log, "-o", shlex.join(words)], timeout_sec=START_TIMEOUT_SEC + 30)
        if done.returncode != 0 or not answers(socket_folder):
            with log.open(encoding="utf-8", errors="replace") as file:
                file.seek(said_before)
                said = file.read() or done.stderr or done.stdout
            raise EmbeddedServerError(
                f"{binaries} did not start as {account.name}; mend what it says in {log}, then start again:\n"
                f"{last_lines(said)}"
            )
        return socket_folder


def _socket_folder(place: Path, account: Account) -> Path:
    """A folder of the account's own, with a path short and plain enough for a socket."""
    folder = place / "run"
    if len(os.fsencode(folder)) > LONGEST_SOCKET_FOLDER or not re.fullmatch(r"[\w./+-]+", str(folder), re.ASCII):
        name = hashlib.sha256(os.fsencode(place)).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"dataloader-{account.uid}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid not in (os.geteuid(), account.uid):
        raise EmbeddedServerError(f"{folder} belongs to someone else, who could listen in; remove it and start again")
    folder.chmod(0o700)
    account.give(folder)
    return folder


def _open_log(place: Path, account: Account) -> Path:
    log = place / "server.log"
    if log.exists() and log.stat().st_size > LARGEST_LOG:
        log.rename(place / "server.log.1")
    log.touch(mode=0o600)
    account.give(log)
    return log


def _end(running: _Running) -> None:
    cluster = running.cluster
    if cluster.postmaster() is not None:
        argv: list[str | Path] = [running.binaries.program("pg_ctl"), "stop", "-w", "-t", str(STOP_TIMEOUT_SEC)]
        argv += ["-D", cluster.folder]
        done = running.account.run([*argv, "-m", "fast"], timeout_sec=STOP_TIMEOUT_SEC + 30)
        if done.returncode != 0 and cluster.postmaster() is not None:
            # It recovers at the next start; a server that nobody uses must not stay behind.
            running.account.run([*argv, "-m", "immediate"], timeout_sec=STOP_TIMEOUT_SEC + 30)
    if running.socket_folder.parent != running.place:
        for left in running.socket_folder.iterdir():
            left.unlink()
        running.socket_folder.rmdir()
