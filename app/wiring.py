"""The commands that run or change something here, as the command line calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.config import Settings
from app.doctor.findings import Finding
from app.host import account, doctor, house, repair, web, worker
from app.host.database import Database
from app.host.psql import psql
from app.host.service import set_up_logging
from app.queue.audit import acting
from app.queue.keys import Keys, NewKey, Scope
from app.queue.roles import roles_text
from app.queue.schema import Migration

serve = web.serve
work = worker.work


def dsn(settings: Settings) -> str:
    """The connection string, with its password. Asked of the embedded server, which is started for it if need be."""
    database = Database(settings)
    try:
        return database.dsn()
    finally:
        database.close()


def migrate(settings: Settings) -> Migration:
    set_up_logging(settings)
    return repair.migrate(settings)


def preview_held(settings: Settings) -> house.Swept | None:
    """What retention would delete, were it not held since an upgrade from version 0."""
    return house.preview_held(settings)


def prune(settings: Settings, *, dry: bool, told: Callable[[int], None]) -> house.Swept:
    set_up_logging(settings)
    return house.prune(settings, dry=dry, told=told)


def examine(settings: Settings) -> list[Finding]:
    set_up_logging(settings)
    return doctor.examine_service(settings)


@contextmanager
def keys(command: str) -> Iterator[tuple[Keys, str]]:
    """The keys in the database of the settings, and who asks for them, in whose name all is done within."""
    settings = Settings.load()
    set_up_logging(settings)
    act = account.act(command)
    with account.keys_of(settings) as ring, acting(act):
        yield ring, act.actor


__all__ = [
    "Keys",
    "NewKey",
    "Scope",
    "dsn",
    "examine",
    "keys",
    "migrate",
    "preview_held",
    "prune",
    "psql",
    "roles_text",
    "serve",
    "work",
]
