"""Finds psql, and makes an environment for it that reaches the service's database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from app.config import Settings, dsn
from app.config.loading import inherited_environment
from app.errors import ProgramMissing
from app.postgres.binaries import find_program
from app.runtime.database import Database

# The parameters of libpq that have a variable; the others, such as keepalives, have none.
_PARAMETERS = frozenset({
    "host", "hostaddr", "port", "user", "password", "dbname", "passfile", "service", "options", "application_name",
    "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslnegotiation", "requirepeer", "gssencmode",
    "krbsrvname", "connect_timeout", "channel_binding", "client_encoding", "target_session_attrs",
    "load_balance_hosts", "require_auth",
})  # fmt: skip
_IRREGULAR_VARIABLES = {
    "application_name": "PGAPPNAME", "connect_timeout": "PGCONNECT_TIMEOUT", "dbname": "PGDATABASE",
}  # fmt: skip


@contextmanager
def psql_command(settings: Settings) -> Iterator[tuple[str, dict[str, str]]]:
    """The program and its environment; an embedded server runs at least until the end of the block."""
    program = find_program("psql")
    if program is None:
        raise ProgramMissing(
            "there is no psql on PATH, in the usual folders of PostgreSQL or with the embedded server; install it "
            "(Debian, Ubuntu: apt install postgresql-client), or use another client with what `dataloader config "
            "--dsn` prints"
        )
    with Database.opened(settings) as database:
        yield str(program), psql_environment(dsn.parse_dsn(database.dsn()), settings.schema)


def psql_environment(parameters: Mapping[str, str], schema: str) -> dict[str, str]:
    """This process's environment with the parameters by libpq's names, and the schema first in the search path."""
    path = f"-c search_path={_escape_search_path(schema)}"
    options = f"{parameters['options']} {path}" if "options" in parameters else path
    parameters = {"application_name": "dataloader-psql", **parameters, "options": options}
    return inherited_environment({_variable(name): value for name, value in parameters.items() if name in _PARAMETERS})


def _variable(parameter: str) -> str:
    return _IRREGULAR_VARIABLES.get(parameter, f"PG{parameter.replace('_', '').upper()}")


def _escape_search_path(schema: str) -> str:
    quoted = '"' + schema.replace('"', '""') + '",public'
    return quoted.replace("\\", "\\\\").replace(" ", "\\ ")
