"""The account that the server runs as. PostgreSQL refuses to run as root, which lends it an unprivileged account."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import EmbeddedServerError

ROOT_SUBSTITUTES = ("postgres", "nobody")


@dataclass(frozen=True)
class ServerAccount:
    """The account of the server's processes and the owner of its files."""

    name: str
    uid: int
    gid: int

    @classmethod
    def choose(cls, cluster: Path) -> ServerAccount:
        """Return the owner of the cluster, and for a new one the account that this process has or may take."""
        owner = cluster.stat() if cluster.exists() else None
        if os.geteuid() != 0:
            if owner is not None and owner.st_uid != os.geteuid():
                raise EmbeddedServerError(
                    f"{cluster} belongs to {_user_name(owner.st_uid)}, and this is {_user_name(os.geteuid())}; "
                    "start as the owner, or name another data folder with DL_DATA_DIR"
                )
            return cls(_user_name(os.geteuid()), os.geteuid(), os.getegid())
        if owner is not None and owner.st_uid != 0:
            return cls(_user_name(owner.st_uid), owner.st_uid, owner.st_gid)
        for name in ROOT_SUBSTITUTES:
            try:
                found = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(name, found.pw_uid, found.pw_gid)
        raise EmbeddedServerError(
            f"PostgreSQL does not run as root, and there is no account {' or '.join(ROOT_SUBSTITUTES)} to lend it; "
            "start as an ordinary user, or name a server with DL_DB_DSN"
        )

    @property
    def borrowed(self) -> bool:
        """Whether it is another account than this process's."""
        return self.uid != os.geteuid()

    def run(self, argv: Sequence[str | Path], *, timeout_sec: float) -> subprocess.CompletedProcess[str]:
        """Run a program as this account, away from our terminal, with nothing of our environment."""
        return subprocess.run(
            [str(word) for word in argv],
            user=self.uid if self.borrowed else None,
            group=self.gid if self.borrowed else None,
            extra_groups=[] if self.borrowed else None,
            # Ctrl-C goes to the terminal's whole group: the server must not receive it.
            start_new_session=True,
            cwd="/",
            # PGDATA, PGPORT and their like would reach into the server otherwise.
            env={"PATH": os.defpath, "LC_ALL": "C"},
            umask=0o077,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_sec,
            check=False,
        )

    def can_access(self, folder: Path) -> bool:
        return self.run(["/bin/sh", "-c", 'test -x "$1"', "sh", folder], timeout_sec=10).returncode == 0

    def take_ownership(self, path: Path) -> None:
        """Make the account the owner of a file that this process has made for it."""
        if self.borrowed:
            os.chown(path, self.uid, self.gid)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
