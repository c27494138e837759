"""Remove the tables, functions and types of the queue from a schema, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2 import sql

from dataloader.app.db.schema import find_processes, migration_transaction, schema_text
from dataloader.app.db.schema_statements import schema_statements
from dataloader.app.errors import RightsMissing, SchemaBlocked, SchemaMissing
from dataloader.app.wording import format_count

_DEPENDENT_OBJECTS = "2BP01"
_INSUFFICIENT_PRIVILEGE = "42501"
_TABLES = """
SELECT c.relname
  FROM pg_class c
 WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relkind IN ('r', 'p')
   AND (c.relname = ANY (%(tables)s)
        OR EXISTS (SELECT FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
                    WHERE i.inhrelid = c.oid AND p.relnamespace = c.relnamespace AND p.relname = ANY (%(tables)s)))
 ORDER BY 1
"""
# Those of defaults, constraints and triggers go after the tables, the others, some of which return their rows, before.
_FUNCTIONS = """
SELECT p.oid::regprocedure::text,
       EXISTS (SELECT FROM pg_depend d
                WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid AND d.classid <> 'pg_proc'::regclass)
  FROM pg_proc p
 WHERE p.pronamespace = quote_ident(current_schema())::regnamespace AND p.proname = ANY (%(functions)s)
 ORDER BY 1
"""
_TYPES = """
SELECT t.typname
  FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
 WHERE t.typnamespace = quote_ident(current_schema())::regnamespace AND t.typname = ANY (%(types)s)
   AND coalesce(c.relkind = 'c', true)
 ORDER BY 1
"""
_ROLES = """
SELECT DISTINCT r.rolname
  FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
 WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relname = ANY (%(found)s)
   AND a.grantee <> c.relowner
 ORDER BY 1
"""
_OTHERS = """
SELECT count(*)
  FROM pg_class c
 WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
   AND c.relname <> ALL (%(found)s)
"""


@dataclass(frozen=True)
class Installation:
    """What of the queue is in a schema, what would be left there, and what uses it now."""

    schema: str
    tables: dict[str, int]  # the number of rows of each
    functions: tuple[str, ...]  # with their arguments
    types: tuple[str, ...]
    roles: tuple[str, ...]  # that have rights to the tables
    other_tables: int  # tables and views that are not the queue's
    processes: tuple[str, ...]
    running_jobs: int


def find_installation(dsn: str, schema: str, *, connect_timeout_sec: float = 5.0) -> Installation:
    """Raises SchemaMissing if the schema has no table of the queue."""
    with migration_transaction(dsn, schema, connect_timeout_sec, 30.0, create=False) as cursor:
        return _read(cursor, schema)


def uninstall(dsn: str, schema: str, *, force: bool = False, connect_timeout_sec: float = 5.0) -> Installation:
    """Remove all of it in one transaction, or nothing; return what was removed.

    Raises SchemaMissing, RightsMissing, and SchemaBlocked if an object of others depends on it, or, without `force`,
    while processes or jobs run.
    """
    with migration_transaction(dsn, schema, connect_timeout_sec, 30.0, create=False) as cursor:
        found = _read(cursor, schema)
        if not force:
            require_unused(found)
        try:
            for statement in _drop_statements(cursor, found):
                cursor.execute(statement)
        except psycopg2.Error as error:
            if error.pgcode == _DEPENDENT_OBJECTS:
                raise SchemaBlocked(
                    f"other objects depend on the queue: {error.diag.message_detail}."
                    " Nothing was removed: drop them first"
                ) from error
            if error.pgcode == _INSUFFICIENT_PRIVILEGE:
                raise RightsMissing(f"only the owner removes the queue: {error.diag.message_primary}") from error
            raise
        return found


def require_unused(found: Installation) -> None:
    """Raises SchemaBlocked while processes or jobs run."""
    running = [*found.processes, *([format_count(found.running_jobs, "job")] if found.running_jobs else ())]
    if running:
        raise SchemaBlocked(
            f"the queue is in use: {', '.join(running)}. Nothing was removed: stop `dataloader serve` and `dataloader"
            " worker` everywhere, or give --force"
        )


def _read(cursor: Any, schema: str) -> Installation:
    names = [s.object_name.split(" ") for s in schema_statements(schema_text()) if " " in s.object_name]
    ours = {f"{kind}s": [name for known, name in names if known == kind] for kind in ("table", "function", "type")}
    cursor.execute(_TABLES, ours)
    tables = [name for (name,) in cursor.fetchall()]
    if "dl_jobs" not in tables:
        raise SchemaMissing(f"schema {schema!r} holds no queue: there is nothing to remove")
    counts = {}
    for table in tables:
        cursor.execute(sql.SQL("SELECT count(*) FROM ONLY {}").format(sql.Identifier(table)))
        counts[table] = int(cursor.fetchone()[0])
    cursor.execute(_FUNCTIONS, ours)
    functions = [name for name, _ in sorted(cursor.fetchall(), key=lambda row: (row[1], row[0]))]
    cursor.execute(_TYPES, ours)
    types = [name for (name,) in cursor.fetchall()]
    cursor.execute(_ROLES, {"found": tables})
    roles = [name for (name,) in cursor.fetchall()]
    cursor.execute(_OTHERS, {"found": tables})
    (other_tables,) = cursor.fetchone()
    cursor.execute("SELECT count(*) FROM dl_jobs WHERE status = 'running'")
    (running_jobs,) = cursor.fetchone()
    processes = find_processes(cursor)
    return Installation(
        schema, counts, tuple(functions), tuple(types), tuple(roles), other_tables, tuple(processes), running_jobs
    )


def _drop_statements(cursor: Any, found: Installation) -> list[str]:
    cursor.execute(_FUNCTIONS, {"functions": [name.partition("(")[0] for name in found.functions]})
    used = {name for name, is_used in cursor.fetchall() if is_used}
    before = [name for name in found.functions if name not in used]
    tables = [sql.Identifier(name).as_string(cursor) for name in found.tables]
    groups = (
        ("FUNCTION", before), ("TABLE", tables), ("FUNCTION", [*used]),
        ("TYPE", [sql.Identifier(name).as_string(cursor) for name in found.types]),
    )  # fmt: skip
    return [f"DROP {kind} {', '.join(names)}" for kind, names in groups if names]
