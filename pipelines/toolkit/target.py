"""Where rows go: a table looked up in the catalogue, and rows streamed into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection, cursor

from pipelines.toolkit.copytext import Column, CopyText, Row
from pipelines.toolkit.errors import NoSuchTarget
from pipelines.toolkit.rejects import Rejects
from pipelines.toolkit.safepoint import SafePoint, Unattended

_CHUNK_BYTES = 128 * 1024  # large enough that Python's share of a call vanishes, small enough to stop within
_FIRST_CHUNK = 64  # rows, until it is known how wide they are
_LARGEST_CHUNK = 2_000  # rows

_FIND_TABLE = """
SELECT c.oid, n.nspname, c.relname, c.relkind = 'p'
  FROM pg_catalog.pg_class AS c
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.oid = pg_catalog.to_regclass(%s)
   AND c.relkind IN ('r', 'p', 'v', 'f')
"""

_FIND_COLUMNS = """
SELECT a.attname, coalesce(item.typname, t.typname), item.oid IS NOT NULL
  FROM pg_catalog.pg_attribute AS a
  JOIN pg_catalog.pg_type AS given ON given.oid = a.atttypid
  JOIN pg_catalog.pg_type AS t ON t.oid = coalesce(nullif(given.typbasetype, 0), given.oid)
  LEFT JOIN pg_catalog.pg_type AS item ON item.oid = t.typelem AND t.typcategory = 'A'
 WHERE a.attrelid = %s
   AND a.attnum > 0
   AND NOT a.attisdropped
 ORDER BY a.attnum
"""


@dataclass(frozen=True)
class Target:
    """A table that is there, and the columns of it that are loaded."""

    oid: int
    schema: str
    table: str
    partitioned: bool
    columns: tuple[Column, ...]

    @property
    def name(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class Feed:
    """The rows to load, and who is to be told and asked on the way."""

    rows: Iterable[Row]
    ctx: SafePoint
    on_batch: Callable[[int], None] | None
    batch: int
    rejects: Rejects | None

    @classmethod
    def of(
        cls,
        rows: Iterable[Row],
        ctx: SafePoint | None,
        on_batch: Callable[[int], None] | None,
        batch: int,
        rejects: Rejects | None,
    ) -> Feed:
        if batch < 1:
            raise ValueError(f"a batch has at least one row, not {batch}")
        return cls(rows, ctx or Unattended(), on_batch, batch, rejects)


@dataclass(frozen=True)
class Streamed:
    rows: int
    rejected: int


def find_target(cur: cursor, table: str | sql.Identifier, columns: Sequence[str]) -> Target:
    """Look up `schema.table` or a table on the search path; `NoSuchTarget` names what is not there."""
    name = table if isinstance(table, sql.Identifier) else sql.Identifier(*table.split(".", 1))
    cur.execute(_FIND_TABLE, [name.as_string(cur)])
    found = cur.fetchone()
    if found is None:
        raise NoSuchTarget(f"there is no table {name.as_string(cur)}, or it is not to be seen by this role")
    cur.execute(_FIND_COLUMNS, [found[0]])
    known = {column: Column(column, kind, array) for column, kind, array in cur.fetchall()}
    if missing := [column for column in columns if column not in known]:
        raise NoSuchTarget(f"table {name.as_string(cur)} has no column {', '.join(missing)}; it has {', '.join(known)}")
    if not columns or len(set(columns)) < len(columns):
        raise NoSuchTarget(f"name each column of {name.as_string(cur)} to load once, not {', '.join(columns)!r}")
    oid, schema, own_name, partitioned = found
    return Target(oid, schema, own_name, partitioned, tuple(known[column] for column in columns))


def names(columns: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


@contextmanager
def transaction(conn: connection) -> Iterator[cursor]:
    """A cursor inside the caller's transaction; on a connection in autocommit, inside one of its own."""
    own = conn.autocommit and conn.info.transaction_status == TRANSACTION_STATUS_IDLE
    with conn.cursor() as cur:
        if not own:
            yield cur
            return
        cur.execute("BEGIN")
        try:
            yield cur
        except BaseException:
            with suppress(psycopg2.Error):  # what went wrong first is what to tell
                cur.execute("ROLLBACK")
            raise
        cur.execute("COMMIT")


def stream(
    cur: cursor, into: sql.Composable, columns: Sequence[Column], feed: Feed, *, frozen: bool = False
) -> Streamed:
    """COPY the rows. What the rows, the context or `on_batch` raise comes out as itself."""
    reader = _RowReader(columns, feed)
    statement = sql.SQL("COPY {} ({}) FROM STDIN WITH (FORMAT text, ENCODING 'UTF8'{})").format(
        into, names(column.name for column in columns), sql.SQL(", FREEZE" if frozen else "")
    )
    try:
        cur.copy_expert(statement, reader, size=_CHUNK_BYTES)
    except BaseException:
        if reader.failure is not None:  # psycopg2 ended the COPY by it, and told it as an error of the server's
            raise reader.failure from None
        raise
    return Streamed(reader.text.given - reader.text.rejected, reader.text.rejected)


class _RowReader:
    """The file that psycopg2 reads: the rows' lines, made as they are asked for."""

    def __init__(self, columns: Sequence[Column], feed: Feed) -> None:
        self.text = CopyText(columns, feed.rejects)
        self.failure: BaseException | None = None
        self._feed = feed
        self._rows = iter(feed.rows)
        self._chunk = _FIRST_CHUNK

    def read(self, _size: int = -1) -> bytes:
        try:
            return self._next_lines()
        except BaseException as failure:  # also Stop: kept, because psycopg2 would only tell its text
            self.failure = failure
            raise

    def readline(self, _size: int = -1) -> bytes:
        raise NotImplementedError("COPY reads, it reads no lines; psycopg2's types ask for both")

    def _next_lines(self) -> bytes:
        lines = b""
        while not lines:  # an empty answer would end the COPY, and a chunk may hold rejects only
            self._feed.ctx.check()
            to_batch_end = self._feed.batch - self.text.given % self._feed.batch
            rows = list(islice(self._rows, min(self._chunk, to_batch_end)))
            if not rows:
                return b""
            lines = self.text.encode(rows)
            self._chunk = min(_LARGEST_CHUNK, max(1, len(rows) * _CHUNK_BYTES // max(1, len(lines))))
            if self._feed.on_batch is not None and self.text.given % self._feed.batch == 0:
                self._feed.on_batch(self.text.given)
        return lines
