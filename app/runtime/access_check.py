"""Refuses to start a service that others can reach without an API key, unless DL_AUTH=none."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from app import log
from app.admin.api_keys import ApiKeys
from app.config import Settings
from app.errors import ConfigError, DatabaseUnavailable, SchemaError, SettingError
from app.runtime.database import Database

_log = log.get(__name__)
_REMEDY = (
    "make one with `dataloader keys create NAME --scope admin`, or listen on 127.0.0.1, or allow every caller that "
    "can reach it with DL_AUTH=none"
)


def require_key_if_public(settings: Settings, database: Database, hosts: Iterable[str]) -> None:
    """Raise ConfigError for a service that others can reach if there is no API key.

    While the database does not answer, the service starts and answers callers on this machine only.
    """
    if settings.auth == "none":
        _log.warning(
            "auth.disabled",
            detail="DL_AUTH=none: every caller that can reach this service may do everything, without a key",
        )
        return
    public = [host for host in hosts if is_public(host)]
    if public and has_no_api_key(settings, database):
        raise ConfigError([SettingError("APP_HOST", f"{public[0]!r}, which others can reach, and no API key", _REMEDY)])


def is_public(host: str) -> bool:
    """Return whether other machines can reach a listener at this address; socket paths and localhost are local."""
    if host == "localhost" or host.startswith(("unix:", "/")):
        return False
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return True


def has_no_api_key(settings: Settings, database: Database) -> bool:
    """Return False also if the database does not answer."""
    try:
        with database.pool("dataloader-keys", direct=settings.worker_dsn is None) as pool:
            return not ApiKeys(pool).active().has_any_key
    except SchemaError:  # no tables yet, or those of a time before keys
        return True
    except DatabaseUnavailable as error:
        _log.warning("auth.keys_unknown", error=str(error), detail="only callers with a key will be let in")
        return False
