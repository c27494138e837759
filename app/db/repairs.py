"""Restores missing objects of the schema while processes work with its tables.

What reads a whole table keeps no statement waiting: an index is built concurrently, and a constraint is added for new
rows first, and validated afterwards. An index that a later version adds to schema.sql is built here, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from dataloader.app.db.schema import (
    LOCK_WAIT_SEC,
    MIGRATION_SETTINGS,
    Report,
    apply_statement,
    ignore,
    migration_transaction,
    open_cursor,
    schema_text,
    set_search_path,
    table_locks,
)
from dataloader.app.db.schema_statements import Repair, schema_statements
from dataloader.app.errors import SchemaBlocked

_INDEX = re.compile(r"CREATE (UNIQUE )?INDEX (?P<name>\w+)\s+ON (?P<table>\w+)")
_CONSTRAINT = re.compile(r"ALTER TABLE (?P<table>\w+) ADD CONSTRAINT (?P<name>\w+) (?:CHECK|FOREIGN KEY)")


def apply_repairs(
    dsn: str,
    repairs: Iterable[Repair],
    schema: str = "public",
    *,
    connect_timeout_sec: float = 5.0,
    lock_wait_sec: float = LOCK_WAIT_SEC,
    report: Report = ignore,
) -> None:
    """Restore objects of the schema. Raises SchemaBlocked if rows or other objects forbid it; that object is left out
    then, and of those that need no reading of a table all are."""
    at_once, unlocked = _split(list(repairs))

    def apply_at_once(try_sec: float) -> None:
        with migration_transaction(dsn, schema, connect_timeout_sec, try_sec) as cursor:
            for repair in at_once:
                apply_statement(cursor, repair.statement, f"restore {repair.object_name}")

    table_locks(dsn, schema, connect_timeout_sec, lock_wait_sec, report).repeat(apply_at_once)
    for repair, undo in unlocked:
        report(f"restoring the {repair.object_name}; jobs run meanwhile")
        with open_cursor(dsn, connect_timeout_sec, session_settings=MIGRATION_SETTINGS, autocommit=True) as cursor:
            set_search_path(cursor, schema)
            _apply_or_undo(cursor, repair, undo)


def _apply_or_undo(cursor: Any, repair: Repair, undo: str) -> None:
    try:
        apply_statement(cursor, repair.statement, f"restore {repair.object_name}")
    except SchemaBlocked:
        cursor.execute(undo)
        raise


def _split(repairs: Sequence[Repair]) -> tuple[list[Repair], list[tuple[Repair, str]]]:
    """What is done in one transaction, and what afterwards, each with the statement that takes it away again."""
    made = {repair.object_name.removeprefix("table ") for repair in repairs if repair.object_name.startswith("table ")}
    partitioned = {s.table for s in schema_statements(schema_text()) if "PARTITION BY" in s.text}
    at_once: list[Repair] = []
    unlocked: list[tuple[Repair, str]] = []
    for repair in repairs:
        index, constraint = _INDEX.match(repair.statement), _CONSTRAINT.match(repair.statement)
        if index and index["table"] not in made | partitioned:
            statement = repair.statement.replace("INDEX", "INDEX CONCURRENTLY", 1)
            undo = f"DROP INDEX CONCURRENTLY IF EXISTS {index['name']}"
            unlocked.append((Repair(repair.object_name, statement), undo))
        elif repair.statement.startswith("REINDEX"):
            unlocked.append((repair, "SELECT 1"))
        elif constraint and constraint["table"] not in made | partitioned:
            table, name = constraint["table"], constraint["name"]
            at_once.append(Repair(repair.object_name, f"{repair.statement} NOT VALID"))
            validate = f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}"
            unlocked.append((Repair(repair.object_name, validate), f"ALTER TABLE {table} DROP CONSTRAINT {name}"))
        else:
            at_once.append(repair)
    return at_once, unlocked
