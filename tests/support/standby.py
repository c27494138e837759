"""A primary and its standby: two real servers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dataloader.app.db.schema import migrate
from dataloader.app.postgres.binaries import Choice
from tests.chaos.servers import Server


@dataclass
class Pair:
    primary: Server
    standby: Server

    @property
    def dsn(self) -> str:
        """The one of both that takes writes."""
        hosts = f"{self.primary.sockets},{self.standby.sockets}"
        return self.primary.dsn.replace(str(self.primary.sockets), hosts) + " target_session_attrs=read-write"


@contextmanager
def primary_and_standby(run_folder: Path, binaries: Choice, *, synchronous: bool = True) -> Iterator[Pair]:
    """The primary has the schema. `synchronous`: each commit waits for the standby."""
    folder = Path(tempfile.mkdtemp(prefix="pair-", dir=run_folder))
    folder.chmod(0o755)
    pair = Pair(*(Server(folder / name, binaries=binaries) for name in ("a", "b")))
    try:
        pair.primary.create()
        migrate(pair.primary.dsn)
        pair.standby.follow(pair.primary)
        if not synchronous:
            pair.primary.query("ALTER SYSTEM RESET synchronous_standby_names")
            pair.primary.query("SELECT pg_reload_conf()")
        yield pair
    finally:
        pair.primary.remove()
        pair.standby.remove()
        shutil.rmtree(folder, ignore_errors=True)
