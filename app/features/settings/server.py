"""The database server and the version of the tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dataloader.app.db.encoding import from_row
from dataloader.app.db.statements import Executor


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """What the service is connected to. `schema_version`: that of the last migration, applied at `migrated_at`."""

    version: str
    database: str
    account: str
    size_bytes: int
    started_at: datetime
    schema_version: int
    migrated_at: datetime


def server_facts(executor: Executor) -> ServerFacts:
    return from_row(ServerFacts, executor.execute("server_facts")[0])
