"""Finds the target table in the catalogue and streams rows into it by COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection, cursor

from dataloader.pipelines.reported_state import ReportedState
from dataloader.pipelines.toolkit.copytext import Column, CopyEncoder, Row
from dataloader.pipelines.toolkit.errors import NoSuchTarget
from dataloader.pipelines.toolkit.rejects import Rejects
from dataloader.pipelines.toolkit.safepoint import SafePoint

_CHUNK_BYTES = 128 * 1024  # large enough that a call's overhead in Python is negligible, small enough to stop soon
_FIRST_CHUNK_ROWS = 64  # until the width of the rows is known
_MAX_CHUNK_ROWS = 2_000

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
    """An existing table and those of its columns that are loaded."""

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
class CopyInput:
    """The rows to load, with their callbacks and limits."""

    rows: Iterable[Row]
    ctx: SafePoint
    on_batch: Callable[[int], None] | None
    batch_rows: int
    rejects: Rejects | None

    def __post_init__(self) -> None:
        if self.batch_rows < 1:
            raise ValueError(f"a batch has at least one row, not {self.batch_rows}")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a load did: `rows` were taken, and each of them was one of the next four."""

    rows: int
    inserted: int
    updated: int = 0
    unchanged: int = 0  # was there already, equal in every column
    duplicates: int = 0  # a later row of the same load had the same key
    rejected: int = 0  # did not fit and went to the rejects; not counted in `rows`


def find_target(cur: cursor, table: str | sql.Identifier, columns: Sequence[str]) -> Target:
    """Look up `schema.table` or a table on the search path; `NoSuchTarget` names what is not there."""
    name = table if isinstance(table, sql.Identifier) else sql.Identifier(*table.split(".", 1))
    cur.execute(_FIND_TABLE, [name.as_string(cur)])
    table_row = cur.fetchone()
    if table_row is None:
        raise NoSuchTarget(f"there is no table {name.as_string(cur)}, or it is not to be seen by this role")
    cur.execute(_FIND_COLUMNS, [table_row[0]])
    known = {column: Column(column, kind, array) for column, kind, array in cur.fetchall()}
    if missing := [column for column in columns if column not in known]:
        raise NoSuchTarget(f"table {name.as_string(cur)} has no column {', '.join(missing)}; it has {', '.join(known)}")
    if not columns or len(set(columns)) < len(columns):
        raise NoSuchTarget(f"name each column of {name.as_string(cur)} to load once, not {', '.join(columns)!r}")
    oid, schema, own_name, partitioned = table_row
    return Target(oid, schema, own_name, partitioned, tuple(known[column] for column in columns))


def column_list(columns: Iterable[str]) -> sql.Composed:
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
            with suppress(psycopg2.Error):  # the first error is the one to raise
                cur.execute("ROLLBACK")
            raise
        cur.execute("COMMIT")


def copy_from(
    cur: cursor, table: sql.Composable, columns: Sequence[Column], copy_input: CopyInput, *, freeze: bool = False
) -> Loaded:
    """COPY the rows. An error of the rows, the context or `on_batch` is raised unchanged."""
    reader = _CopyFile(columns, copy_input)
    statement = sql.SQL("COPY {} ({}) FROM STDIN WITH (FORMAT text, ENCODING 'UTF8'{})").format(
        table, column_list(column.name for column in columns), sql.SQL(", FREEZE" if freeze else "")
    )
    try:
        cur.copy_expert(statement, reader, size=_CHUNK_BYTES)  # type: ignore[arg-type]  # COPY FROM calls read only
    except BaseException:
        if reader.failure is not None:  # psycopg2 ended the COPY by it and reports a server error
            raise reader.failure from None
        raise
    row_count = reader.encoder.row_count - reader.encoder.rejected_count
    return Loaded(rows=row_count, inserted=row_count, rejected=reader.encoder.rejected_count)


class _CopyFile:
    """The file that psycopg2 reads: it encodes the rows as they are read."""

    def __init__(self, columns: Sequence[Column], copy_input: CopyInput) -> None:
        self.encoder = CopyEncoder(columns, copy_input.rejects)
        self.failure: BaseException | None = None
        self._copy_input = copy_input
        self._rows = iter(copy_input.rows)
        self._chunk_rows = _FIRST_CHUNK_ROWS
        self._reported = getattr(copy_input.ctx, "reported", None)  # of an attempt

    def read(self, _size: int = -1) -> bytes:
        try:
            return self._next_lines()
        except BaseException as failure:  # also Stop: kept, because psycopg2 would only report its text
            self.failure = failure
            raise

    def _next_lines(self) -> bytes:
        copy_input = self._copy_input
        lines = b""
        while not lines:  # an empty answer would end the COPY, and a chunk may hold rejects only
            copy_input.ctx.check()
            to_batch_end = copy_input.batch_rows - self.encoder.row_count % copy_input.batch_rows
            rows = list(islice(self._rows, min(self._chunk_rows, to_batch_end)))
            if not rows:
                return b""
            lines = self.encoder.encode(rows)
            if isinstance(self._reported, ReportedState):
                self._reported.count_moved(len(rows), len(lines))
            self._chunk_rows = min(_MAX_CHUNK_ROWS, max(1, len(rows) * _CHUNK_BYTES // max(1, len(lines))))
            if copy_input.on_batch is not None and self.encoder.row_count % copy_input.batch_rows == 0:
                copy_input.on_batch(self.encoder.row_count)
        return lines
