"""What a database with the schema is like before a test, so that it can be made so again, or known to be changed."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from psycopg2 import sql
from psycopg2.extensions import connection as Connection

_MAX_PAGES = 1_000  # then a new copy is as fast, and no test meets the dead rows of many others
_MAX_USES = 100

# A statement other than INSERT, UPDATE and DELETE writes rows of the catalogs, or as VACUUM the sizes in pg_class. The
# server counts these writes, and a session that has ended has added its own.
_DEFINITIONS = """
    SELECT (SELECT sum(pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid)
                       + pg_stat_get_tuples_deleted(oid))
              FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND NOT relisshared),
           (SELECT sum(hashtext(concat_ws(' ', oid, reltuples, relallvisible, relfrozenxid)))
              FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i')),
           (SELECT concat_ws(' ', datdba, datallowconn, datconnlimit, datacl,
                             (SELECT jsonb_agg(setconfig) FROM pg_db_role_setting WHERE setdatabase = d.oid),
                             (SELECT count(*) FROM pg_shdescription WHERE objoid = d.oid))
              FROM pg_database d WHERE datname = current_database()),
           (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()),
           (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database())"""
_TABLES_AND_SEQUENCES = """
    SELECT relname, relkind,
           CASE relkind WHEN 'r' THEN pg_relation_size(oid) / 8192 ELSE pg_sequence_last_value(oid) END,
           (SELECT seqstart FROM pg_sequence WHERE seqrelid = pg_class.oid)
      FROM pg_class WHERE relkind IN ('r', 'S') AND relnamespace = 'public'::regnamespace ORDER BY relname"""


@dataclass
class EmptyDatabase:
    """How it was when it was copied from the template."""

    definitions: Any
    rows: dict[str, str]  # of the tables that the schema fills, as COPY writes them
    sequences: dict[str, int | None]  # the last value of each
    uses: int = 0

    @classmethod
    def read(cls, connection: Connection) -> EmptyDatabase:
        with connection.cursor() as cursor:
            cursor.execute(_TABLES_AND_SEQUENCES)
            found = cursor.fetchall()
            rows = {name: _copy_out(connection, name) for name, kind, pages, _ in found if kind == "r" and pages}
            sequences = {name: last for name, kind, last, _ in found if kind == "S"}
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
            cursor.execute(_TABLES_AND_SEQUENCES)
            found = cursor.fetchall()
            pages_by_table = {name: pages for name, kind, pages, _ in found if kind == "r" and pages}
            if sum(pages_by_table.values()) > _MAX_PAGES:
                return False
            cursor.execute("SET session_replication_role = replica")  # neither triggers nor foreign keys
            for name in pages_by_table:
                kept = self.rows.get(name)
                if kept is None or _copy_out(connection, name) != kept:
                    cursor.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
                    if kept is not None:
                        cursor.copy_expert(
                            sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(name)), io.StringIO(kept)
                        )
            for name, kind, last, start in found:
                if kind == "S" and last != self.sequences[name]:
                    former = self.sequences[name]
                    value = (name, start, False) if former is None else (name, former, True)
                    cursor.execute("SELECT setval(%s::regclass, %s, %s)", value)
        return True


def _copy_out(connection: Connection, table: str) -> str:
    text = io.StringIO()
    with connection.cursor() as cursor:
        cursor.copy_expert(sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(table)), text)
    return text.getvalue()
