"""Who the server runs as. PostgreSQL refuses to be root, so root lends it an account that has nothing to lose."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import EmbeddedServerError

LENT_BY_ROOT = ("postgres", "nobody")


@dataclass(frozen=True)
class Account:
    """The account of the server's processes and the owner of its files."""

    name: str
    uid: int
    gid: int

    @classmethod
    def choose(cls, cluster: Path) -> Account:
        """Whoever owns the cluster, and for a new one whoever we are or may become."""
        owner = cluster.stat() if cluster.exists() else None
        if os.geteuid() != 0:
            if owner is not None and owner.st_uid != os.geteuid():
                raise EmbeddedServerError(
                    f"{cluster} belongs to {_name(owner.st_uid)}, and this is {_name(os.geteuid())}; "
                    "start as the owner, or name another data folder with DL_DATA_DIR"
                )
            return cls(_name(os.geteuid()), os.geteuid(), os.getegid())
        if owner is not None and owner.st_uid != 0:
            return cls(_name(owner.st_uid), owner.st_uid, owner.st_gid)
        for name in LENT_BY_ROOT:
            try:
                found = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(name, found.pw_uid, found.pw_gid)
        raise EmbeddedServerError(
            f"PostgreSQL does not run as root, and there is no account {' or '.join(LENT_BY_ROOT)} to lend it; "
            "start as an ordinary user, or name a server with DL_DB_DSN"
        )

    @property
    def lent(self) -> bool:
        """Whether it is another account than ours."""
        return self.uid != os.geteuid()

    def run(self, argv: Sequence[str | Path], *, timeout_sec: float) -> subprocess.CompletedProcess[str]:
        """Run a program as this account, away from our terminal, with nothing of our environment."""
        return subprocess.run(
            [str(word) for word in argv],
            user=self.uid if self.lent else None,
            group=self.gid if self.lent else None,
            extra_groups=[] if self.lent else None,
            # Ctrl-C goes to the terminal's whole group: the server must not hear it.
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

    def reaches(self, folder: Path) -> bool:
        return self.run(["/bin/sh", "-c", 'test -x "$1"', "sh", folder], timeout_sec=10).returncode == 0

    def give(self, path: Path) -> None:
        """Make the account the owner of what we made for it."""
        if self.lent:
            os.chown(path, self.uid, self.gid)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
