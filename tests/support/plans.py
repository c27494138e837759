"""The plans of statements, and of what the functions in them execute."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import psycopg2
from psycopg2.extensions import cursor as Cursor

from dataloader.app.db.statements import statements
from tests.support.databases import superuser_dsn
from tests.support.queue_fixture import QueueFixture

NO_PROCESS = {"worker_id": None, "server": None, "reports": None}  # a lease decides, over whichever connection
NOTHING = "{NULL,NULL,NULL,NULL,NULL}"  # of five runs
_EXPLAIN = (
    "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on;"
    " SET auto_explain.log_nested_statements = on; SET auto_explain.log_format = json; SET client_min_messages = log"
)


class PreparedStatement:
    """A statement as a Session has it, with its settings and prepared, on a connection whose work is undone."""

    def __init__(self, queue_db: QueueFixture, name: str) -> None:
        self._parts = statements("public")[name].parts
        queue_db.session.close()
        queue_db.queue.ping()  # a new connection: no setting is left from before
        settings: dict[str, str] = dict(
            queue_db.session.execute_raw(
                "SELECT name, setting FROM pg_settings WHERE name IN"
                " ('enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'jit')"
            )
        )
        self._connection = psycopg2.connect(superuser_dsn(queue_db.dsn))  # who may load auto_explain
        with self._connection, self._connection.cursor() as cursor:
            for setting, value in settings.items():
                cursor.execute(f"SET {setting} = {value}")
            cursor.execute("SET plan_cache_mode = force_generic_plan")
            for part in self._parts:
                cursor.execute(part.prepare)

    def execute(self, parameters: dict[str, Any]) -> None:
        """Make the plans, which stay."""
        with self._connection.cursor() as cursor:
            self._execute(cursor, parameters)
        self._connection.rollback()

    def plans(self, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        """The generic plans that read dl_jobs, of the statement and of what its functions execute, in their order."""
        with self._connection.cursor() as cursor:
            cursor.execute(_EXPLAIN)
            self._connection.notices.clear()
            self._execute(cursor, parameters)
            found = [notice for notice in self._connection.notices if "plan:" in notice]
        self._connection.rollback()
        made = [json.loads(notice[notice.index("{") :])["Plan"] for notice in found]
        return [plan for plan in made if scans(plan)]

    def close(self) -> None:
        self._connection.close()

    def _execute(self, cursor: Cursor, parameters: dict[str, Any]) -> None:
        for part in self._parts:
            cursor.execute(
                part.execute, {name: (NO_PROCESS | parameters).get(name, NOTHING) for name in part.parameters}
            )


def plans(queue_db: QueueFixture, name: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """The plans of a statement, made and run at once."""
    with closing(PreparedStatement(queue_db, name)) as statement:
        return statement.plans(parameters)


def scans(plan: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Each scan of dl_jobs in the plan that was run, and its index."""
    found = []
    if plan.get("Relation Name") == "dl_jobs" and "Scan" in plan["Node Type"] and plan.get("Actual Loops"):
        found.append((plan["Node Type"], plan.get("Index Name")))
    if plan["Node Type"] == "Bitmap Index Scan" and plan["Index Name"].startswith("dl_jobs"):
        found.append((plan["Node Type"], plan["Index Name"]))
    for inner in plan.get("Plans", ()):
        found += scans(inner)
    return found


def rows_read(plan: dict[str, Any]) -> int:
    """Of dl_jobs, by the scan that read the most."""
    read = 0
    if plan.get("Relation Name") == "dl_jobs" and "Scan" in plan["Node Type"]:
        read = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return max([int(read), *map(rows_read, plan.get("Plans", ()))])
