"""Measures dashboard pages, API lists and /metrics with a large jobs table.

Takes about 4 minutes; with --full, 10 million rows, about 12 minutes and 8 GB of disk. With DL_BENCH_DSN and
--keep NAME the database of that name is filled once and kept for later runs.

The database has finished jobs of thirty days, some of them failed; ready, scheduled, blocked, limited, waiting and
running jobs; with --ready N so many more ready ones; a hundred thousand slices, firings, checks, dataset events and
deliveries; a long job log and a long audit; and statistics of a week, which are written again before each run. Each
address is requested in turn, round after round, through the whole app (WSGI, without a network). The time includes
template, statements and database. The goal is a median of at most 60 ms for a page with a million jobs and 150 ms with
more, and 50 ms for /metrics. All pages of the dashboard are among the addresses. An address is
requested again only when what the process keeps of it (counts, for ten seconds at most) has become too old, so that
every request is a first one. `CPU` is the CPU time of this process and of its database sessions, if the server runs on
this machine; unlike the time, it does not grow with other load.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
from flask.testing import FlaskClient
from psycopg2.extensions import make_dsn

from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_table, make_parser, median, quantile, run_rounds
from dataloader.app.config import Settings
from dataloader.app.db.encoding import as_uuid
from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import migrate
from dataloader.app.db.statements import parse_statements
from dataloader.app.features.doctor.examine import Connections, run_checks
from dataloader.app.features.doctor.facts import DatabaseFacts
from dataloader.app.features.jobs.job_search import Cursor
from dataloader.app.features.jobs.list_routes import encode_cursor
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.retention_periods import RetentionPeriods
from dataloader.pipelines import contract

MAX_PAGE_MS, MAX_LARGE_PAGE_MS, MAX_METRICS_MS = 60, 150, 50
CHUNK_ROWS = 1_000_000
KEPT_SEC = 10.5  # longer than any page keeps a value


SQL = parse_statements(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"), "public")
FACTS = (
    "log", "schedules", "firings", "limits", "breakers", "backfills", "slices", "graphs", "edges", "queues", "checks",
    "datasets", "offloads", "bulk", "webhooks", "deliveries", "delivery_attempts", "alert_rules", "alerts", "keys",
    "events",
)  # fmt: skip
# What pages show of the last hours ages in a kept database: these are written again before each run.
CURRENT = (
    "clear_current", "statistics", "totals", "depths", "recent_runs", "accounts", "workers", "renew_running"
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=9)
    parser.add_argument(
        "--jobs", "--rows", dest="rows", type=int, default=1_000_000, help="number of finished jobs (default 1,000,000)"
    )
    parser.add_argument("--full", action="store_true", help="insert 10 million finished jobs")
    parser.add_argument("--ready", type=int, default=0, help="number of further ready jobs (default 0)")
    parser.add_argument("--keep", metavar="NAME", help="keep this database, and fill it if it does not exist")
    parser.add_argument("--only", metavar="TEXT", default="", help="request only addresses with this text")
    options = parser.parse_args(argv)
    rows = 10_000_000 if options.full else options.rows
    with benchmark_server({"max_wal_size": "8GB", "maintenance_work_mem": "512MB"}) as (server_dsn, _):
        print(describe_environment(server_dsn))
        with kept_database(server_dsn, options.keep) if options.keep else fresh_database(server_dsn, "pages") as dsn:
            if not query_value(dsn, "SELECT 1 FROM dl_jobs LIMIT 1"):
                fill(dsn, rows, options.ready)
            write_current_facts(dsn)
            pool = Pool(dsn)
            client = make_client(pool, dsn)
            cost, pace = CpuClock(dsn), Pace()
            sides: dict[str, Callable[[], tuple[float, float | None]]] = {
                address: partial(time_request, client, address, cost, pace)
                for address in addresses(dsn, make_backfill_and_graph(client))
                if options.only in address
            }
            taken = run_rounds(sides, options.rounds, warm_up=2)
            pool.close()
    print_results(taken, rows, options.rounds)


@contextmanager
def kept_database(server_dsn: str, name: str) -> Iterator[str]:
    if not query_value(server_dsn, "SELECT 1 FROM pg_database WHERE datname = %s", name):
        query_value(server_dsn, f'CREATE DATABASE "{name}" TEMPLATE template0')
    dsn = make_dsn(server_dsn, dbname=name)
    migrate(dsn)
    yield dsn


def fill(dsn: str, rows: int, ready: int) -> None:
    began = time.monotonic()
    query_value(dsn, "ALTER TABLE dl_jobs DISABLE TRIGGER USER")
    for first in range(1, rows + 1, CHUNK_ROWS):
        execute(dsn, "finished", first=first, last=min(rows, first + CHUNK_ROWS - 1), rows=rows)
    execute(dsn, "waiting", rows=3_000)
    execute(dsn, "ready", rows=ready)
    execute(dsn, "running", rows=40)
    query_value(dsn, "ANALYZE dl_jobs")
    for name in FACTS:
        execute(dsn, name)
    query_value(dsn, "ALTER TABLE dl_jobs ENABLE TRIGGER USER")
    execute(dsn, "audit", rows=rows // 10)
    query_value(dsn, "VACUUM ANALYZE")
    query_value(dsn, "CHECKPOINT")
    print(f"{rows:,} finished jobs made in {time.monotonic() - began:.0f} s", flush=True)


def write_current_facts(dsn: str) -> None:
    for name in CURRENT:
        execute(dsn, name)
    query_value(dsn, "VACUUM ANALYZE dl_statistics, dl_queue_depths, dl_recent_runs, dl_workers")


def execute(dsn: str, name: str, **parameters: int) -> None:
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(SQL[name].text, parameters)


def make_client(pool: Pool, dsn: str) -> FlaskClient:
    connections = Connections(api_dsn=dsn, worker_dsn=None, timeout_sec=5, api_connections=8)
    options = WebOptions(
        version="0",
        metrics_max_age_sec=0,
        settings=Settings().describe(),
        retention=RetentionPeriods(),
        examine=lambda: run_checks(DatabaseFacts(pool), connections),
    )
    return create_app(JobQueue(pool), contract.registry, options, pool=pool).test_client()


# The addresses, with names of what `read_names` finds and `make_backfill_and_graph` makes.
ADDRESSES = (
    "/",
    "/jobs",
    "/jobs?status=succeeded",
    "/jobs?status=failed",
    "/jobs?status=failed,lost",
    "/jobs?status=failed&task=task+0",
    "/jobs?status=failed&task=task+0&fingerprint=KeyError+rows.py:read",
    "/jobs?status=queued",
    "/jobs?status=queued&wait_state=limited",
    "/jobs?status=running",
    "/jobs?status=queued&sort=priority",
    "/jobs?status=queued,running&queue=queue+3",
    "/jobs?queue=queue+3",
    "/jobs?task=task+3",
    "/jobs?queue=queue+3&task=task+3",
    "/jobs?queue=nothing",
    "/jobs?lock_key=key+77",
    "/jobs?producer=unknown&sort=created_at",
    "/jobs?warnings=true",
    "/jobs?created_from={first_day}&created_to={second_day}",
    "/jobs?finished_from={first_day}&finished_to={second_day}",
    "/jobs?text=file+77777",
    "/jobs?status=failed&text=row+5000000",
    "/jobs?status=queued&text=nothing",
    "/jobs?after={middle}",
    "/jobs?status=failed&after={middle}",
    "/jobs?queue=queue+3&after={middle}",
    "/jobs/{failed}",
    "/jobs/{queued}",
    "/jobs/{running}",
    "/jobs/{succeeded}",
    "/jobs/{queued}/edit",
    "/jobs/{failed}/clone",
    "/jobs/{running}/log",
    "/jobs/{queued}/where",
    "/jobs/{succeeded}/account",
    "/jobs/{running}/log?search=page+100000",
    "/bulk/{bulk}",
    "/tasks",
    "/tasks?q=task+1",
    "/tasks/task%200",
    "/tasks/task%203",
    "/slices/task%203",
    "/slices/task%205",
    "/runs",
    "/logs",
    "/logs?text=no+such+line",
    "/compare",
    "/compare?task=task+0",
    "/jobs?args=customer%3A4711",
    "/runs?days=31&until={first_day}",
    "/failures",
    "/failures?task=task+0",
    "/queues",
    "/queues/queue%203",
    "/workers",
    "/limits",
    "/datasets",
    "/datasets/dataset%203",
    "/backfills",
    "/backfills/{backfill}",
    "/backfills/{large_backfill}",
    "/graphs",
    "/graphs/{graph}",
    "/schedules",
    "/schedules/schedule%203",
    "/calendar",
    "/calendar?every=yes",
    "/calendar?day={today}",
    "/calendar?schedule=schedule+3",
    "/charts",
    "/charts?period=1h",
    "/charts?period=24h",
    "/charts?period=7d",
    "/charts?period=7d&queue=queue+3",
    "/charts?period=7d&task=task+3",
    "/alerts",
    "/webhooks",
    "/webhooks/{webhook}",
    "/deliveries/{delivery}",
    "/keys",
    "/settings",
    "/settings?preview=retention",
    "/settings/doctor",
    "/audit",
    "/audit?actor=unknown",
    "/audit?subject_id={failed}",
    "/search?q=task",
    "/search?q=nothing",
    "/search?q=dataset+3",
    "/search?q={failed}",
    "/palette",
    "/zone?zone=service",
    "/login",
    "/docs",
    "/api/v1/jobs",
    "/api/v1/jobs?status=failed&count=true",
    "/api/v1/queues",
    "/api/v1/tasks",
    "/api/v1/jobs/{queued}/why",
    "/api/v1/charts?period=7d",
    "/api/v1/compare",
    "/status",
    "/metrics",
)


def addresses(dsn: str, made: Mapping[str, str]) -> list[str]:
    names = {**read_names(dsn), **made}
    return [address.format(**names) for address in ADDRESSES]


def read_names(dsn: str) -> dict[str, str]:
    """Return the ids and times that addresses have."""

    def read(statement: str) -> str:
        return str(query_value(dsn, statement)[0][0])

    def read_job(status: str) -> str:
        jobs = f"FROM dl_jobs WHERE status = '{status}' AND graph_id IS NULL"
        return read(f"SELECT job_id {jobs} ORDER BY created_at DESC LIMIT 1")

    return {
        **{status: read_job(status) for status in ("failed", "queued", "running", "succeeded")},
        "bulk": read("SELECT bulk_id FROM dl_bulk LIMIT 1"),
        "large_backfill": read("SELECT backfill_id FROM dl_slices WHERE backfill_id IS NOT NULL LIMIT 1"),
        "webhook": read("SELECT webhook_id FROM dl_webhooks LIMIT 1"),
        "delivery": read("SELECT delivery_id FROM dl_deliveries LIMIT 1"),
        "first_day": read("SELECT (now() - interval '20 d')::date"),
        "second_day": read("SELECT (now() - interval '19 d')::date"),
        "today": read("SELECT now()::date"),
        "middle": quote(deep_cursor(dsn)),
    }


def make_backfill_and_graph(client: FlaskClient) -> dict[str, str]:
    """Make a backfill and a graph, and return their ids."""
    slices = {"from": "2026-01-01", "to": "2026-12-31", "unit": "day"}
    backfill = client.post("/api/v1/backfills", json={"task": "task 3", "queue": "queue 3", "slices": slices})
    job = {"queue": "queue 3", "task": "task 3"}
    first = [job | {"key": f"part {n}", "lock_key": f"part {n}"} for n in range(30)]
    last = job | {"key": "all", "lock_key": "all", "after": [{"job": part["key"]} for part in first]}
    graph = client.post("/api/v1/graphs", json={"jobs": [*first, last], "name": "parts"})
    for made in (backfill, graph):
        if made.status_code >= 400:
            raise SystemExit(made.get_data(as_text=True)[:500])
    return {"backfill": made_id(backfill.json, "backfill_id"), "graph": made_id(graph.json, "graph_id")}


def made_id(answer: Any, name: str) -> str:
    return str(answer[name] if name in answer else answer["backfill"][name])


def deep_cursor(dsn: str) -> str:
    """Return the cursor of a list page in the middle of the table."""
    half = "SELECT min(created_at) + (max(created_at) - min(created_at)) / 2 FROM dl_jobs"
    ((at, job),) = query_value(
        dsn, f"SELECT created_at, job_id FROM dl_jobs WHERE created_at >= ({half}) ORDER BY 1, 2 LIMIT 1"
    )
    return encode_cursor(Cursor(at, as_uuid(job), is_active=False), "-created_at")


class CpuClock:
    """Reads the CPU time of this process and of its database sessions."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def read(self) -> dict[int, float] | None:
        """Return the CPU seconds by pid, or None when the server runs on another machine."""
        rows = query_value(self._dsn, "SELECT pid FROM pg_stat_activity WHERE application_name = 'dataloader-api'")
        try:
            cpu_sec = {pid: int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9 for (pid,) in rows}
        except OSError:
            return None
        return cpu_sec | {0: time.process_time()}


class Pace:
    """Delays a request of an address until the process keeps nothing of the last one."""

    def __init__(self) -> None:
        self._requested_at: dict[str, float] = {}

    def wait(self, address: str) -> None:
        last = self._requested_at.get(address, -KEPT_SEC)
        time.sleep(max(0.0, last + KEPT_SEC - time.monotonic()))
        self._requested_at[address] = time.monotonic()


def time_request(client: FlaskClient, address: str, cost: CpuClock, pace: Pace) -> tuple[float, float | None]:
    pace.wait(address)
    before = cost.read()
    began = time.perf_counter()
    response = client.get(address)
    took = time.perf_counter() - began
    after = cost.read()
    used = None if before is None or after is None else sum(after.values()) - sum(before.get(pid, 0.0) for pid in after)
    if response.status_code not in (200, 303, 503):  # a search redirects; /status is not ready without a worker
        raise SystemExit(f"{address} returned {response.status_code}: {response.get_data(as_text=True)[:300]}")
    if address.startswith("/jobs?after=") and 'id="job-' not in response.text:
        raise SystemExit(f"{address} has no rows")
    return took, used


def print_results(costs: dict[str, list[tuple[float, float | None]]], rows: int, rounds: int) -> None:
    lines: list[Sequence[Cell]] = []
    for address, measured in costs.items():
        times = [took for took, _ in measured]
        cpu = [used for _, used in measured if used is not None]
        page_limit = MAX_PAGE_MS if rows <= CHUNK_ROWS else MAX_LARGE_PAGE_MS
        limit = MAX_METRICS_MS if address == "/metrics" else page_limit
        ms = median(times) * 1000
        shown = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "JOB", re.sub("after=.*", "after=…", address))
        spent = median(cpu) * 1000 if cpu else None
        lines.append((shown, ms, quantile(times, 95) * 1000, spent, limit, f"{ms / limit:.2f} ×"))
    print(f"{rows:,} finished jobs, {rounds} rounds in turn, medians in ms")
    print(format_table(["address", "median", "p95", "CPU", "limit", "of it"], lines))


if __name__ == "__main__":
    main()
