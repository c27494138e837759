"""Whether servers accept, at connect, the settings by which they notice that a client is gone."""

from __future__ import annotations

from contextlib import closing
from enum import StrEnum

import psycopg2
from psycopg2 import extensions as ext

# Settings that make a server notice that a session's client is gone, for code that opens its own connections: libpq
# reads them from PGOPTIONS. A server that does not know one of them refuses the connection (before PostgreSQL 14, or
# where the system cannot report a closed socket), and so does a pooler that does not forward `options`: they are used
# only where every known server accepts them.
CHECK_OPTIONS = (
    "-c client_connection_check_interval=2s"
    " -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
)


class OptionSupport(StrEnum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


def probe_options(dsn: str, timeout_sec: float) -> OptionSupport:
    """Whether the server of the DSN accepts the settings at connect. May take twice the timeout."""
    own = ext.parse_dsn(dsn).get("options", "")
    if _can_connect(ext.make_dsn(dsn, options=f"{CHECK_OPTIONS} {own}".strip()), timeout_sec):
        return OptionSupport.ACCEPTED
    return OptionSupport.REFUSED if _can_connect(dsn, timeout_sec) else OptionSupport.UNREACHABLE


def _can_connect(dsn: str, timeout_sec: float) -> bool:
    try:
        with closing(
            psycopg2.connect(dsn, application_name="dataloader-probe", connect_timeout=max(2, int(timeout_sec)))
        ):
            return True
    except psycopg2.Error:
        return False
