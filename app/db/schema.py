"""Build and upgrade the queue's tables, and check whether this version can work with them.

schema.sql builds today's tables in an empty schema. The files in migrations/ upgrade older ones, each named after the
version that it creates; then the functions and triggers of schema.sql replace the old ones. A migration changes only
tables, types and rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import ISOLATION_LEVEL_READ_COMMITTED

from dataloader.app.db.connection import READ_WRITE_SESSION, connect_any_host, translate_errors
from dataloader.app.db.job_field_lists import enqueue_parameters
from dataloader.app.db.schema_statements import SchemaStatement, quote_identifier, schema_statements
from dataloader.app.db.statements import statements
from dataloader.app.db.table_locks import LockLimits, TableLocks, lock_statements
from dataloader.app.errors import RightsMissing, SchemaBlocked, SchemaMissing, SchemaOutdated, SchemaTooNew

_MIGRATIONS = Path(__file__).parent / "migrations"
SCHEMA_VERSION = max(int(path.stem) for path in _MIGRATIONS.glob("*.sql"))
COMPATIBLE_FROM = 9  # the oldest version whose processes work on these tables

_REQUEST_TYPE = "dl_enqueue_request"
_DROP_REQUEST_TYPE = f"DROP TYPE IF EXISTS {_REQUEST_TYPE} CASCADE;"  # with the functions that have such a parameter
_ALTERED_TABLE = re.compile(r"ALTER TABLE (?:IF EXISTS )?(?:ONLY )?(\w+)")
LOCK_WAIT_SEC = 600.0  # for tables that other sessions have locked
_MIGRATION_LOCK = 1684828528  # advisory lock: two migrations of one database
# A role may have shorter limits for its sessions than a migration takes, and be read-only by default.
MIGRATION_SETTINGS = (
    f"{READ_WRITE_SESSION} SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0"
)
_MIN_SERVER_VERSION = 150000
REQUIRED_ENCODING = "UTF8"
CREATE_DATABASE = "CREATE DATABASE jobs ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
_INSUFFICIENT_PRIVILEGE = "42501"
# Classes of SQLSTATE: not supported, data, constraints, dependent objects, names and kinds of objects.
_BLOCKING_CODE_CLASSES = ("0A", "22", "23", "2B", "42")
# Sessions that an upgrade may leave alone: of short commands, and of people who look at the tables.
_HARMLESS_SESSIONS = ["dataloader-migrate", "dataloader-doctor", "dataloader-probe", "dataloader-psql"]


Report = Callable[[str], None]  # is given sentences for the operator


def ignore(_: str) -> None:
    """For callers without an operator who waits."""


class SchemaVersion(NamedTuple):
    """The version that the tables record about themselves."""

    version: int
    fingerprint: str
    serves_from: int | None  # older tables do not record it

    @property
    def is_newer(self) -> bool:
        return self.version > SCHEMA_VERSION

    @property
    def is_compatible(self) -> bool:
        """Whether a process of this version may work on tables of a newer one."""
        return self.serves_from is not None and self.serves_from <= SCHEMA_VERSION


@dataclass(frozen=True)
class Migration:
    """What `migrate` found and did."""

    schema: str
    from_version: int | None  # 0: tables from before versions; None: there were no tables
    to_version: int
    steps: tuple[str, ...]  # empty: there was nothing to do


def schema_text() -> str:
    return (Path(__file__).parents[2] / "schema.sql").read_text(encoding="utf-8")


def migration_files(after: int) -> list[tuple[int, str]]:
    """The migrations to versions above `after`, in order: version and text."""
    paths = sorted(_MIGRATIONS.glob("*.sql"))
    return [(int(path.stem), path.read_text(encoding="utf-8")) for path in paths if int(path.stem) > after]


def migrate(
    dsn: str,
    schema: str = "public",
    *,
    connect_timeout_sec: float = 5.0,
    lock_wait_sec: float = LOCK_WAIT_SEC,
    report: Report = ignore,
) -> Migration:
    """Bring the queue's tables to this version: all of it in one transaction, or nothing.

    Newer tables that this version can work with are left as they are; others are refused. Raises SchemaBlocked while
    processes run that could not work with the new tables, and DatabaseUnavailable if a table stays locked for so long.
    """
    locks = table_locks(dsn, schema, connect_timeout_sec, lock_wait_sec, report)
    locks.repeat(lambda try_sec: _add_wait_states(dsn, schema, connect_timeout_sec, try_sec))
    return locks.repeat(
        lambda try_sec: _migrate(dsn, schema, connect_timeout_sec, LockLimits(try_sec, max_wait_sec=lock_wait_sec))
    )


def _migrate(dsn: str, schema: str, connect_timeout_sec: float, limits: LockLimits) -> Migration:
    text = schema_text()
    target = SchemaVersion(SCHEMA_VERSION, hashlib.sha256(text.encode()).hexdigest(), COMPATIBLE_FROM)
    with migration_transaction(dsn, schema, connect_timeout_sec, limits.try_sec) as cursor:
        found = _recorded_version(cursor, schema)
        if found is not None and found.is_newer:
            require_compatible(found, schema, has_tables=True)
            return Migration(schema, found.version, found.version, ())
        if found == target:
            return Migration(schema, SCHEMA_VERSION, SCHEMA_VERSION, ())
        version = _tables_version(cursor, found)
        steps: list[str] = []
        if version is None:
            _require_schema_rights(cursor, schema)
            apply_statement(cursor, text.replace("\nBEGIN;\n", "\n").replace("\nCOMMIT;\n", "\n"), "apply schema.sql")
            steps += [f"created {s.object_name}" for s in schema_statements(text) if s.object_name.startswith("table ")]
            _record(cursor, target)
        else:
            steps += _upgrade(cursor, version, text, target, limits)
        return Migration(schema, version, SCHEMA_VERSION, tuple(steps))


def table_locks(dsn: str, schema: str, connect_timeout_sec: float, max_wait_sec: float, report: Report) -> TableLocks:
    def ask(question: str) -> list[tuple[Any, ...]]:
        with open_cursor(dsn, connect_timeout_sec) as cursor:
            set_search_path(cursor, schema)
            cursor.execute(question)
            return list(cursor.fetchall())

    return TableLocks(ask, max_wait_sec, report)


def _add_wait_states(dsn: str, schema: str, connect_timeout_sec: float, lock_timeout_sec: float) -> None:
    """Add the values of a type from before version 5, in a transaction of their own: PostgreSQL lets no statement use a
    value in the transaction that adds it. The values alone change nothing."""
    with migration_transaction(dsn, schema, connect_timeout_sec, lock_timeout_sec) as cursor:
        for name in ("dl_place", "dl_wait_state"):
            cursor.execute("SELECT to_regtype(%s) IS NOT NULL", (name,))
            if cursor.fetchone()[0]:
                for value in ("waiting", "limited"):
                    apply_statement(
                        cursor, f"ALTER TYPE {name} ADD VALUE IF NOT EXISTS '{value}'", f"extend type {name}"
                    )


def _upgrade(cursor: Any, version: int, text: str, target: SchemaVersion, limits: LockLimits) -> list[str]:
    replaced = [s for s in schema_statements(text) if s.is_replaceable or s.object_name == f"type {_REQUEST_TYPE}"]
    on_tables = [s for s in replaced if s.table or s.text.startswith("SELECT dl_create_partitions")]
    elsewhere = [s for s in replaced if s not in on_tables]
    migrations = migration_files(after=version)
    if version >= COMPATIBLE_FROM:
        _upgrade_online(cursor, elsewhere, migrations, on_tables, target, limits)
    else:
        _require_no_processes(cursor)
        for number, migration in migrations:
            apply_statement(cursor, migration, f"apply migration {number}")
        cursor.execute(_DROP_REQUEST_TYPE)
        _replace_functions(cursor, elsewhere)
        for statement in on_tables:
            apply_statement(cursor, statement.text, f"replace {statement.object_name}")
        _record(cursor, target)
    triggers = sum(statement.object_name.startswith("trigger ") for statement in replaced)
    functions = sum(statement.object_name.startswith("function ") for statement in replaced)
    return [
        *(f"migrated to version {n}: {text.splitlines()[0].removeprefix('-- ').rstrip('.')}" for n, text in migrations),
        f"replaced {functions} functions and {triggers} triggers",
    ]


def _upgrade_online(
    cursor: Any,
    elsewhere: Sequence[SchemaStatement],
    migrations: Sequence[tuple[int, str]],
    on_tables: Sequence[SchemaStatement],
    target: SchemaVersion,
    limits: LockLimits,
) -> None:
    """While processes work with the tables. What locks none comes first, so functions are not checked against the new
    tables; the rest is one message, since all that need a table, or the type of a request, wait until the commit."""
    cursor.execute("SET LOCAL check_function_bodies = off")
    of_requests = [statement for statement in elsewhere if _REQUEST_TYPE in statement.text]
    _replace_functions(cursor, [statement for statement in elsewhere if statement not in of_requests])
    _record(cursor, target)
    cursor.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p')"
    )
    tables = {name for (name,) in cursor.fetchall()}
    altered = [name for _, text in migrations for name in _ALTERED_TABLE.findall(text)]
    locks = lock_statements(
        tables.intersection(altered), tables.intersection(statement.table for statement in on_tables), limits
    )
    cursor.execute(locks.waiting)
    texts = [
        *locks.blocking,
        *(text for _, text in migrations),
        _DROP_REQUEST_TYPE,
        *(statement.text for statement in (*of_requests, *on_tables)),
    ]
    apply_statement(cursor, "\n".join(texts), "change the tables")


def _replace_functions(cursor: Any, replacements: Iterable[SchemaStatement]) -> None:
    """Also `dl_enqueue`, which is dropped first if it has parameters for other fields of a job than today's; the roles
    that may execute it may execute the new one."""
    cursor.execute(
        "SELECT p.oid::regprocedure::text, array(SELECT a.grantee::regrole::text FROM aclexplode(p.proacl) a"
        " WHERE a.privilege_type = 'EXECUTE' AND a.grantee NOT IN (0, p.proowner))"
        " FROM pg_proc p WHERE p.proname = 'dl_enqueue' AND p.pronamespace = current_schema()::regnamespace"
        " AND p.proargnames <> %s",
        (enqueue_parameters(),),
    )
    former = cursor.fetchall()
    for signature, _ in former:
        apply_statement(cursor, f"DROP FUNCTION {signature}", f"replace {signature}")
    for statement in replacements:
        apply_statement(cursor, statement.text, f"replace {statement.object_name}")
    for grantee in [grantee for _, grantees in former for grantee in grantees]:
        cursor.execute(f"GRANT EXECUTE ON FUNCTION dl_enqueue TO {grantee}")


def _require_no_processes(cursor: Any) -> None:
    """Raise SchemaBlocked while processes of an older version run: their statements have the old names."""
    if running := find_processes(cursor):
        raise SchemaBlocked(
            f"this upgrade needs all processes of the older version stopped; still running: {', '.join(running)}."
            " Nothing was changed: stop `dataloader serve` and `dataloader worker` everywhere (SIGTERM), wait until a"
            " killed worker's heartbeat is out of date, and run `dataloader migrate` again"
        )


def find_processes(cursor: Any) -> list[str]:
    """Return the live worker processes, and the sessions of all processes that are no short command."""
    running = []
    if _exists(cursor, sql.Identifier("dl_workers")):
        if _exists(cursor, sql.Identifier("dl_heartbeats")):
            cursor.execute("SELECT name FROM dl_live_workers()")
        else:
            cursor.execute(
                "SELECT name FROM dl_workers"
                " WHERE seen_at > clock_timestamp() - make_interval(secs => 3 * heartbeat_sec)"
            )
        running = [f"worker {name}" for (name,) in cursor.fetchall()]
    cursor.execute(
        "SELECT DISTINCT application_name, coalesce(host(client_addr), CASE WHEN pg_has_role(usesysid, 'USAGE')"
        " OR pg_has_role('pg_read_all_stats', 'USAGE') THEN 'this host' ELSE 'role ' || usename END)"
        " FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'dataloader-%%'"
        " AND application_name <> ALL (%s) ORDER BY 1, 2",
        (_HARMLESS_SESSIONS,),
    )
    return running + [f"session {name} from {address}" for name, address in cursor.fetchall()]


def apply_statement(cursor: Any, statement: str, purpose: str) -> None:
    """Raises SchemaBlocked if rows or objects that are there forbid it; nothing has been changed then."""
    try:
        cursor.execute(statement)
    except psycopg2.Error as error:
        code = error.pgcode or ""
        if code == _INSUFFICIENT_PRIVILEGE or not code.startswith(_BLOCKING_CODE_CLASSES):
            raise
        details = (error.diag.message_primary, error.diag.message_detail, error.diag.message_hint)
        reason = "; ".join(detail.strip().rstrip(".") for detail in details if detail)
        raise SchemaBlocked(
            f"cannot {purpose}: {reason}. Nothing was changed: repair that, and run `dataloader migrate` again"
        ) from error


def _record(cursor: Any, target: SchemaVersion) -> None:
    """Record the version: update the row that schema.sql has inserted, or insert one."""
    if not _exists(cursor, sql.Identifier("dl_schema")):  # dropped by hand
        for statement in schema_statements(schema_text()):
            if statement.table == "dl_schema":
                cursor.execute(statement.text)
    cursor.execute(
        "UPDATE dl_schema SET fingerprint = %(fingerprint)s, serves_from = %(serves_from)s"
        " WHERE version = %(version)s AND fingerprint = 'by hand'",
        target._asdict(),
    )
    if cursor.rowcount == 0:
        cursor.execute(
            "INSERT INTO dl_schema (version, fingerprint, serves_from)"
            " VALUES (%(version)s, %(fingerprint)s, %(serves_from)s)",
            target._asdict(),
        )


def check(dsn: str, schema: str = "public", *, connect_timeout_sec: float = 5.0) -> None:
    """Raise SchemaMissing, SchemaOutdated, SchemaTooNew or SchemaBlocked if this version cannot work with them."""
    with translate_errors(), open_cursor(dsn, connect_timeout_sec) as cursor:
        require_compatible(
            _recorded_version(cursor, schema), schema, has_tables=_exists(cursor, sql.Identifier(schema, "dl_jobs"))
        )


def require_compatible(recorded: SchemaVersion | None, schema: str, *, has_tables: bool) -> None:
    if recorded is None and not has_tables:
        raise SchemaMissing(f"schema {schema!r} holds no queue; `dataloader migrate` creates its tables")
    if recorded is None or recorded.version < SCHEMA_VERSION:
        version = 0 if recorded is None else recorded.version
        raise SchemaOutdated(
            f"the tables in schema {schema!r} are of version {version}, this dataloader needs {SCHEMA_VERSION}; "
            "run `dataloader migrate`"
        )
    if recorded.is_newer and not recorded.is_compatible:
        raise SchemaTooNew(
            f"the tables in schema {schema!r} are of version {recorded.version}, newer than this dataloader's "
            f"{SCHEMA_VERSION}, and not compatible with it; upgrade dataloader instead"
        )


@contextmanager
def migration_transaction(
    dsn: str, schema: str, connect_timeout_sec: float, lock_timeout_sec: float, *, create: bool = True
) -> Iterator[Any]:
    """A transaction under the lock of migrations, with the schema, which is created if wanted, as its search path."""
    with translate_errors(), open_cursor(dsn, connect_timeout_sec, session_settings=MIGRATION_SETTINGS) as cursor:
        number = cursor.connection.server_version
        if number < _MIN_SERVER_VERSION:
            raise SchemaOutdated(f"the server is PostgreSQL {number // 10000}; dataloader needs 15 or newer")
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
        cursor.execute("SET LOCAL lock_timeout = %s", (f"{lock_timeout_sec}s",))
        cursor.execute("SET LOCAL client_min_messages = warning")
        cursor.execute("SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL", (schema,))
        if create and not cursor.fetchone()[0]:
            _require_schema_rights(cursor, schema)
            cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        set_search_path(cursor, schema)
        yield cursor


def set_search_path(cursor: Any, schema: str) -> None:
    """For the transaction; outside of one for the session."""
    local = sql.SQL("" if cursor.connection.autocommit else "LOCAL ")
    cursor.execute(sql.SQL("SET {}search_path TO {}, pg_temp").format(local, sql.Identifier(schema)))


@contextmanager
def open_cursor(
    dsn: str, connect_timeout_sec: float, *, session_settings: str = "", autocommit: bool = False
) -> Iterator[Any]:
    timeout_sec = max(2, int(connect_timeout_sec))
    connection = connect_any_host(
        dsn,
        lambda host: psycopg2.connect(
            host, connect_timeout=timeout_sec, application_name="dataloader-migrate", client_encoding="UTF8"
        ),
    )
    try:
        _require_utf8(connection)
        if session_settings:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(session_settings)
            connection.autocommit = False
        connection.isolation_level = ISOLATION_LEVEL_READ_COMMITTED  # it sees what a migration before it has committed
        connection.autocommit = autocommit
        # As a context a connection begins a transaction, whatever its autocommit.
        with nullcontext() if autocommit else connection, connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def _require_utf8(connection: Any) -> None:
    """Raise SchemaBlocked if the database cannot hold every text: an error message or a line of a log may be any."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in (REQUIRED_ENCODING, None):
        raise SchemaBlocked(
            f"database {connection.info.dbname!r} has the encoding {encoding}, and the queue needs"
            f" {REQUIRED_ENCODING}; name another database, made by {CREATE_DATABASE}"
        )


def _require_schema_rights(cursor: Any, schema: str) -> None:
    """Raise RightsMissing if this account may create neither tables in the schema nor the schema itself."""
    cursor.execute(
        "SELECT CASE WHEN to_regnamespace(quote_ident(%(schema)s)) IS NULL"
        " THEN has_database_privilege(current_database(), 'CREATE')"
        " ELSE has_schema_privilege(to_regnamespace(quote_ident(%(schema)s))::oid, 'CREATE') END, current_user",
        {"schema": schema},
    )
    has_right, user = cursor.fetchone()
    if not has_right:
        raise RightsMissing(
            f"{user} may not create tables in schema {schema!r}; the owner of the database, or a superuser, gives it a"
            f" schema: CREATE SCHEMA etl AUTHORIZATION {quote_identifier(user)}; and PG_SCHEMA_QUEUE=etl names it"
        )


def _exists(cursor: Any, table: sql.Identifier) -> bool:
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (table.as_string(cursor),))
    return bool(cursor.fetchone()[0])


def _recorded_version(cursor: Any, schema: str) -> SchemaVersion | None:
    if not _exists(cursor, sql.Identifier(schema, "dl_schema")):
        return None
    cursor.execute(statements(schema)["schema_version"].text)
    row = cursor.fetchone()
    return None if row is None else SchemaVersion(*row)


def _tables_version(cursor: Any, recorded: SchemaVersion | None) -> int | None:
    """The version of the tables in the search path; 0: from before versions; None: there are none."""
    if recorded is not None:
        return recorded.version
    cursor.execute(
        "SELECT CASE WHEN bool_or(attname = 'limits') THEN %s WHEN bool_or(attname = 'wait_state') THEN 4"
        " WHEN count(*) > 0 THEN 0 END FROM pg_attribute WHERE attrelid = to_regclass('dl_jobs') AND attnum > 0",
        (SCHEMA_VERSION,),
    )
    version: int | None = cursor.fetchone()[0]
    return version
