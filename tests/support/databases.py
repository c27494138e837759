"""A fresh database for each test, copied from a template that has the schema.

It belongs to an account that may do nothing else: no superuser, no right to create databases or roles, member of none.
A database in which a test left nothing but rows is emptied, renamed and given to a later test: a copy takes longer.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4
from zlib import crc32

import psycopg2
from psycopg2.errors import DeadlockDetected
from psycopg2.extensions import ISOLATION_LEVEL_AUTOCOMMIT, make_dsn, parse_dsn
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from dataloader.app.db.roles import ROLE_NAMES, roles_sql
from dataloader.app.postgres.cluster import USER as EMBEDDED_SUPERUSER
from tests.support.empty_database import EmptyDatabase
from tests.support.waiting import eventually

SCHEMA = Path(__file__).parents[2] / "schema.sql"
SERVER_VARIABLE = "DL_TEST_DSN"


class Databases:
    """The databases of one test run on one server. `run` keeps runs apart, `worker` the processes of a run.

    `server_dsn` is that of a superuser, who makes them; `owner` is the account that they belong to and the tests have.
    """

    def __init__(self, server_dsn: str, *, run: str, worker: str) -> None:
        self._server_dsn = server_dsn
        self._prefix = f"dl_test_{run}"
        self._template = f"{self._prefix}_template"
        self.owner = f"{self._prefix}_owner"
        self._names = (f"{self._prefix}_{worker}_{number}" for number in itertools.count(1))
        self._baselines: dict[str, EmptyDatabase] = {}  # by the name of a database with the schema
        self._emptied: list[str] = []
        self._server: Connection | None = None

    @contextmanager
    def fresh(self, *, schema: bool = True, options: str = "") -> Iterator[str]:
        """Yield the DSN of a database that is gone at the end, also with open connections. `options`: of CREATE
        DATABASE."""
        name = self._emptied.pop() if schema and not options and self._emptied else self._create(schema, options)
        try:
            yield self.dsn_of(name)
        finally:
            if name not in self._baselines or not self._empty(name):
                self._baselines.pop(name, None)
                self._end_sessions(name)
                self._on_server(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _create(self, schema: bool, options: str) -> str:
        name = next(self._names)
        made = self._ensure_template()
        template = made if schema else "template0"
        self._on_server(
            f'CREATE DATABASE "{name}" TEMPLATE "{template}" OWNER "{self.owner}" STRATEGY FILE_COPY {options}'
        )
        if schema and not options:
            with self._as_superuser(name) as connection:
                self._baselines[name] = EmptyDatabase.read(connection)
        return name

    def _empty(self, name: str) -> bool:
        """Take the test's rows away under another name, which no connection of the test knows; return whether nothing
        else was left."""
        renamed = next(self._names)
        baseline = self._baselines.pop(name)
        try:
            self._end_sessions(name)
            self._on_server(f'ALTER DATABASE "{name}" RENAME TO "{renamed}"')
        except psycopg2.Error:  # it is gone, or a new session has connected
            return False
        with self._as_superuser(renamed) as connection:
            is_empty = baseline.restore(connection)
        if is_empty:
            self._baselines[renamed] = baseline
            self._emptied.append(renamed)
        else:
            self._on_server(f'DROP DATABASE "{renamed}" WITH (FORCE)')
        return True

    def _end_sessions(self, name: str) -> None:
        """Terminate the sessions of a database, and wait until they have ended, at most 5 s.

        Where the server waits for that by itself, it looks every 0.1 s, and most sessions end within 0.01 s.
        """
        sessions = "FROM pg_stat_get_activity(NULL) WHERE datid = (SELECT oid FROM pg_database WHERE datname = %s)"
        if self._on_server(f"SELECT pg_terminate_backend(pid) {sessions}", name):
            with suppress(AssertionError):
                eventually(lambda: not self._on_server(f"SELECT 1 {sessions}", name), timeout_sec=5, interval_sec=0.002)

    def dsn_of(self, database: str) -> str:
        server = parse_dsn(self._server_dsn)
        password = {"password": self.owner} if "password" in server else {}
        dsn: str = make_dsn(**{**server, "dbname": database, "user": self.owner, **password})
        return dsn

    def drop_template(self) -> None:
        self._on_server(f'DROP DATABASE IF EXISTS "{self._template}" WITH (FORCE)')
        self._on_server(f'DROP OWNED BY "{self.owner}"')
        self._on_server(f'DROP ROLE "{self.owner}"')

    def drop_emptied(self) -> None:
        for name in self._emptied:
            self._on_server(f'DROP DATABASE "{name}" WITH (FORCE)')
        self._emptied.clear()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _ensure_template(self) -> str:
        """Made by whichever process of the run comes first, with the account that owns it."""
        lock = crc32(self._template.encode())
        self._on_server("SELECT pg_advisory_lock(%s)", lock)
        try:
            if not self._on_server("SELECT 1 FROM pg_database WHERE datname = %s", self._template):
                unfinished = f"{self._template}_new"
                self._on_server(f'DROP DATABASE IF EXISTS "{unfinished}" WITH (FORCE)')
                if not self._on_server("SELECT 1 FROM pg_roles WHERE rolname = %s", self.owner):
                    self._on_server(f'CREATE ROLE "{self.owner}" LOGIN PASSWORD %s', self.owner)
                self._on_server(f'CREATE DATABASE "{unfinished}" TEMPLATE template0 OWNER "{self.owner}"')
                apply_schema(self.dsn_of(unfinished))
                self._on_server(f'ALTER DATABASE "{unfinished}" RENAME TO "{self._template}"')
        finally:
            self._on_server("SELECT pg_advisory_unlock(%s)", lock)
        return self._template

    def _on_server(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Execute a statement as the superuser, on one connection for all: a new one costs the server 10 ms."""
        if self._server is None or self._server.closed:
            self._server = psycopg2.connect(self._server_dsn, connect_timeout=20)
            self._server.autocommit = True
        with self._server.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _as_superuser(self, database: str) -> Iterator[Connection]:
        connection = psycopg2.connect(make_dsn(self._server_dsn, dbname=database), connect_timeout=20)
        try:
            connection.autocommit = True
            yield connection
        finally:
            connection.close()


def superuser_dsn(dsn: str) -> str:
    """The DSN with which a superuser connects to the same database.

    A test asks for it by the fixture `superuser`.
    """
    server, named = parse_dsn(dsn), parse_dsn(os.environ.get(SERVER_VARIABLE, ""))
    is_named = named and (named.get("host"), named.get("port")) == (server.get("host"), server.get("port"))
    account = named if is_named else {"user": EMBEDDED_SUPERUSER}
    administrator: str = make_dsn(
        **{**server, "password": None, **{key: account[key] for key in ("user", "password") if key in account}}
    )
    return administrator


@contextmanager
def another_role(dsn: str, name: str = "", attributes: str = "LOGIN PASSWORD 'x'") -> Iterator[str]:
    """Yield the name of a role made by the server's superuser; it and what it owns or may do is gone at the end."""
    name = name or f"role_{uuid4().hex}"
    execute_sql(superuser_dsn(dsn), f"CREATE ROLE {name} {attributes}")
    try:
        yield name
    finally:
        execute_sql(superuser_dsn(dsn), f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@contextmanager
def role_logins(dsn: str) -> Iterator[dict[str, str]]:
    """Yield the DSN of a login of each role of the queue."""
    prefix = "r_" + re.sub(r"\W", "_", parse_dsn(dsn)["dbname"])[-30:]
    with ExitStack() as made:
        for name in ROLE_NAMES:
            made.enter_context(another_role(dsn, f"{prefix}_{name}", "NOLOGIN"))
        execute_sql(dsn, roles_sql(prefix=prefix), roles_sql(prefix=prefix))  # twice does no harm
        logins = {}
        for name in ROLE_NAMES:
            attributes = f"LOGIN PASSWORD 'x' IN ROLE {prefix}_{name}"
            login = made.enter_context(another_role(dsn, f"{prefix}_{name}_login", attributes))
            logins[name] = make_dsn(dsn, user=login, password="x")
        yield logins


def allow_parameter(dsn: str, parameter: str) -> None:
    """Let the DSN's account declare functions that set this parameter, as a superuser once had to for release 0.2.0."""
    with closing(psycopg2.connect(superuser_dsn(dsn))) as connection, connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (crc32(parameter.encode()),))  # rights to it are one row
        cursor.execute(f'GRANT SET ON PARAMETER "{parameter}" TO "{parse_dsn(dsn)["user"]}"')


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
    """Each in a transaction of its own, again after a deadlock: a TRUNCATE beside a service locks the same tables as
    the service's reads, in another order."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.set_isolation_level(ISOLATION_LEVEL_AUTOCOMMIT)
        for statement in statements:
            eventually(partial(_is_executed, cursor, statement))


def _is_executed(cursor: Cursor, statement: str) -> bool:
    try:
        cursor.execute(statement)
    except DeadlockDetected:
        return False
    return True
