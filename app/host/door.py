"""Who would be let in, before anybody is: a service that others can reach needs a key, or says that it needs none."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from app import log
from app.config import Settings
from app.errors import ConfigError, DatabaseUnavailable, Fault, SchemaError
from app.host.database import Database
from app.queue.keys import Keys
from app.queue.pool import Pool

_log = log.get(__name__)
_REMEDY = (
    "make one with `dataloader keys create NAME --scope admin`, or listen on 127.0.0.1, or let everybody in who can "
    "reach it with DL_AUTH=none"
)


def try_the_door(settings: Settings, database: Database, hosts: Iterable[str]) -> None:
    """Raises ConfigError for a service that listens to others and has no key to let them in by.

    Should the database not tell whether there is one, nobody but this machine is let in until it does.
    """
    if settings.auth == "none":
        _log.warning(
            "auth.none", detail="DL_AUTH=none: everybody who can reach this service may do everything, without a key"
        )
        return
    public = [host for host in hosts if is_public(host)]
    if public and has_no_key(settings, database):
        raise ConfigError([Fault("APP_HOST", f"{public[0]!r}, which others can reach, and no API key", _REMEDY)])


def is_public(host: str) -> bool:
    """May others reach what listens there? A socket in the file system and a name of this machine are its own."""
    if host == "localhost" or host.startswith(("unix:", "/")):
        return False
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return True


def has_no_key(settings: Settings, database: Database) -> bool:
    """False also when it cannot be known."""
    pool = Pool(
        database.dsn,
        size=1,
        overflow=0,
        connect_timeout_sec=settings.pg_connect_timeout,
        schema=settings.schema,
        transactions_only=settings.worker_dsn is not None,
    )
    try:
        return not Keys(pool).ring().configured
    except SchemaError:  # no tables yet, or those of a time before keys
        return True
    except DatabaseUnavailable as error:
        _log.warning("auth.unknown", error=str(error), detail="only callers with a key will be let in")
        return False
    finally:
        pool.close()
