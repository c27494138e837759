"""The folder that holds the databases, as PostgreSQL keeps it, and what it tells about the server that runs on it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.errors import EmbeddedServerError
from app.postgres.account import Account
from app.postgres.binaries import Binaries

USER = "dataloader"
DATABASE = "postgres"
PROC = Path("/proc")
PORT = 5432  # only the socket's name: no server of ours listens on TCP
SOCKET = f".s.PGSQL.{PORT}"
INITDB_TIMEOUT_SEC = 120
PROBE_TIMEOUT_SEC = 5
PROTOCOL_3 = 196608
NOT_YET = b"C57P03"  # the error field "cannot connect now": starting, recovering or stopping


@dataclass(frozen=True)
class Postmaster:
    """What `postmaster.pid` says."""

    pid: int
    socket_folder: Path


@dataclass(frozen=True)
class Cluster:
    folder: Path
    account: Account

    @property
    def exists(self) -> bool:
        return self.folder.exists()

    @property
    def major(self) -> int | None:
        """The only major version that may open it; None before it is made."""
        try:
            told = (self.folder / "PG_VERSION").read_text(encoding="ascii").strip()
            return int(told)
        except FileNotFoundError:
            if self.exists:
                raise EmbeddedServerError(
                    f"{self.folder} is there, but is no PostgreSQL data folder (it has no PG_VERSION); move it away"
                ) from None
            return None
        except ValueError as error:
            raise EmbeddedServerError(
                f"{self.folder}/PG_VERSION does not tell a version ({error}); restore the folder or move it away"
            ) from error

    def make(self, binaries: Binaries, *, sync: bool) -> None:
        """Run initdb in a sibling folder and rename, so that a half-made cluster is never taken for one."""
        for left_behind in self.folder.parent.glob(f"{self.folder.name}.new-*"):
            shutil.rmtree(left_behind)
        staging = Path(tempfile.mkdtemp(prefix=f"{self.folder.name}.new-", dir=self.folder.parent))
        self.account.give(staging)
        locale = "C" if sys.platform == "darwin" else "C.UTF-8"
        argv: list[str | Path] = [binaries.program("initdb"), "-D", staging, "-U", USER, "-A", "trust", "-E", "UTF8"]
        argv += [f"--locale={locale}", "--no-instructions"]
        if not sync:
            argv.append("--no-sync")
        done = self.account.run(argv, timeout_sec=INITDB_TIMEOUT_SEC)
        if done.returncode != 0:
            shutil.rmtree(staging)
            raise EmbeddedServerError(
                f"initdb of {binaries} failed in {self.folder.parent} as {self.account.name}; "
                f"mend what it says, then start again:\n{last_lines(done.stderr or done.stdout)}"
            )
        staging.rename(self.folder)

    def postmaster(self) -> Postmaster | None:
        """The server that holds this cluster now. A pid file alone proves nothing: its pid may be another's by now."""
        found = self.pid_file()
        return found if found is not None and self._works_here(found.pid) else None

    def pid_file(self) -> Postmaster | None:
        try:
            lines = (self.folder / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return None
        # While the server starts the file is still short.
        folder = lines[4] if len(lines) > 4 else ""  # noqa: PLR2004 - the fifth line, by PostgreSQL's own order
        return Postmaster(int(lines[0]), Path(folder)) if lines and lines[0].isdigit() else None

    def orphans(self) -> list[int]:
        """Processes of a postmaster that was killed; until they are gone nobody may open the cluster."""
        return [pid for pid in _pids_of(self.account.uid) if self._works_here(pid)]

    def _works_here(self, pid: int) -> bool:
        """Every process of a PostgreSQL server has its data folder as working directory."""
        folder = _working_folder(pid, self.account)
        if folder is None:  # no /proc, or no leave to look: then the name has to do
            told = subprocess.run(
                ["/bin/ps", "-p", str(pid), "-o", "comm="], capture_output=True, text=True, check=False
            )
            return "postgres" in told.stdout
        return folder == str(self.folder)

    def clear_leftovers(self, socket_folder: Path) -> None:
        """Remove the locks of a killed server whose pid belongs to someone else now. Ask only when nobody runs.

        PostgreSQL removes its locks itself when their pid is nobody's, and looks closer than we do before it does.
        """
        found = self.pid_file()
        if found is not None and not _is_nobodys(found.pid):
            (self.folder / "postmaster.pid").unlink()
        for name in (SOCKET, f"{SOCKET}.lock"):
            (socket_folder / name).unlink(missing_ok=True)


def answers(socket_folder: Path) -> bool:
    """Whether a connection succeeds: a pid, a file or a socket may all outlive their server."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(PROBE_TIMEOUT_SEC)
            line.connect(str(socket_folder / SOCKET))
            line.sendall(_startup_message())
            kind, body = _message(line)
            if kind == b"E":
                # Refused for any other reason, such as too many connections, is still a server that works.
                return NOT_YET not in body.split(b"\0")
            while kind != b"Z":
                kind, body = _message(line)
            line.sendall(b"X" + struct.pack("!I", 4))
            return True
    except OSError:
        return False


def _startup_message() -> bytes:
    words = f"user\0{USER}\0database\0{DATABASE}\0application_name\0dataloader probe\0\0".encode()
    return struct.pack("!II", len(words) + 8, PROTOCOL_3) + words


def _message(line: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(line, 5)
    return head[:1], _exactly(line, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(line: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = line.recv(size - len(received))
        if not part:
            raise ConnectionResetError("the server closed the connection")
        received += part
    return received


def _working_folder(pid: int, account: Account) -> str | None:
    """None: this system does not tell. Empty: nobody's."""
    path = PROC / str(pid) / "cwd"
    if not (PROC / "self" / "cwd").exists():
        return None
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""
    except PermissionError:
        if not account.lent:
            return ""  # another account's, so none of ours
    # In a container even root may not look into the processes of others; the account may look into its own.
    told = account.run(["readlink", path], timeout_sec=10)
    return told.stdout.strip() or ("" if told.returncode == 1 else None)


def _is_nobodys(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _pids_of(uid: int) -> Iterator[int]:

    for entry in PROC.iterdir() if PROC.exists() else ():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                yield int(entry.name)
        except FileNotFoundError:  # it ended while we looked
            continue


def options(settings: Mapping[str, str]) -> list[str]:
    """Settings as the server's command line has them."""
    wrong = [name for name in settings if not re.fullmatch(r"[a-z_][a-z0-9_.]*", name)]
    if wrong:
        raise EmbeddedServerError(
            f"{', '.join(wrong)}: no name of a PostgreSQL setting; use names as in postgresql.conf"
        )
    return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


def last_lines(text: str, count: int = 8) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-count:]) or "  (it said nothing)"
