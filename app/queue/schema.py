"""Apply schema.sql, and tell whether the tables are what this version works with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psycopg2
from psycopg2 import sql

from app.errors import SchemaBlocked, SchemaMissing, SchemaOutdated, SchemaTooNew
from app.queue.refusals import translated
from app.queue.repair import Repairs
from app.queue.session import host_by_host
from app.queue.statements import statements

SCHEMA_VERSION = 3  # grows with each change of schema.sql that a running older version would notice
SERVES_FROM = 1  # the oldest version whose processes work on these tables: tests/system/test_side_by_side.py tries them

_ONE_AT_A_TIME = 1684828528  # advisory lock: two migrations of one database
_OLDEST_SERVER = 150000
_DENIED = "42501"
# Classes of SQLSTATE: not supported, data, constraints, dependent objects, names and kinds of objects.
_BLOCKED = ("0A", "22", "23", "2B", "42")


class Stand(NamedTuple):
    """What the tables say of themselves."""

    version: int
    fingerprint: str
    serves_from: int | None  # older tables do not say it

    @property
    def newer(self) -> bool:
        return self.version > SCHEMA_VERSION

    @property
    def serves(self) -> bool:
        """May a process of this version work on tables of a newer one?"""
        return self.serves_from is not None and self.serves_from <= SCHEMA_VERSION


@dataclass(frozen=True)
class Migration:
    """What `migrate` found and did."""

    schema: str
    found: int | None  # the version that was there; 0: tables from before versions; None: nothing
    now: int
    steps: tuple[str, ...]  # empty: nothing was to be done


def schema_text() -> str:
    here = Path(__file__).resolve()
    for place in (here.parents[2] / "schema.sql", here.parent / "schema.sql"):
        if place.exists():
            return place.read_text(encoding="utf-8")
    raise FileNotFoundError("schema.sql is missing from this installation")


def migrate(
    dsn: str,
    schema: str = "public",
    *,
    connect_timeout: float = 5.0,
    lock_timeout_sec: float = 30.0,
    repairs: Repairs | None = None,
) -> Migration:
    """Bring the queue's tables to this version: all of it in one transaction, or nothing.

    Newer tables that serve this version are left as they are; others are refused. `repairs`: objects that were dropped
    or changed since, put back by applying the file again.
    """
    text = schema_text()
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    with translated(), _cursor(dsn, connect_timeout) as cursor:
        _require_server(cursor)
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_ONE_AT_A_TIME,))
        found = _version(cursor, schema)
        if found is not None and found.newer:
            judge(found, schema, tables=True)
            return Migration(schema, found.version, found.version, ())
        if repairs is None and found == Stand(SCHEMA_VERSION, fingerprint, SERVES_FROM):
            return Migration(schema, SCHEMA_VERSION, SCHEMA_VERSION, ())
        before = _objects(cursor, schema)
        name = sql.Identifier(schema)
        cursor.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{lock_timeout_sec}s")))
        if not before and not _exists(cursor, schema):
            cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
        cursor.execute(sql.SQL("SET LOCAL search_path TO {}").format(name))
        cursor.execute("SET LOCAL client_min_messages = warning")
        for what, statement in repairs.before if repairs else ():
            _apply(cursor, statement, f"restore {what}")
        _apply(cursor, text, "apply schema.sql")
        for what, statement in repairs.after if repairs else ():
            _apply(cursor, statement, f"restore {what}")
        if found != Stand(SCHEMA_VERSION, fingerprint, SERVES_FROM):
            _record(cursor, fingerprint)
        if repairs:
            steps = tuple(f"restored {name}" for name in repairs.names)
            return Migration(schema, _found_version(found, before), SCHEMA_VERSION, steps)
        after = _objects(cursor, schema)
        return Migration(schema, _found_version(found, before), SCHEMA_VERSION, _steps(before, after))


def _apply(cursor: Any, statement: str, purpose: str) -> None:
    """Raises SchemaBlocked if rows or objects that are there forbid it; nothing has been changed then."""
    try:
        cursor.execute(statement)
    except psycopg2.Error as error:
        code = error.pgcode or ""
        if code == _DENIED or not code.startswith(_BLOCKED):
            raise
        details = (error.diag.message_primary, error.diag.message_detail, error.diag.message_hint)
        reason = "; ".join(detail.strip().rstrip(".") for detail in details if detail)
        raise SchemaBlocked(
            f"cannot {purpose}: {reason}. Nothing was changed: mend that, and run `dataloader migrate` again"
        ) from error


def _record(cursor: Any, fingerprint: str) -> None:
    """The file notes its version itself, for those who apply it by hand; that line becomes ours."""
    known = Stand(SCHEMA_VERSION, fingerprint, SERVES_FROM)._asdict()
    cursor.execute(
        "UPDATE dl_schema SET fingerprint = %(fingerprint)s, serves_from = %(serves_from)s"
        " WHERE version = %(version)s AND fingerprint = 'by hand'",
        known,
    )
    if cursor.rowcount == 0:
        cursor.execute(
            "INSERT INTO dl_schema (version, fingerprint, serves_from)"
            " VALUES (%(version)s, %(fingerprint)s, %(serves_from)s)",
            known,
        )


def check(dsn: str, schema: str = "public", *, connect_timeout: float = 5.0) -> None:
    """Raise SchemaMissing, SchemaOutdated or SchemaTooNew if this version cannot work with the tables."""
    with translated(), _cursor(dsn, connect_timeout) as cursor:
        judge(_version(cursor, schema), schema, tables=bool(_objects(cursor, schema)))


def judge(found: Stand | None, schema: str, *, tables: bool) -> None:
    if found is None and not tables:
        raise SchemaMissing(f"schema {schema!r} holds no queue; `dataloader migrate` creates its tables")
    if found is None or found.version < SCHEMA_VERSION:
        version = 0 if found is None else found.version
        raise SchemaOutdated(
            f"the tables in schema {schema!r} are of version {version}, this dataloader needs {SCHEMA_VERSION}; "
            "run `dataloader migrate`"
        )
    if found.newer and not found.serves:
        raise SchemaTooNew(
            f"the tables in schema {schema!r} are of version {found.version}, newer than this dataloader's "
            f"{SCHEMA_VERSION}, and do not serve it; upgrade dataloader instead"
        )


@contextmanager
def _cursor(dsn: str, connect_timeout: float) -> Iterator[Any]:
    patience = max(2, int(connect_timeout))
    connection = host_by_host(
        dsn, lambda way: psycopg2.connect(way, connect_timeout=patience, application_name="dataloader-migrate")
    )
    try:
        with connection, connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def _require_server(cursor: Any) -> None:
    number = cursor.connection.server_version
    if number < _OLDEST_SERVER:
        raise SchemaOutdated(f"the server is PostgreSQL {number // 10000}; dataloader needs 15 or newer")


def _exists(cursor: Any, schema: str) -> bool:
    cursor.execute("SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL", (schema,))
    return bool(cursor.fetchone()[0])


def _version(cursor: Any, schema: str) -> Stand | None:
    table = sql.Identifier(schema, "dl_schema")
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (table.as_string(cursor),))
    if not cursor.fetchone()[0]:
        return None
    cursor.execute(statements(schema)["schema_version"].text)
    row = cursor.fetchone()
    return None if row is None else Stand(*row)


def _objects(cursor: Any, schema: str) -> dict[str, str]:
    """Everything of ours in the schema, with a text that changes when it changes."""
    cursor.execute(
        r"""
        SELECT kind, name, form FROM (
            SELECT 'column' AS kind, c.relname || '.' || a.attname AS name, format_type(a.atttypid, a.atttypmod) AS form
              FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
             WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s)) AND c.relkind IN ('r', 'p')
               AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped AND c.relname LIKE 'dl\_%%'
            UNION ALL
            SELECT 'index', i.relname, pg_get_indexdef(i.oid)
              FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class c ON c.oid = x.indrelid
             WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s)) AND c.relname LIKE 'dl\_%%'
               AND NOT c.relispartition
            UNION ALL
            SELECT 'trigger', t.tgname, pg_get_triggerdef(t.oid)
              FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
             WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s)) AND NOT t.tgisinternal
               AND NOT c.relispartition AND c.relname LIKE 'dl\_%%'
            UNION ALL
            SELECT 'function', p.proname, p.prosrc
              FROM pg_proc p
             WHERE p.pronamespace = to_regnamespace(quote_ident(%(schema)s)) AND p.proname LIKE 'dl\_%%'
        ) all_of_it
        """,
        {"schema": schema},
    )
    return {f"{kind} {name}": form for kind, name, form in cursor.fetchall()}


def _found_version(found: Stand | None, before: dict[str, str]) -> int | None:
    if found is not None:
        return found.version
    return 0 if before else None


def _steps(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    tables_before = {name.split(" ")[1].split(".")[0] for name in before if name.startswith("column ")}
    steps = []
    for name, form in after.items():
        kind, _, object_name = name.partition(" ")
        table = object_name.split(".")[0]
        if kind == "column" and table not in tables_before:
            step = f"created table {table}"
        elif name not in before:
            step = f"added {name}"
        elif before[name] != form:
            step = f"changed {name}"
        else:
            continue
        if step not in steps:
            steps.append(step)
    return tuple(steps) or ("applied settings",)
