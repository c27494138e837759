"""What keeps a service from its database, in words that an operator can act on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from app.config import dsn as connection_strings

_DEFAULT_PORT = "5432"
_NO_DATABASE = re.compile(r'FATAL: +database "(.+)" does not exist')


def describe_outage(error: str, dsn: str) -> str:
    """`waiting for the database at db:5432: Connection refused`, or what creates a database that does not exist."""
    try:
        parameters = connection_strings.parse(dsn)
    except ValueError:
        parameters = {}
    place = _place(parameters)
    missing = _NO_DATABASE.search(error)
    if missing is not None:
        return f"database {missing[1]!r} does not exist at {place}: create it with: {_createdb(parameters, missing[1])}"
    first = error.strip().splitlines()[0] if error.strip() else "no answer"
    reason = re.sub(r"^(FATAL|ERROR): +", "", first.rpartition(" failed: ")[2])
    return f"waiting for the database at {place}: {reason}"


def _place(parameters: Mapping[str, str]) -> str:
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "the local socket").split(",")
    ports = (parameters.get("port") or _DEFAULT_PORT).split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return ", ".join(f"{host}:{port or _DEFAULT_PORT}" for host, port in zip(hosts, ports, strict=False))


def _createdb(parameters: Mapping[str, str], name: str) -> str:
    options = {"-h": parameters.get("host"), "-p": parameters.get("port"), "-U": parameters.get("user")}
    given = [word for option, value in options.items() if value for word in (option, value)]
    return shlex.join(["createdb", *given, name])
