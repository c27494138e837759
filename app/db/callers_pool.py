"""A pool of psycopg2 connections that an embedding program hands in: any object with `getconn` and `putconn`.

Each statement is one transaction, after which a connection is as it was: its autocommit mode is restored, and all
settings are those of the transaction alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psycopg2
from psycopg2 import extensions as ext

from dataloader.app.db.connection import Row, translate_errors
from dataloader.app.db.pool import BorrowedConnection
from dataloader.app.db.statements import Executor, statements, with_audit_setting
from dataloader.app.errors import PoolExhausted


class CallersPool:
    """Executes statements on the connections of a pool. Used by any number of threads, if the pool can be."""

    def __init__(self, pool: Any, *, schema: str = "public", command_timeout_sec: float = 30.0) -> None:
        """Raises TypeError if it is no pool."""
        if not callable(getattr(pool, "getconn", None)) or not callable(getattr(pool, "putconn", None)):
            raise TypeError(f"a pool has getconn() and putconn(), unlike {type(pool).__name__}")
        self.schema = schema
        self._pool, self._statements = pool, statements(schema)
        # First, because a session may have another isolation level or be read only by default.
        self._settings = (
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;"
            f" SET LOCAL statement_timeout = {int(command_timeout_sec * 1000)}; SET LOCAL client_min_messages = error;"
            # Where the network fails before the commit, the server would keep the locks for two hours.
            f" SET LOCAL idle_in_transaction_session_timeout = {int(command_timeout_sec * 1000)};"
            " SET LOCAL jit = off; SET LOCAL timezone = 'UTC';\n"
        )

    def execute(
        self, name: str, parameters: Mapping[str, Any] | None = None, *, timeout_sec: float | None = None
    ) -> list[Row]:
        """Execute a named statement as one transaction."""
        text, values = with_audit_setting(self._statements[name].text, parameters or {})
        if timeout_sec is not None:
            text = f"SET LOCAL statement_timeout = {int(timeout_sec * 1000)};\n{text}"
        with translate_errors(), self._borrowed() as connection:
            # The connection may make other things of rows; these are tuples.
            with connection.cursor(cursor_factory=ext.cursor) as cursor:
                cursor.execute(self._settings + text, values)
                rows = cursor.fetchall() if cursor.description else []
            connection.commit()
            return rows

    @contextmanager
    def transaction(self) -> Iterator[Executor]:
        """Several statements as one transaction on one connection."""
        with translate_errors(), self._borrowed() as connection:
            with connection.cursor() as cursor:
                cursor.execute(self._settings)
            yield BorrowedConnection(connection, schema=self.schema)
            connection.commit()

    def dsn(self) -> str:
        """The connection string of the pool's connections, password included."""
        with translate_errors(), self._borrowed() as connection:
            info = connection.info
            password = {"password": info.password} if info.password else {}
            return str(ext.make_dsn(**{**info.dsn_parameters, **password}))

    @contextmanager
    def _borrowed(self) -> Iterator[Any]:
        try:
            connection = self._pool.getconn()
        except psycopg2.Error as error:
            if "exhausted" in str(error):
                raise PoolExhausted(f"the pool that was handed in has no free connection: {error}") from error
            raise
        try:
            _require_usable(connection)
            if connection.closed:
                raise psycopg2.OperationalError("the pool has handed out a connection that is closed")
            with _own_transaction(connection):
                yield connection
        finally:
            self._pool.putconn(connection)


@contextmanager
def _own_transaction(connection: Any) -> Iterator[None]:
    """A transaction of ours, whatever the connection was left in. A broken connection is closed."""
    if connection.get_transaction_status() != ext.TRANSACTION_STATUS_IDLE:
        connection.rollback()
    autocommit = connection.autocommit
    try:
        connection.autocommit = False
        yield
    except BaseException:
        with suppress(psycopg2.Error):
            connection.rollback()
        raise
    finally:
        if not connection.closed:
            with suppress(psycopg2.Error):
                connection.rollback()  # of a transaction that only read
                connection.autocommit = autocommit


def _require_usable(connection: Any) -> None:
    if not isinstance(connection, ext.connection):
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise TypeError(f"the pool hands out connections of {kind}; workers need those of psycopg2")
    if connection.encoding != "UTF8":
        raise TypeError(f"the pool's connections have the client encoding {connection.encoding}; workers need UTF8")
