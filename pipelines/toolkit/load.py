"""Rows into PostgreSQL, by COPY: `copy_rows`, `upsert`, `replace_table`.

All three work inside the caller's transaction and leave the commit to the caller, so that a load and what must
happen with it happen together; on a connection in autocommit each is a transaction of its own. They report what
they did, tell `on_batch` after every `batch` rows, and let whatever `ctx.check()` raises end the COPY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar
from uuid import uuid4

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import connection, cursor

from pipelines.toolkit.copytext import Row
from pipelines.toolkit.errors import NoSuchTarget, TooFewRows, UnsuitableValue
from pipelines.toolkit.rejects import Rejects
from pipelines.toolkit.replace import Aside, choose_way, lock_table, one_at_a_time
from pipelines.toolkit.safepoint import SafePoint
from pipelines.toolkit.target import Feed, Streamed, Target, find_target, names, stream, transaction

T = TypeVar("T")

BATCH = 5_000


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a load did: `rows` were taken, and each of them was one of the next four."""

    rows: int
    inserted: int
    updated: int = 0
    unchanged: int = 0  # was there already, equal in every column
    duplicates: int = 0  # a later row of the same load had the same key
    rejected: int = 0  # did not fit and went to the rejects; not counted in `rows`


def batches(rows: Iterable[T], size: int = BATCH) -> Iterator[list[T]]:
    """The rows in lists of `size`, the last one shorter."""
    if size < 1:
        raise ValueError(f"a batch has at least one row, not {size}")
    remaining = iter(rows)
    while batch := list(islice(remaining, size)):
        yield batch


def copy_rows(
    conn: connection,
    table: str | sql.Identifier,
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    ctx: SafePoint | None = None,
    on_batch: Callable[[int], None] | None = None,
    batch: int = BATCH,
    rejects: Rejects | None = None,
) -> Loaded:
    """Append the rows: sequences in the order of `columns`, or mappings that have them as keys."""
    feed = Feed.of(rows, ctx, on_batch, batch, rejects)
    with transaction(conn) as cur:
        target = find_target(cur, table, columns)
        done = stream(cur, target.name, target.columns, feed)
    return Loaded(rows=done.rows, inserted=done.rows, rejected=done.rejected)


def upsert(
    conn: connection,
    table: str | sql.Identifier,
    columns: Sequence[str],
    key: Sequence[str],
    rows: Iterable[Row],
    *,
    ctx: SafePoint | None = None,
    on_batch: Callable[[int], None] | None = None,
    batch: int = BATCH,
    rejects: Rejects | None = None,
) -> Loaded:
    """Insert the rows whose key is new and update the others, but leave alone those that would not change.

    Of several rows with one key the last one counts. The table needs a unique constraint over exactly `key`.
    """
    feed = Feed.of(rows, ctx, on_batch, batch, rejects)
    if not key or not set(key) <= set(columns):
        raise NoSuchTarget(f"the key ({', '.join(key)}) must be among the columns to load ({', '.join(columns)})")
    with transaction(conn) as cur:
        target = find_target(cur, table, columns)
        arriving = _arrivals(cur, target, key)
        merge = _merge(target, key, arriving)
        _plan(cur, merge, target, key)  # before the rows are fetched, not after
        done = _receive(cur, arriving, target, feed)
        cur.execute(merge)
        inserted, touched = cur.fetchone() or (0, 0)
        distinct = done.rows if touched == done.rows else _distinct(cur, arriving, key)
        cur.execute(sql.SQL("DROP TABLE {}").format(arriving))
    return Loaded(
        rows=done.rows,
        inserted=inserted,
        updated=touched - inserted,
        unchanged=distinct - touched,
        duplicates=done.rows - distinct,
        rejected=done.rejected,
    )


def _arrivals(cur: cursor, target: Target, key: Sequence[str]) -> sql.Identifier:
    """A temporary table for the rows as they come."""
    arriving = sql.Identifier("pg_temp", f"dl_arriving_{uuid4().hex}")
    cur.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
            sql.Identifier(arriving.strings[1]), names(c.name for c in target.columns), target.name
        )
    )
    for column in key:  # NULL is no key: such a row would be inserted anew by every load
        cur.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET NOT NULL").format(arriving, sql.Identifier(column)))
    return arriving


def _merge(target: Target, key: Sequence[str], arriving: sql.Identifier) -> sql.Composed:
    """ctid is the order of arrival. Ordering by key also keeps two loads from locking rows in opposite orders.

    `*<>` compares what is stored, and so any type, also those that have no equality.
    """
    others = [column.name for column in target.columns if column.name not in key]
    change: sql.Composable = sql.SQL("NOTHING")
    if others:
        change = sql.SQL("UPDATE SET {} WHERE ROW({})::record OPERATOR(pg_catalog.*<>) ROW({})::record").format(
            sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others),
            sql.SQL(", ").join(sql.Identifier("kept", name) for name in others),
            sql.SQL(", ").join(sql.SQL("EXCLUDED.{}").format(sql.Identifier(name)) for name in others),
        )
    return sql.SQL(
        """
        WITH written AS (
            INSERT INTO {target} AS kept ({columns})
            SELECT DISTINCT ON ({key}) {columns} FROM {arriving} ORDER BY {key}, ctid DESC
            ON CONFLICT ({key}) DO {change}
            RETURNING {is_new} AS is_new
        )
        SELECT {inserted}, count(*) FROM written
        """
    ).format(
        is_new=sql.SQL("true" if target.partitioned else "xmax = 0"),
        inserted=_unmatched(target, key, arriving) if target.partitioned else sql.SQL("count(*) FILTER (WHERE is_new)"),
        key=names(key),
        columns=names(column.name for column in target.columns),
        arriving=arriving,
        target=target.name,
        change=change,
    )


def _unmatched(target: Target, key: Sequence[str], arriving: sql.Identifier) -> sql.Composed:
    """How many are new, where xmax cannot be asked: a partitioned table has no such column."""
    same = sql.SQL(" AND ").join(sql.SQL("old.{0} = new.{0}").format(sql.Identifier(name)) for name in key)
    return sql.SQL(
        "(SELECT count(*) FROM (SELECT DISTINCT {} FROM {}) AS new WHERE NOT EXISTS (SELECT FROM {} AS old WHERE {}))"
    ).format(names(key), arriving, target.name, same)


def _plan(cur: cursor, merge: sql.Composed, target: Target, key: Sequence[str]) -> None:
    try:
        cur.execute(sql.SQL("EXPLAIN ") + merge)
    except psycopg2.errors.InvalidColumnReference as error:
        raise NoSuchTarget(
            f"table {target} has no unique constraint over ({', '.join(key)}), so its rows cannot be told apart by it"
        ) from error


def _distinct(cur: cursor, arriving: sql.Identifier, key: Sequence[str]) -> int:
    cur.execute(sql.SQL("SELECT count(*) FROM (SELECT DISTINCT {} FROM {}) AS keys").format(names(key), arriving))
    return int((cur.fetchone() or (0,))[0])


def _receive(cur: cursor, arriving: sql.Identifier, target: Target, feed: Feed) -> Streamed:
    try:
        return stream(cur, arriving, target.columns, feed)
    except psycopg2.errors.NotNullViolation as error:
        where = (error.diag.context or "").partition("line ")[2].partition(":")[0]
        row = int(where) if where.isdigit() else 0
        raise UnsuitableValue(row, error.diag.column_name or "", "NULL cannot be part of a key") from error


def replace_table(
    conn: connection,
    table: str | sql.Identifier,
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    at_least: int = 1,
    patience: float = 600,
    ctx: SafePoint | None = None,
    on_batch: Callable[[int], None] | None = None,
    batch: int = BATCH,
    rejects: Rejects | None = None,
) -> Loaded:
    """Make the rows the whole content of the table: readers see all of the old or all of the new.

    Commit right after it: from its end until the commit readers wait. Fewer rows than `at_least` are taken for a
    fault of the source and replace nothing. `patience` is how many seconds to wait for others to leave the table.
    """
    feed = Feed.of(rows, ctx, on_batch, batch, rejects)
    with transaction(conn) as cur:
        one_at_a_time(cur, find_target(cur, table, columns), feed.ctx, patience)
        target = find_target(cur, table, columns)  # the load that was waited for may have put another in its place
        way = choose_way(cur, target)
        if way.swaps:
            aside = Aside(target, way)
            aside.create(cur)
            done = _enough(aside.fill(cur, feed), target, at_least)
            aside.finish(cur)
            aside.swap(cur, feed.ctx, patience)
        else:
            lock_table(cur, target, "SHARE ROW EXCLUSIVE", feed.ctx, patience)
            cur.execute(sql.SQL("DELETE FROM {}").format(target.name))
            done = _enough(stream(cur, target.name, target.columns, feed), target, at_least)
    return Loaded(rows=done.rows, inserted=done.rows, rejected=done.rejected)


def _enough(done: Streamed, target: Target, at_least: int) -> Streamed:
    if done.rows < at_least:
        raise TooFewRows(
            f"only {done.rows} rows came for {target} and at least {at_least} were expected, so it keeps the old ones"
        )
    return done
