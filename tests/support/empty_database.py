"""What a database with the schema is like before a test, so that it can be made so again, or known to be changed."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from psycopg2 import sql
from psycopg2.extensions import connection as Connection

_MAX_PAGES = 1_000  # then a new copy is as fast, and no test meets the dead rows of many others
_MAX_USES = 100

# Each row of these is one thing that a statement other than INSERT, UPDATE and DELETE made or changed.
_CATALOGS = (
    "pg_attrdef", "pg_attribute", "pg_cast", "pg_class", "pg_collation", "pg_constraint", "pg_conversion",
    "pg_default_acl", "pg_depend", "pg_description", "pg_enum", "pg_event_trigger", "pg_extension",
    "pg_foreign_data_wrapper", "pg_foreign_server", "pg_index", "pg_inherits", "pg_init_privs", "pg_language",
    "pg_largeobject_metadata", "pg_namespace", "pg_opclass", "pg_operator", "pg_partitioned_table", "pg_policy",
    "pg_proc", "pg_publication", "pg_range", "pg_rewrite", "pg_seclabel", "pg_sequence", "pg_statistic",
    "pg_statistic_ext", "pg_transform", "pg_trigger", "pg_ts_config", "pg_type", "pg_user_mapping",
)  # fmt: skip
_DEFINITIONS = (
    "SELECT jsonb_build_object("
    + ", ".join(
        f"'{name}', (SELECT jsonb_build_array(count(*), max(xmin::text::bigint)) FROM {name})" for name in _CATALOGS
    )
    + """,
    'analyzed', (SELECT md5(string_agg(concat_ws(' ', oid, reltuples, relallvisible, relfrozenxid), ',' ORDER BY oid))
                   FROM pg_class WHERE relnamespace NOT IN ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace)),
    'database', (SELECT concat_ws(' ', datdba, datallowconn, datconnlimit, datacl,
                                  (SELECT jsonb_agg(setconfig) FROM pg_db_role_setting WHERE setdatabase = d.oid),
                                  (SELECT count(*) FROM pg_shdescription WHERE objoid = d.oid))
                   FROM pg_database d WHERE datname = current_database()),
    'slots', (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()),
    'prepared', (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()))"""
)
_TABLES = """
    SELECT relname, (pg_relation_size(oid) / 8192)::int FROM pg_class
     WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname"""
_SEQUENCES = "SELECT sequencename, start_value, last_value FROM pg_sequences WHERE schemaname = 'public' ORDER BY 1"


@dataclass
class EmptyDatabase:
    """How it was when it was copied from the template."""

    definitions: Any
    rows: dict[str, str]  # of the tables that the schema fills, as COPY writes them
    sequences: list[tuple[Any, ...]]
    uses: int = 0

    @classmethod
    def read(cls, connection: Connection) -> EmptyDatabase:
        with connection.cursor() as cursor:
            cursor.execute(_TABLES)
            filled = [name for name, pages in cursor.fetchall() if pages]
            rows = {name: _copy_out(connection, name) for name in filled}
            cursor.execute(_SEQUENCES)
            sequences = cursor.fetchall()
            cursor.execute(_DEFINITIONS)
            return cls(cursor.fetchone(), rows, sequences)

    def restore(self, connection: Connection) -> bool:
        """Delete what tests have inserted. Return False if more than rows was changed, or it is worn."""
        self.uses += 1
        connection.autocommit = False
        with connection, connection.cursor() as cursor:
            cursor.execute(_DEFINITIONS)
            if cursor.fetchone() != self.definitions or self.uses >= _MAX_USES:
                return False
            cursor.execute(_TABLES)
            tables = cursor.fetchall()
            used = [name for name, pages in tables if pages]
            if sum(pages for _, pages in tables) > _MAX_PAGES:
                return False
            cursor.execute("SET session_replication_role = replica")  # neither triggers nor foreign keys
            for name in used:
                kept = self.rows.get(name)
                if kept is None or _copy_out(connection, name) != kept:
                    cursor.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
                    if kept is not None:
                        cursor.copy_expert(
                            sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(name)), io.StringIO(kept)
                        )
            cursor.execute(_SEQUENCES)
            former = {name: last for name, _, last in self.sequences}
            for name, start, last in cursor.fetchall():
                if last != former[name]:
                    kept_last = former[name]
                    value = (name, start, False) if kept_last is None else (name, kept_last, True)
                    cursor.execute("SELECT setval(%s::regclass, %s, %s)", value)
        return True


def _copy_out(connection: Connection, table: str) -> str:
    text = io.StringIO()
    with connection.cursor() as cursor:
        cursor.copy_expert(sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(table)), text)
    return text.getvalue()
