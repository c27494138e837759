"""A fresh database for each test, copied from a template that has the schema."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from zlib import crc32

import psycopg2
from psycopg2.extensions import ISOLATION_LEVEL_AUTOCOMMIT, make_dsn, parse_dsn
from psycopg2.extensions import connection as Connection

SCHEMA = Path(__file__).parents[2] / "schema.sql"


class Databases:
    """The databases of one test run on one server. `run` keeps runs apart, `worker` the processes of a run."""

    def __init__(self, server_dsn: str, *, run: str, worker: str) -> None:
        self._server_dsn = server_dsn
        self._prefix = f"dl_test_{run}"
        self._template = f"{self._prefix}_template"
        self._names = (f"{self._prefix}_{worker}_{number}" for number in itertools.count(1))

    @contextmanager
    def fresh(self, *, schema: bool = True) -> Iterator[str]:
        """Yield the DSN of a database that is dropped at the end, also with open connections."""
        name = next(self._names)
        template = self._ensure_template() if schema else "template0"
        with self._admin() as admin:
            admin.cursor().execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        try:
            yield self.dsn_of(name)
        finally:
            with self._admin() as admin:
                admin.cursor().execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def dsn_of(self, database: str) -> str:
        dsn: str = make_dsn(**{**parse_dsn(self._server_dsn), "dbname": database})
        return dsn

    def drop_template(self) -> None:
        with self._admin() as admin:
            admin.cursor().execute(f'DROP DATABASE IF EXISTS "{self._template}" WITH (FORCE)')

    def _ensure_template(self) -> str:
        """Made by whichever process of the run comes first."""
        with self._admin() as admin, admin.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", (crc32(self._template.encode()),))
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (self._template,))
            if cursor.fetchone() is None:
                unfinished = f"{self._template}_new"
                cursor.execute(f'DROP DATABASE IF EXISTS "{unfinished}" WITH (FORCE)')
                cursor.execute(f'CREATE DATABASE "{unfinished}" TEMPLATE template0')
                apply_schema(self.dsn_of(unfinished))
                cursor.execute(f'ALTER DATABASE "{unfinished}" RENAME TO "{self._template}"')
        return self._template

    @contextmanager
    def _admin(self) -> Iterator[Connection]:
        connection = psycopg2.connect(self._server_dsn, connect_timeout=20)
        try:
            connection.autocommit = True
            yield connection
        finally:
            connection.close()


def apply_schema(dsn: str) -> None:
    """Build the tables of schema.sql in an empty database."""
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(SCHEMA.read_text(encoding="utf-8"))
    finally:
        connection.close()


def query_value(dsn: str, statement: str) -> str:
    """The first value of the first row, as text; what is done is committed."""
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return "" if row is None else str(row[0])
    finally:
        connection.close()


def execute_sql(dsn: str, *statements: str) -> None:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.set_isolation_level(ISOLATION_LEVEL_AUTOCOMMIT)
        for statement in statements:
            cursor.execute(statement)
