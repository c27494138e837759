"""Rows with the odd values of PostgreSQL's types, as other services may write them: every page, route and command that
shows them answers, in zones far east and far west. `pytest -s` shows how many values were tried in how many places.

Each row of a small database has the next value in all columns of its type; what a constraint refuses is not counted.
Lists show all rows of their table at once, and each page and route of one job, delivery, graph … is requested for each.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest
from click.testing import CliRunner
from psycopg2.extensions import AsIs

from benchmarks import pages
from dataloader.app.cli.command import cli
from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import migrate
from dataloader.app.features.where import where
from dataloader.app.http.app import OPERATIONS, create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.http.routing import HTML
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.support import Databases
from tests.support.api_server import serving

pytestmark = pytest.mark.timeout(600)
MB = 1_000_000
VALUES: Mapping[str, Sequence[str]] = {
    "timestamptz": (
        "infinity", "-infinity", "12000-06-01 00:00+00", "9999-12-31 23:59:59.999999+00", "0001-01-01 00:00:00+00",
        "4000-01-02 00:00+00 BC",
    ),
    "jsonb": (
        "[1, 2]", '"text"', "null", "-0", "1e300", "true", "[]", '{"n": 1e400}',
        '{"processed": "x", "total": [], "links": 5}', '{"processed": -1, "total": 0, "unit": {}, "links": {"a": 1}}',
        '{"processed": 1e300, "total": 1e-300, "attempt": "first", "reason": [], "error": {}, "pause_sec": "long"}',
        '{"a": "\\u202e\\u001b[2J\\\\u0000"}', "[" * 300 + "]" * 300,
    ),
    "text": (
        "\u202e\x1b[2J\\x00\\u0000", "<script>alert(1)</script>{{7*7}}%s%(x)s", "\ufeff\u2028 \n\r\t", "",
    ),
    "float8": ("NaN", "Infinity", "-Infinity", "1e308", "-5", "1e-320"),
}  # fmt: skip
LARGE = {"jsonb": json.dumps({"a": "x" * MB}), "text": "x" * MB}  # of one row of each table
WEST, EAST = "Etc/GMT+12", "Etc/GMT-14"
ZONES = {WEST: "UTC+12", EAST: "UTC-14"}  # of pages and of commands: west of Greenwich, and east
ROWS = 30  # of a table, so that all are on the first page of its list
# Without those by which rows are found, and the limits of jobs: of these a trigger refuses what is not valid.
COLUMNS = """SELECT c.relname, a.attname, t.typname
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
   WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname LIKE 'dl\\_%' AND a.attnum > 0
     AND NOT a.attisdropped AND a.attgenerated = '' AND t.typname IN ('timestamptz', 'jsonb', 'text', 'float8')
     AND c.relname NOT IN ('dl_schema', 'dl_api_keys')
     AND a.attname NOT IN ('queue', 'task', 'name', 'dataset', 'kind', 'state')
     AND (c.relname, a.attname) <> ('dl_jobs', 'limits')
   ORDER BY 1, 2"""
# What the placeholders of addresses are.
IDS = {
    "job_id": "SELECT job_id FROM dl_jobs WHERE graph_id IS NULL",
    "graph_id": "SELECT graph_id FROM dl_graphs",
    "bulk_id": "SELECT bulk_id FROM dl_bulk",
    "backfill_id": "SELECT backfill_id FROM dl_backfills",
    "webhook_id": "SELECT webhook_id FROM dl_webhooks",
    "delivery_id": "SELECT delivery_id FROM dl_deliveries",
    "rule_id": "SELECT rule_id FROM dl_alert_rules",
    "/schedules": "SELECT name FROM dl_schedules",
    "/datasets": "SELECT DISTINCT dataset FROM dl_dataset_events",
    "/limits": "SELECT name FROM dl_limits",
    "/queues": "SELECT DISTINCT queue FROM dl_jobs",
    "/tasks": "SELECT DISTINCT task FROM dl_jobs LIMIT 5",
    "/slices": "SELECT DISTINCT task FROM dl_slices",
}
NEED_VALUES = ("/api/v1/jobs/find", "/zone")  # the first is among the lists
LISTS = ("/jobs?status=failed,lost", "/jobs?status=queued", "/jobs?status=running", "/charts?period=7d",
         "/calendar?every=yes", "/audit?triggers=all", "/settings?preview=retention", "/search?q=task",
         "/api/v1/jobs?limit=500", "/api/v1/alerts?state=all", "/api/v1/jobs/find?id=00000000-0000",
         "/api/v1/charts?period=7d", "/api/v1/calendar?from=2026-01-01T00:00:00Z&to=2026-01-31T00:00:00Z")  # fmt: skip
COMMANDS = (
    "jobs --limit 200", "failures", "queues", "limits list", "breakers list", "graphs list", "workers", "scaling",
    "task-numbers", "schedules list", "backfills list", "datasets", "audit --limit 200", "webhooks list",
    "webhooks deliveries", "top", "alerts list --all", "alerts rules", "bulk list", "schedules export",
)  # fmt: skip
COMMANDS_OF_ONE = {
    "job_id": ("show", "status", "why", "where", "events", "logs"), "graph_id": ("graphs show",),
    "delivery_id": ("webhooks delivery",), "backfill_id": ("backfills show",),
    "/schedules": ("schedules show", "schedules firings", "schedules preview"), "/limits": ("limits show",),
    "/queues": ("why",), "/tasks": ("why", "slices", "checks"), "/datasets": ("datasets",),
}  # fmt: skip


@dataclass
class HostileDatabase:
    dsn: str
    ids: dict[str, list[str]]
    stored_values: int  # values times columns


def fill(dsn: str) -> None:
    """The rows of the benchmark of pages, few in each table."""
    migrate(dsn)
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE dl_jobs DISABLE TRIGGER USER")
        for name in ("finished", "waiting", "ready", "running", *pages.FACTS, "audit", *pages.CURRENT):
            cursor.execute(small(pages.SQL[name].text), {"first": 1, "last": ROWS, "rows": ROWS})
        cursor.execute("ALTER TABLE dl_jobs ENABLE TRIGGER USER")


def small(statement: str) -> str:
    """The statement with few rows, among which are all final statuses."""
    for of_many, of_few in (("n %% 500 = 0", "n %% 3 = 0"), ("n %% 5000 = 1", "n %% 3 = 1"), ("10000 = 7", "6 = 5")):
        statement = statement.replace(of_many, of_few)

    def shorten(series: re.Match[str]) -> str:
        first, last = int(series[1]), int(series[2])
        return f"generate_series({first}, {min(last, first + ROWS - 1)})"

    return re.sub(r"generate_series\((\d+), (\d+)\)", shorten, statement)


def store_values(dsn: str) -> int:
    """Return how many were stored."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(COLUMNS)
        columns = cursor.fetchall()
        return sum(
            store_values_in(cursor, table, [column[1:] for column in columns if column[0] == table])
            for table in sorted({table for table, _, _ in columns})
        )


def store_values_in(cursor: Any, table: str, columns: Sequence[tuple[str, str]]) -> int:
    """Write a row's values at once, or where a constraint refuses one of them, each by itself."""
    stored = 0
    cursor.execute("ALTER TABLE %s DISABLE TRIGGER USER", (AsIs(table),))
    cursor.execute(
        "SELECT tableoid, ctid::text FROM %s LIMIT %s", (AsIs(table), 3 * ROWS if table == "dl_jobs" else ROWS)
    )
    for number, (part, first_place) in enumerate(cursor.fetchall()):
        values = {column: VALUES[kind][number % len(VALUES[kind])] for column, kind in columns}
        if number == ROWS // 2:
            values |= {column: LARGE[kind] for column, kind in columns if kind in LARGE}
        place, pending = first_place, [values]
        while pending:
            several = pending.pop()
            settings = ", ".join(f'"{column}" = %({column})s' for column in several)
            update = (
                f"UPDATE {table} SET {settings} WHERE tableoid = %(part)s AND ctid = %(place)s RETURNING ctid::text"
            )
            try:
                cursor.execute(update, several | {"part": part, "place": place})
            except psycopg2.Error:
                pending += [{column: value} for column, value in several.items()] if len(several) > 1 else []
                continue
            ((place,),) = cursor.fetchall()
            stored += len(several)
    cursor.execute("ALTER TABLE %s ENABLE TRIGGER USER", (AsIs(table),))
    return stored


def read_ids(dsn: str) -> dict[str, list[str]]:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        found = {}
        for name, query in IDS.items():
            cursor.execute(query)
            found[name] = [str(value) for (value,) in cursor.fetchall()][:ROWS]
    assert all(found.values()), found
    return found


@pytest.fixture(autouse=True)
def no_wait_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process runs these jobs: those who ask where they are wait in vain."""
    monkeypatch.setattr(where, "WAIT_SEC", 0.05)
    monkeypatch.setattr(where, "LIST_WAIT_SEC", 0.05)


@pytest.fixture(scope="module")
def hostile(databases: Databases) -> Iterator[HostileDatabase]:
    with databases.fresh() as dsn:
        fill(dsn)
        stored = store_values(dsn)
        yield HostileDatabase(dsn, read_ids(dsn), stored)


def places(operations: Any, ids: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Every page and route that reads, for each thing that its address may name."""
    for operation in operations:
        if operation.method != "GET" or "stream" in operation.path or operation.path in NEED_VALUES:
            continue
        placeholder = re.search(r"(/\w+)/<(?:\w+:)?(\w+)>", operation.path)
        if placeholder is None:
            yield operation.path
            continue
        names = ids.get(placeholder[2]) or ids[placeholder[1]]
        yield from (re.sub(r"<[^>]+>", quote(name, safe=""), operation.path) for name in names)
    yield from LISTS


def problem_of(response: Any, body: bytes) -> str | None:
    """What is wrong with the answer: an error, or JSON that other programs cannot read. A schedule without a time has
    no preview, and nothing is ready without workers."""
    expected = {503: b"ready", 400: b"cron"}.get(response.status_code, b"")
    if response.status_code not in (200, 302, 303, 404) and not (expected and expected in body):
        text = body[max(0, body.find(b"<main")) :]
        return f"{response.status_code}: {text[:600]!r}"
    if response.mimetype == "application/json":
        json.loads(body, parse_constant=lambda constant: pytest.fail(f"{constant} in JSON"))
    return None


@pytest.mark.parametrize("zone", [WEST, pytest.param(EAST, marks=pytest.mark.full)])
def test_every_page_and_route_answers(hostile: HostileDatabase, zone: str):
    pool = Pool(hostile.dsn)
    app = create_app(
        JobQueue(pool), Pipelines(), replace(WebOptions(version="0", metrics_max_age_sec=0), timezone=zone), pool=pool
    )
    client = app.test_client()
    problems: dict[str, str] = {}
    kinds = Counter[tuple[int, str]]()
    for place in dict.fromkeys(places(app.extensions[OPERATIONS], hostile.ids)):
        answer = client.get(place)
        body = answer.get_data()
        answer.close()
        kinds[answer.status_code, answer.mimetype or ""] += 1
        if problem := problem_of(answer, body):
            problems[place] = problem
    pool.close()

    report(hostile, f"{zone}, pages and routes", kinds.total())
    assert problems == {}, "\n".join(f"{p} {t}" for p, t in problems.items())
    assert kinds[200, HTML] > 100
    assert sum(count for (status, _), count in kinds.items() if status == 200) > 0.95 * kinds.total(), kinds


@pytest.mark.full
@pytest.mark.parametrize("zone", ZONES.values())
def test_every_command_answers(hostile: HostileDatabase, zone: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    commands = [command.split() for command in COMMANDS]
    for kind, words in COMMANDS_OF_ONE.items():
        commands += [[*word.split(), name] for word in words for name in hostile.ids[kind]]
    with serving(hostile.dsn) as url:
        done = {
            " ".join([*command, *more]): CliRunner().invoke(cli, [*command, *more, "--url", url])
            for command in commands
            for more in ([], ["--json"])
        }
    monkeypatch.undo()
    time.tzset()

    report(hostile, f"{zone}, commands", len(done))
    # 4: what a person must correct first, such as the times of a schedule that has none.
    failed = {
        command: (result.exit_code, result.output[-300:], result.exception)
        for command, result in done.items()
        if result.exit_code not in (0, 3, 4)
    }
    assert failed == {}
    assert sum(result.exit_code == 0 for result in done.values()) > 0.8 * len(done)


def report(hostile: HostileDatabase, what: str, count: int) -> None:
    pairs = hostile.stored_values * count
    sys.stdout.write(f"{what}: {hostile.stored_values} values in {count} places: {pairs:,} pairs\n")
