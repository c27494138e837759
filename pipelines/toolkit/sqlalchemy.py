"""An engine of SQLAlchemy in the transaction of `ctx.transaction()`; pandas and polars take it too: `engine_for`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg2.extensions import connection as Psycopg2Connection

if TYPE_CHECKING:
    from sqlalchemy import Engine


def engine_for(connection: Any, **options: Any) -> Engine:
    """Return an engine that has this connection and no other, of psycopg2 or psycopg 3, for as long as its block lasts.

    Its transactions are savepoints of the open one: what it commits is committed by the block, or rolled back with it;
    what it rolls back is gone. The options are those of `create_engine`.
    """
    from sqlalchemy import create_engine  # noqa: PLC0415 - no requirement of dataloader
    from sqlalchemy.pool import StaticPool  # noqa: PLC0415 - likewise

    driver = "psycopg2" if isinstance(connection, Psycopg2Connection) else "psycopg"
    engine = create_engine(f"postgresql+{driver}://", creator=lambda: connection, poolclass=StaticPool, **options)
    savepoint = _Savepoint(connection)
    dialect: Any = engine.dialect
    dialect.do_begin, dialect.do_commit, dialect.do_rollback = savepoint.begin, savepoint.release, savepoint.roll_back
    dialect.do_close = dialect.do_terminate = savepoint.roll_back
    return engine


class _Savepoint:
    """The transaction of the engine. SQLAlchemy passes the connection again to each method."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_open = False

    def begin(self, _: Any = None) -> None:
        if self._is_open:
            raise RuntimeError("this engine has one connection, and a transaction is open on it: end that one first")
        if not getattr(self._connection, "in_transaction", True):  # only a connection of a context has it
            raise RuntimeError("the block of ctx.transaction() in which this engine was made has ended")
        self._execute("SAVEPOINT dl_engine")
        self._is_open = True

    def release(self, _: Any = None) -> None:
        if self._is_open:
            self._execute("RELEASE SAVEPOINT dl_engine")
            self._is_open = False

    def roll_back(self, _: Any = None) -> None:
        """Also called where no transaction is open: after reading, and when a connection goes back to the pool."""
        if self._is_open:
            self._is_open = False
            if not self._connection.closed:
                self._execute("ROLLBACK TO SAVEPOINT dl_engine; RELEASE SAVEPOINT dl_engine")

    def _execute(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
