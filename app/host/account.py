"""What a command does to the database by itself, and in whose name."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager

from app.config import Settings
from app.host.database import Database
from app.queue.audit import Act
from app.queue.keys import Keys
from app.queue.pool import Pool


def account() -> str:
    """Of the system, by the process's own id: variables of the environment may say anything."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def act(action: str) -> Act:
    return Act(action=action, actor=f"account {account()}", via="command", address=os.uname().nodename)


@contextmanager
def keys_of(settings: Settings) -> Iterator[Keys]:
    """The keys in the database of the settings; an embedded server is started for it, if it does not run."""
    database = Database(settings)
    try:
        pool = Pool(
            database.worker_dsn,
            size=1,
            overflow=0,
            connect_timeout_sec=settings.pg_connect_timeout,
            application_name="dataloader-keys",
            schema=settings.schema,
        )
        try:
            yield Keys(pool)
        finally:
            pool.close()
    finally:
        database.close()
