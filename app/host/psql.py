"""What psql needs to reach the service's database: the program, and an environment with the password in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from app.config import Settings, dsn
from app.config.environment import inherited
from app.errors import ProgramMissing
from app.host.database import Database
from app.postgres.binaries import find_program

# libpq's parameters by their variables. The others, such as keepalives, have none, and a person at psql needs none.
_VARIABLES = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "passfile": "PGPASSFILE",
    "service": "PGSERVICE",
    "options": "PGOPTIONS",
    "application_name": "PGAPPNAME",
    "sslmode": "PGSSLMODE",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcrl": "PGSSLCRL",
    "sslnegotiation": "PGSSLNEGOTIATION",
    "requirepeer": "PGREQUIREPEER",
    "gssencmode": "PGGSSENCMODE",
    "krbsrvname": "PGKRBSRVNAME",
    "connect_timeout": "PGCONNECT_TIMEOUT",
    "channel_binding": "PGCHANNELBINDING",
    "client_encoding": "PGCLIENTENCODING",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
    "load_balance_hosts": "PGLOADBALANCEHOSTS",
    "require_auth": "PGREQUIREAUTH",
}


@contextmanager
def psql(settings: Settings) -> Iterator[tuple[str, dict[str, str]]]:
    """The program and its environment; an embedded server runs at least until the end of the block."""
    program = find_program("psql")
    if program is None:
        raise ProgramMissing(
            "there is no psql on PATH, in the usual folders of PostgreSQL or beside the embedded server; install it "
            "(Debian, Ubuntu: apt install postgresql-client), or use another client with what `dataloader config "
            "--dsn` prints"
        )
    database = Database(settings)
    try:
        yield str(program), environment(dsn.parse(database.dsn()), settings.schema)
    finally:
        database.close()


def environment(parameters: Mapping[str, str], schema: str) -> dict[str, str]:
    """This process's environment with the parameters by libpq's names, and the schema first in the search path."""
    given = {"application_name": "dataloader-psql", **parameters}
    path = f"-c search_path={_escaped(schema)}"
    given["options"] = f"{parameters['options']} {path}" if "options" in parameters else path
    return inherited({_VARIABLES[name]: value for name, value in given.items() if name in _VARIABLES})


def _escaped(schema: str) -> str:
    quoted = '"' + schema.replace('"', '""') + '",public'
    return quoted.replace("\\", "\\\\").replace(" ", "\\ ")
