"""libpq connection strings: read, written, and shown without their secrets.

Written without psycopg2, so that the settings can be read where no driver is installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

MASK = "***"

# Shown as they are. Anything else may be a secret, or a misspelt `password`.
# fmt: off
_SHOWN = frozenset({
    "host", "hostaddr", "port", "dbname", "user", "service", "sslmode", "application_name", "connect_timeout",
    "target_session_attrs", "options", "keepalives", "keepalives_idle", "keepalives_interval",
    "keepalives_count", "tcp_user_timeout", "client_encoding", "sslcert", "sslkey", "sslrootcert",
    "gssencmode", "channel_binding", "load_balance_hosts", "require_auth",
})
# fmt: on
_PAIR = re.compile(r"\s*([a-z_]+)\s*=\s*(?:'((?:\\.|[^'\\])*)'|((?:\\.|[^\s'\\])*))(?=\s|$)", re.DOTALL)
_URI = re.compile(r"postgres(?:ql)?://(?:([^@/]*)@)?([^/?]*)(?:/([^?]*))?(?:\?(.*))?", re.DOTALL)


def parse(dsn: str) -> dict[str, str]:
    """The parameters of a URI or of `keyword=value` pairs.

    Raises ValueError, whose text never repeats the connection string: it may hold a password.
    """
    return _parse_uri(dsn) if "://" in dsn else _parse_pairs(dsn)


def write(parameters: Mapping[str, str]) -> str:
    """The parameters as `keyword=value` pairs, quoted the way libpq reads them."""
    return " ".join(f"{keyword}={_quoted(value)}" for keyword, value in parameters.items())


def masked(dsn: str) -> str:
    """The connection string for people. One that cannot be read is not shown at all."""
    try:
        parameters = parse(dsn)
    except ValueError:
        return MASK
    return write({keyword: value if keyword in _SHOWN else MASK for keyword, value in parameters.items()})


def _parse_uri(dsn: str) -> dict[str, str]:
    match = _URI.fullmatch(dsn)
    if match is None:
        raise ValueError("it starts neither with postgresql:// nor with postgres://")
    credentials, hosts, dbname, query = match.groups()
    parameters: dict[str, str] = {}
    if credentials:
        user, _, password = credentials.partition(":")
        parameters |= {"user": unquote(user), "password": unquote(password)}
    parameters |= _hosts(hosts)
    parameters["dbname"] = unquote(dbname or "")
    parameters |= _query(query) if query else {}
    return {keyword: value for keyword, value in parameters.items() if value}


def _query(query: str) -> dict[str, str]:
    # Unlike in a web form, a plus is a plus.
    pairs = [pair.partition("=") for pair in query.split("&")]
    if not all(mark for _, mark, _ in pairs):
        raise ValueError("what follows its ? cannot be read as keyword=value pairs joined by &")
    return {unquote(keyword): unquote(value) for keyword, _, value in pairs}


def _hosts(hosts: str) -> dict[str, str]:
    names, ports = [], []
    for host in hosts.split(","):
        match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(\d*))?", host)
        if match is None:
            # The usual reason: a password with a raw @ or / in it.
            raise ValueError("a port in it is not a number; write @ : / in a password as %40 %3A %2F")
        names.append(unquote(match[1].strip("[]")))
        ports.append(match[2] or "")
    return {"host": ",".join(names), "port": ",".join(ports) if any(ports) else ""}


def _parse_pairs(dsn: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    at = 0
    text = dsn.rstrip()
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            raise ValueError(f"it cannot be read as keyword=value pairs from character {at + 1} on")
        keyword, quoted, bare = match.groups()
        parameters[keyword] = re.sub(r"\\(.)", r"\1", quoted if quoted is not None else bare, flags=re.DOTALL)
        at = match.end()
    return parameters


def _quoted(value: str) -> str:
    if value and re.fullmatch(r"[^\s'\\]+", value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
