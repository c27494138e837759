"""The plans of statements, and of what the functions in them execute."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg2

from dataloader.app.db.statements import statements
from tests.support.databases import superuser_dsn
from tests.support.queue_fixture import QueueFixture

NO_PROCESS = {"worker_id": None, "server": None, "reports": None}  # a lease decides, over whichever connection
NOTHING = "{NULL,NULL,NULL,NULL,NULL}"  # of five runs
_EXPLAIN = (
    "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on;"
    " SET auto_explain.log_nested_statements = on; SET auto_explain.log_format = json; SET client_min_messages = log"
)


def plans(
    queue_db: QueueFixture, name: str, parameters: dict[str, Any], *, fill: Callable[[], dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The generic plans that read dl_jobs, of a statement and of what its functions execute, in their order.

    As a Session has them: its settings, prepared, then executed; after which everything is undone. With `fill` the
    plans are made before the table is filled, and run after it."""
    statement = statements("public")[name]
    queue_db.session.close()
    queue_db.queue.ping()  # a new connection: no plan is left from before
    settings: dict[str, str] = dict(
        queue_db.session.execute_raw(
            "SELECT name, setting FROM pg_settings WHERE name IN"
            " ('enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'jit')"
        )
    )
    connection = psycopg2.connect(superuser_dsn(queue_db.dsn))  # who may load auto_explain
    try:
        with connection.cursor() as cursor:
            for setting, value in settings.items():
                cursor.execute(f"SET {setting} = {value}")
            cursor.execute("SET plan_cache_mode = force_generic_plan")
            for part in statement.parts:
                cursor.execute(part.prepare)
            connection.commit()  # the settings, which shall outlast what is undone
            if fill is not None:
                for part in statement.parts:
                    given = {name: (NO_PROCESS | parameters).get(name, NOTHING) for name in part.parameters}
                    cursor.execute(part.execute, given)
                connection.rollback()
                parameters = parameters | fill()
            cursor.execute(_EXPLAIN)
            connection.notices.clear()
            for part in statement.parts:
                given = {name: (NO_PROCESS | parameters).get(name, NOTHING) for name in part.parameters}
                cursor.execute(part.execute, given)
            found = [notice for notice in connection.notices if "plan:" in notice]
            made = [json.loads(notice[notice.index("{") :])["Plan"] for notice in found]
            return [plan for plan in made if scans(plan)]
    finally:
        connection.close()


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
