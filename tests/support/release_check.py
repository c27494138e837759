"""What a release needs to work next to the one before: its migrations, and the statements of the former processes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg2

from dataloader.app.db.schema_statements import split_statements
from dataloader.app.db.statements import StatementPart, statements

KEPT = Path(__file__).parents[1] / "releases"
_BLOCKS_WRITERS = ("ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")
_INDETERMINATE_TYPE = "42P18"
_PREPARABLE = re.compile(r"(?:SELECT|INSERT|UPDATE|DELETE|WITH|VALUES|MERGE)\b", re.IGNORECASE)
_TABLES = """
SELECT c.oid, c.relname::text, pg_relation_filenode(c.oid),
       coalesce(s.seq_tup_read, 0), coalesce(s.n_tup_ins + s.n_tup_upd + s.n_tup_del, 0),
       ARRAY(SELECT l.mode FROM pg_locks l WHERE l.relation = c.oid AND l.pid = pg_backend_pid() AND l.granted)
  FROM pg_class c LEFT JOIN pg_stat_xact_user_tables s ON s.relid = c.oid
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND starts_with(c.relname, 'dl_')
"""


# ── migrations ──────────────────────────────────────────────────────────────────────────────────────────────────────


def migration_problems(cursor: Any, text: str) -> list[str]:
    """Execute a migration, one statement after the other, on tables with rows; return what other sessions suffer from.

    A statement may lock a table for a moment. It may not read, change or rewrite the rows of one that is locked so.
    """
    problems = []
    before = _read_tables(cursor)
    for statement in split_statements(text):
        cursor.execute(statement)
        after = _read_tables(cursor)
        first_line = " ".join(statement.split())[:80]
        problems += [f"{first_line}: {problem}" for problem in _compare(before, after)]
        before = after
    return problems


def _read_tables(cursor: Any) -> dict[int, tuple[Any, ...]]:
    cursor.execute(_TABLES)
    return {row[0]: row[1:] for row in cursor.fetchall()}


def _compare(before: Mapping[int, tuple[Any, ...]], after: Mapping[int, tuple[Any, ...]]) -> Iterator[str]:
    for oid, (table, file, read, written, _) in before.items():
        if oid not in after:
            yield f"drops {table}, which processes of the release before may use"
            continue
        name, new_file, new_read, new_written, modes = after[oid]
        is_locked = any(mode in _BLOCKS_WRITERS for mode in modes)
        if name != table:
            yield f"renames {table}, which processes of the release before may use"
        if file != new_file:
            yield f"rewrites {table}"
        elif is_locked and new_read > read:
            yield f"reads all rows of {table} while its writers wait"
        if new_written > written:
            yield f"changes {new_written - written} rows of {table} in one transaction"


# ── statements ──────────────────────────────────────────────────────────────────────────────────────────────────────


def kept_statements(schema: str = "public") -> dict[str, list[str]]:
    """The statements of this checkout by name, as they are kept for the next release."""
    return {name: [part.text for part in statement.parts] for name, statement in statements(schema).items()}


def read_kept(version: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads((KEPT / f"statements-{version}.json").read_text(encoding="utf-8"))
    return found


def statement_problems(cursor: Any, kept: Mapping[str, Sequence[str]]) -> list[str]:
    """Which of the statements the server refuses on its present tables, types and functions."""
    problems = []
    for name, parts in kept.items():
        for part in _preparable(parts):
            cursor.execute("SAVEPOINT statement")
            try:
                _parse(cursor, part)
            except psycopg2.Error as error:
                problems.append(f"{name}: {error.diag.message_primary}")
                cursor.execute("ROLLBACK TO statement")
            cursor.execute("DEALLOCATE ALL")
    return problems


def _preparable(parts: Iterable[str]) -> Iterator[StatementPart]:
    return (StatementPart(text) for text in parts if _PREPARABLE.match(text))


def _parse(cursor: Any, part: StatementPart) -> None:
    """Without types that follow from the statement, with NULL for each parameter."""
    cursor.execute("SAVEPOINT types")
    try:
        cursor.execute(part.prepare.replace("%%", "%"))
    except psycopg2.Error as error:
        if error.pgcode != _INDETERMINATE_TYPE:
            raise
        cursor.execute("ROLLBACK TO types")
        cursor.execute(f"EXPLAIN {part.text}", dict.fromkeys(part.parameters))


def main() -> None:
    """Keep this release's statements and schema: run once, when it is published."""
    from dataloader import __version__
    from dataloader.app.db.schema import schema_text

    (KEPT / f"statements-{__version__}.json").write_text(
        json.dumps(kept_statements(), indent=1) + "\n", encoding="utf-8"
    )
    (KEPT / f"schema-{__version__}.sql").write_text(schema_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
