"""Loads rows into PostgreSQL by COPY: `copy_rows`, `upsert`, `replace_table`.

All three work inside the caller's transaction and leave the commit to the caller, so that a load and what must
happen with it are one transaction; on a connection in autocommit each is a transaction of its own. They return
`Loaded`, call `on_batch` after every `batch` rows, and raise what `ctx.check()` raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar
from uuid import uuid4

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import connection, cursor

from dataloader.pipelines.toolkit.copytext import Row
from dataloader.pipelines.toolkit.deprecation import renamed_keywords
from dataloader.pipelines.toolkit.errors import NoSuchTarget, TooFewRows, UnsuitableValue
from dataloader.pipelines.toolkit.rejects import Rejects
from dataloader.pipelines.toolkit.replace import TableSwap, lock_replacement, lock_table, plan_replacement
from dataloader.pipelines.toolkit.safepoint import NoSafePoints, SafePoint
from dataloader.pipelines.toolkit.target import (
    CopyInput,
    Loaded,
    Target,
    column_list,
    copy_from,
    find_target,
    transaction,
)

__all__ = ["Loaded", "batches", "copy_rows", "replace_table", "upsert"]

T = TypeVar("T")

DEFAULT_BATCH_ROWS = 5_000


def batches(rows: Iterable[T], size: int = DEFAULT_BATCH_ROWS) -> Iterator[list[T]]:
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
    batch: int = DEFAULT_BATCH_ROWS,
    rejects: Rejects | None = None,
) -> Loaded:
    """Append the rows: sequences in the order of `columns`, or mappings that have them as keys."""
    copy_input = CopyInput(rows, ctx or NoSafePoints(), on_batch, batch, rejects)
    with transaction(conn) as cur:
        target = find_target(cur, table, columns)
        return copy_from(cur, target.name, target.columns, copy_input)


def upsert(
    conn: connection,
    table: str | sql.Identifier,
    columns: Sequence[str],
    key: Sequence[str],
    rows: Iterable[Row],
    *,
    ctx: SafePoint | None = None,
    on_batch: Callable[[int], None] | None = None,
    batch: int = DEFAULT_BATCH_ROWS,
    rejects: Rejects | None = None,
) -> Loaded:
    """Insert the rows whose key is new and update the others, but leave alone those that would not change.

    Of several rows with one key the last one counts. The table needs a unique constraint over exactly `key`.
    """
    copy_input = CopyInput(rows, ctx or NoSafePoints(), on_batch, batch, rejects)
    if not key or not set(key) <= set(columns):
        raise NoSuchTarget(f"the key ({', '.join(key)}) must be among the columns to load ({', '.join(columns)})")
    with transaction(conn) as cur:
        target = find_target(cur, table, columns)
        staging = _create_staging_table(cur, target, key)
        merge = _merge_statement(target, key, staging)
        try:
            cur.execute(sql.SQL("EXPLAIN ") + merge)  # fails before the rows are fetched, not after
        except psycopg2.errors.InvalidColumnReference as error:
            problem = f"table {target} has no unique constraint over ({', '.join(key)}), so it does not identify rows"
            raise NoSuchTarget(problem) from error
        done = _copy_to_staging(cur, staging, target, copy_input)
        cur.execute(merge)
        inserted, touched = cur.fetchone() or (0, 0)
        distinct = done.rows
        if touched != done.rows:
            keys = sql.SQL("SELECT DISTINCT {} FROM {}").format(column_list(key), staging)
            cur.execute(sql.SQL("SELECT count(*) FROM ({}) AS keys").format(keys))
            (distinct,) = cur.fetchone() or (0,)
        cur.execute(sql.SQL("DROP TABLE {}").format(staging))
    return Loaded(
        rows=done.rows,
        inserted=inserted,
        updated=touched - inserted,
        unchanged=distinct - touched,
        duplicates=done.rows - distinct,
        rejected=done.rejected,
    )


def _create_staging_table(cur: cursor, target: Target, key: Sequence[str]) -> sql.Identifier:
    """Create a temporary table for the incoming rows."""
    staging = sql.Identifier("pg_temp", f"dl_arriving_{uuid4().hex}")
    cur.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
            sql.Identifier(staging.strings[1]), column_list(c.name for c in target.columns), target.name
        )
    )
    for column in key:  # NULL is no key: every load would insert such a row again
        cur.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET NOT NULL").format(staging, sql.Identifier(column)))
    return staging


def _merge_statement(target: Target, key: Sequence[str], staging: sql.Identifier) -> sql.Composed:
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
    count_new: sql.Composable = sql.SQL("count(*) FILTER (WHERE is_new)")
    if target.partitioned:  # such a table has no xmax
        count_new = sql.SQL(
            "(SELECT count(*) FROM (SELECT DISTINCT {} FROM {}) AS new"
            " WHERE NOT EXISTS (SELECT FROM {} AS old WHERE {}))"
        ).format(
            column_list(key),
            staging,
            target.name,
            sql.SQL(" AND ").join(sql.SQL("old.{0} = new.{0}").format(sql.Identifier(name)) for name in key),
        )
    return sql.SQL(
        """
        WITH written AS (
            INSERT INTO {target} AS kept ({columns})
            SELECT DISTINCT ON ({key}) {columns} FROM {arriving} ORDER BY {key}, ctid DESC
            ON CONFLICT ({key}) DO {change}
            RETURNING {is_new} AS is_new
        )
        SELECT {count_new}, count(*) FROM written
        """
    ).format(
        is_new=sql.SQL("true" if target.partitioned else "xmax = 0"),
        count_new=count_new,
        key=column_list(key),
        columns=column_list(column.name for column in target.columns),
        arriving=staging,
        target=target.name,
        change=change,
    )


def _copy_to_staging(cur: cursor, staging: sql.Identifier, target: Target, copy_input: CopyInput) -> Loaded:
    try:
        return copy_from(cur, staging, target.columns, copy_input)
    except psycopg2.errors.NotNullViolation as error:
        where = (error.diag.context or "").partition("line ")[2].partition(":")[0]
        row = int(where) if where.isdigit() else 0
        raise UnsuitableValue(row, error.diag.column_name or "", "NULL cannot be part of a key") from error


@renamed_keywords(patience="lock_timeout_sec")
def replace_table(
    conn: connection,
    table: str | sql.Identifier,
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    at_least: int = 1,
    lock_timeout_sec: float = 600,
    ctx: SafePoint | None = None,
    on_batch: Callable[[int], None] | None = None,
    batch: int = DEFAULT_BATCH_ROWS,
    rejects: Rejects | None = None,
) -> Loaded:
    """Make the rows the whole content of the table: readers see all of the old or all of the new.

    Commit right after it: from its end until the commit readers wait. Fewer rows than `at_least` are treated as an
    error of the source and replace nothing. `lock_timeout_sec` limits the wait for the table's lock.
    """
    copy_input = CopyInput(rows, ctx or NoSafePoints(), on_batch, batch, rejects)
    with transaction(conn) as cur:
        lock_replacement(cur, find_target(cur, table, columns), copy_input.ctx, lock_timeout_sec)
        target = find_target(cur, table, columns)  # the load that was waited for may have put another in its place
        plan = plan_replacement(cur, target)
        swap = None if plan.reasons_to_rewrite else TableSwap(cur, target, plan)
        if swap is None:
            lock_table(cur, target, "SHARE ROW EXCLUSIVE", copy_input.ctx, lock_timeout_sec)
            cur.execute(sql.SQL("DELETE FROM {}").format(target.name))
            loaded = copy_from(cur, target.name, target.columns, copy_input)
        else:
            loaded = swap.fill(copy_input)
        if loaded.rows < at_least:
            raise TooFewRows(
                f"only {loaded.rows} rows came for {target} and at least {at_least} were expected, "
                "so it keeps the old ones"
            )
        if swap is not None:
            swap.swap(copy_input.ctx, lock_timeout_sec)
    return loaded
