"""The data folder of the embedded PostgreSQL, and what it shows about the server that runs on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dataloader.app.errors import EmbeddedServerError
from dataloader.app.postgres.binaries import Binaries, ServerAccount

USER = "dataloader"
DATABASE = "postgres"
PROC = Path("/proc")
PORT = 5432  # only the socket's name: no server of ours listens on TCP
SOCKET = f".s.PGSQL.{PORT}"
INITDB_TIMEOUT_SEC = 120


@dataclass(frozen=True)
class Postmaster:
    """The content of `postmaster.pid`."""

    pid: int
    socket_folder: Path


@dataclass(frozen=True)
class Cluster:
    folder: Path
    account: ServerAccount

    @property
    def major(self) -> int | None:
        """The only major version that may open it; None before it is made."""
        try:
            return int((self.folder / "PG_VERSION").read_text(encoding="ascii").strip())
        except FileNotFoundError:
            if os.path.exists(self.folder):
                raise EmbeddedServerError(
                    f"{self.folder} is there, but is no PostgreSQL data folder (it has no PG_VERSION); move it away"
                ) from None
            return None
        except ValueError as error:
            raise EmbeddedServerError(
                f"{self.folder}/PG_VERSION holds no version ({error}); restore the folder or move it away"
            ) from error

    def create(self, binaries: Binaries, *, sync: bool) -> None:
        """Run initdb in a sibling folder and rename, so that a half-made cluster is never taken for one."""
        for left_behind in self.folder.parent.glob(f"{self.folder.name}.new-*"):
            shutil.rmtree(left_behind)
        staging = Path(tempfile.mkdtemp(prefix=f"{self.folder.name}.new-", dir=self.folder.parent))
        self.account.take_ownership(staging)
        locale = "C" if sys.platform == "darwin" else "C.UTF-8"
        options = ["-U", USER, "-A", "trust", "-E", "UTF8", f"--locale={locale}", "--no-instructions"]
        options += [] if sync else ["--no-sync"]
        done = binaries.run("initdb", "-D", staging, *options, timeout_sec=INITDB_TIMEOUT_SEC)
        if done.returncode != 0:
            shutil.rmtree(staging)
            raise EmbeddedServerError(
                f"initdb of {binaries} failed in {self.folder.parent} as {self.account.name}; "
                f"mend what it says, then start again:\n{last_lines(done.stderr or done.stdout)}"
            )
        staging.rename(self.folder)

    def postmaster(self) -> Postmaster | None:
        """The server that holds this cluster now. A pid file alone proves nothing: its pid may be another's by now."""
        postmaster = self.read_pid_file()
        return postmaster if postmaster is not None and self._is_server_process(postmaster.pid) else None

    def read_pid_file(self) -> Postmaster | None:
        try:
            lines = (self.folder / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return None
        # While the server starts the file is still short.
        folder = lines[4] if len(lines) > 4 else ""  # noqa: PLR2004 - the fifth line, by PostgreSQL's own order
        return Postmaster(int(lines[0]), Path(folder)) if lines and lines[0].isdigit() else None

    def orphans(self) -> list[int]:
        """Processes of a postmaster that was killed; until they are gone the cluster must not be opened."""
        return [pid for pid in _iter_pids(self.account.uid) if self._is_server_process(pid)]

    def _is_server_process(self, pid: int) -> bool:
        """Every process of a PostgreSQL server has its data folder as working directory."""
        folder = _working_folder(pid, self.account)
        if folder is None:  # no /proc, or no permission: the name decides
            done = subprocess.run(
                ["/bin/ps", "-p", str(pid), "-o", "comm="], capture_output=True, text=True, check=False
            )
            return "postgres" in done.stdout
        return folder == str(self.folder)

    def clear_leftovers(self, socket_folder: Path) -> None:
        """Remove the locks of a killed server whose pid belongs to another process now. Call only while no server runs.

        PostgreSQL itself removes locks whose pid belongs to no process, after checks of its own.
        """
        found = self.read_pid_file()
        if found is not None:
            with suppress(ProcessLookupError):
                with suppress(PermissionError):  # a process of another account
                    os.kill(found.pid, 0)
                (self.folder / "postmaster.pid").unlink()
        for name in (SOCKET, f"{SOCKET}.lock"):
            (socket_folder / name).unlink(missing_ok=True)


def _working_folder(pid: int, account: ServerAccount) -> str | None:
    """Return None if the system does not show it, and an empty text if no process has it."""
    path = PROC / str(pid) / "cwd"
    if not os.path.exists(PROC / "self" / "cwd"):
        return None
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""
    except PermissionError:
        if not account.borrowed:
            return ""  # another account's, so none of ours
    # In a container even root may not look into the processes of others; the account may look into its own.
    done = account.run(["readlink", path], timeout_sec=10)
    return done.stdout.strip() or ("" if done.returncode == 1 else None)


def _iter_pids(uid: int) -> Iterator[int]:
    for entry in PROC.iterdir() if os.access(PROC, os.R_OK) else ():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                yield int(entry.name)
        except OSError:  # it ended meanwhile, or is not shown
            continue


def setting_options(settings: Mapping[str, str]) -> list[str]:
    """Return the settings as options of the server's command line."""
    invalid = [name for name in settings if not re.fullmatch(r"[a-z_][a-z0-9_.]*", name)]
    if invalid:
        raise EmbeddedServerError(
            f"{', '.join(invalid)}: no name of a PostgreSQL setting; use names as in postgresql.conf"
        )
    return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


def last_lines(text: str, count: int = 8) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-count:]) or "  (no output)"
