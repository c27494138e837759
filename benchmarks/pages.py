"""Measures dashboard pages, API lists and /metrics with a large jobs table.

Takes about 2 minutes; with --full, 10 million rows, about 10 minutes and 8 GB of disk. With DL_BENCH_DSN and
--keep NAME the database of that name is filled once and kept for later runs.

The database has finished jobs of thirty days, some of them failed; ready, scheduled, blocked and running jobs;
statistics of a week; a long job log and a long audit. Each address is requested in turn, round after round, through
the whole app (WSGI, without a network). The time includes template, statements and database. The goal is at most 60 ms
for a page and 50 ms for /metrics. All pages of the dashboard are among the addresses. The list of jobs keeps slow
counts of its tabs for five seconds: rounds that follow sooner measure it without them. `CPU` is the CPU time of this
process and of its database sessions, if the server runs on this machine; unlike the time, it does not grow with other
load.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flask.testing import FlaskClient
from psycopg2.extensions import make_dsn

from app.admin.job_search import Cursor
from app.db.encoding import as_uuid
from app.db.pool import Pool
from app.db.schema import migrate
from app.queue.jobs import JobQueue
from app.web import WebOptions, create_app
from app.web.api.job_list import encode_cursor
from app.web.app import OPERATIONS
from app.web.routing import HTML, Operation
from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_table, make_parser, median, quantile, run_rounds
from pipelines import contract

MAX_PAGE_MS, MAX_METRICS_MS = 60, 50
CHUNK_ROWS = 1_000_000

FINISHED = """
INSERT INTO dl_jobs (queue, task, lock_key, partition_key, status, attempt, run_id, created_at, started_at, finished_at,
                     args, error, worker)
SELECT 'queue ' || n %% 8, 'task ' || n %% 20, 'key ' || n %% 100000, '', s, 1, gen_random_uuid(), moment,
       moment + interval '1 s', moment + interval '5 s', jsonb_build_object('day', n %% 365, 'name', 'file ' || n),
       CASE s WHEN 'failed' THEN 'ValueError: row ' || n || ' cannot be read' END, 'worker ' || n %% 4
  FROM generate_series(%s, %s) n,
       LATERAL (SELECT now() - interval '30 days' + interval '30 days' * (n / %s::float8) AS moment,
                       CASE WHEN n %% 500 = 0 THEN 'failed' WHEN n %% 5000 = 1 THEN 'canceled' ELSE 'succeeded'
                       END::dl_status AS s) it
"""
WAITING = """
INSERT INTO dl_jobs (queue, task, lock_key, wait_state, available_at)
SELECT 'queue ' || n %% 8, 'task ' || n %% 20, 'waits ' || n, p::dl_wait_state,
       CASE p WHEN 'scheduled' THEN now() + interval '1 h' ELSE now() END
  FROM generate_series(1, %s) n, LATERAL (SELECT (ARRAY['ready', 'scheduled', 'blocked'])[1 + n %% 3] AS p) it
"""
RUNNING = """
INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, lease_expires_at, heartbeat_at, started_at, worker,
                     progress)
SELECT 'queue ' || n %% 8, 'task ' || n %% 20, 'runs ' || n, 'running', 1, gen_random_uuid(), now() + interval '1 d',
       now(), now() - interval '1 h', 'worker ' || n %% 4, '{"processed": 400, "total": 1000, "unit": "rows"}'
  FROM generate_series(1, %s) n
"""
EVENTS = """
INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
SELECT j.job_id, j.queue, j.created_at + k.n * interval '1 s', k.kind,
       jsonb_build_object('status', k.status, 'attempt', least(k.n, 1))
  FROM (SELECT * FROM dl_jobs WHERE status = 'failed' ORDER BY created_at DESC LIMIT 1000) j,
       (VALUES (0, 'queued', 'queued'), (1, 'picked', 'running'), (2, 'failed', 'failed')) k (n, kind, status)
"""
STATISTICS = """
INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count, total_sec)
SELECT span, date_bin(make_interval(secs => span), now(), '2001-01-01') - i * make_interval(secs => span),
       'queue ' || (t + q) % 8, 'task ' || t, measure,
       CASE WHEN measure IN ('waited', 'ran') THEN 8 + (t + b) % 12 ELSE 0 END, 100 + t, 300
  FROM (VALUES (60, 60), (900, 96), (3600, 168)) s (span, steps), generate_series(0, steps - 1) i,
       generate_series(0, 19) t, generate_series(0, 1) q,
       unnest(ARRAY['queued', 'started', 'succeeded', 'failed', 'waited', 'ran']) measure,
       generate_series(1, CASE WHEN measure IN ('waited', 'ran') THEN 6 ELSE 1 END) b
"""
TOTALS = """
INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count, total_sec)
SELECT -span_sec, started_at, '', '', measure, bucket, sum(count), sum(total_sec)
  FROM dl_statistics WHERE span_sec > 0 GROUP BY span_sec, started_at, measure, bucket
"""
DEPTHS = """
INSERT INTO dl_queue_depths (at, queue, ready, scheduled, blocked, running, oldest_ready_sec)
SELECT date_trunc('minute', now()) - i * interval '1 min', 'queue ' || q, 10, 20, 30, 4, 1
  FROM generate_series(0, 7 * 1440) i, generate_series(0, 7) q
"""
LOG = """
INSERT INTO dl_job_logs (job_id, attempt, ts, level, stream, line)
SELECT (SELECT job_id FROM dl_jobs WHERE status = 'running' ORDER BY created_at DESC LIMIT 1), 1, now(), 'INFO',
       'stdout', 'page ' || n || ' of the source was read and written'
  FROM generate_series(1, 200000) n
"""
AUDIT = """
INSERT INTO dl_audit (at, action, actor, via, subject, subject_id)
SELECT now() - n * interval '1 s', CASE n %% 3 WHEN 0 THEN 'cancel' ELSE 'trigger' END, 'on-call', 'key', 'job',
       gen_random_uuid()
  FROM generate_series(1, %s) n
"""

SCHEDULES = """
INSERT INTO dl_schedules (name, source, task, overrides, next_at, paused_at, paused_by)
SELECT 'schedule ' || n, 'people', 'task ' || n % 20,
       jsonb_build_object('kind', 'cron', 'expression', n % 60 || ' * * * *', 'queue', 'queue ' || n % 8),
       now() + n * interval '1 min', CASE WHEN n % 50 = 0 THEN now() END, CASE WHEN n % 50 = 0 THEN 'on-call' END
  FROM generate_series(1, 200) n
"""
RECENT_RUNS = """
INSERT INTO dl_recent_runs (task, event_id, job_id, queue, ended_at, outcome, attempt, ran_sec)
SELECT 'task ' || n % 20, n, gen_random_uuid(), 'queue ' || n % 8, now() - n * interval '1 min', 'succeeded', 1, 4
  FROM generate_series(1, 400) n
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=9)
    parser.add_argument(
        "--jobs", "--rows", dest="rows", type=int, default=1_000_000, help="number of finished jobs (default 1,000,000)"
    )
    parser.add_argument("--full", action="store_true", help="insert 10 million finished jobs")
    parser.add_argument("--keep", metavar="NAME", help="keep this database, and fill it if it does not exist")
    parser.add_argument("--only", metavar="TEXT", default="", help="request only addresses with this text")
    options = parser.parse_args(argv)
    rows = 10_000_000 if options.full else options.rows
    with benchmark_server({"max_wal_size": "8GB", "maintenance_work_mem": "512MB"}) as (server_dsn, _):
        print(describe_environment(server_dsn))
        with kept_database(server_dsn, options.keep) if options.keep else fresh_database(server_dsn, "pages") as dsn:
            if not query_value(dsn, "SELECT 1 FROM dl_jobs LIMIT 1"):
                fill(dsn, rows)
            pool = Pool(dsn)
            client = create_app(
                JobQueue(pool), contract.registry, WebOptions(version="0", metrics_max_age_sec=0), pool=pool
            ).test_client()
            cost = CpuClock(dsn)
            sides: dict[str, Callable[[], tuple[float, float | None]]] = {
                address: partial(time_request, client, address, cost)
                for address in dict.fromkeys([*addresses(dsn), *page_addresses(client), *made_addresses(client)])
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


def fill(dsn: str, rows: int) -> None:
    began = time.monotonic()
    query_value(dsn, "ALTER TABLE dl_jobs DISABLE TRIGGER USER")
    for first in range(1, rows + 1, CHUNK_ROWS):
        query_value(dsn, FINISHED, first, min(rows, first + CHUNK_ROWS - 1), rows)
    query_value(dsn, WAITING, 3_000)
    query_value(dsn, RUNNING, 40)
    query_value(dsn, "ALTER TABLE dl_jobs ENABLE TRIGGER USER")
    query_value(dsn, AUDIT, rows // 10)
    for statement in (EVENTS, STATISTICS, TOTALS, DEPTHS, LOG, SCHEDULES, RECENT_RUNS, "VACUUM ANALYZE", "CHECKPOINT"):
        query_value(dsn, statement)
    print(f"{rows:,} finished jobs made in {time.monotonic() - began:.0f} s", flush=True)


def addresses(dsn: str) -> list[str]:
    def job_with_status(status: str) -> Any:
        return query_value(
            dsn, "SELECT job_id FROM dl_jobs WHERE status = %s ORDER BY created_at DESC LIMIT 1", status
        )[0][0]

    job, deep = job_with_status("failed"), quote(deep_cursor(dsn))
    return [
        "/",
        "/jobs",
        "/failures",
        "/jobs?status=failed",
        "/jobs?status=failed&task=task+0",
        "/jobs?status=queued",
        "/jobs?status=queued&sort=priority",
        "/jobs?status=queued,running&queue=queue+3",
        "/jobs?queue=queue+3&task=task+3",
        "/jobs?lock_key=key+77",
        "/jobs?producer=unknown&sort=created_at",
        "/jobs?text=file+77777",
        "/jobs?status=failed&text=row+5000000",
        "/jobs?status=queued&text=nothing",
        f"/jobs?after={deep}",
        f"/jobs/{job}",
        f"/jobs/{job_with_status('queued')}",
        f"/jobs/{job_with_status('running')}",
        f"/jobs/{job_with_status('running')}/log?search=page+100000",
        "/tasks",
        "/tasks/task%203",
        "/tasks/task%203/slices",
        "/queues/queue%203",
        "/schedules/schedule%203",
        "/search?q=task",
        "/search?q=nothing",
        f"/search?q={job}",
        "/palette",
        f"/jobs/{job_with_status('queued')}/edit",
        "/queues",
        "/workers",
        *(f"/charts?period={period}" for period in ("1h", "24h", "7d")),
        "/charts?period=7d&queue=queue+3",
        "/charts?period=7d&task=task+3",
        "/audit",
        "/audit?actor=unknown",
        f"/audit?subject_id={job}",
        "/api/v1/jobs",
        "/api/v1/jobs?status=failed&count=true",
        "/api/v1/queues",
        "/api/v1/tasks",
        f"/api/v1/jobs/{job_with_status('queued')}/why",
        "/api/v1/charts?period=7d",
        "/status",
        "/metrics",
    ]


def page_addresses(client: FlaskClient) -> list[str]:
    """Return every page of the dashboard whose path has no arguments."""
    operations: list[Operation] = client.application.extensions[OPERATIONS]
    return [
        operation.path
        for operation in operations
        if operation.method == "GET"
        and operation.media_type == HTML
        and "<" not in operation.path
        and operation.path not in ("/search", "/zone", "/login", "/settings/doctor")  # the last needs a whole service
    ]


def made_addresses(client: FlaskClient) -> list[str]:
    """Make a backfill and a graph, and return their pages."""
    slices = {"from": "2026-01-01", "to": "2026-12-31", "unit": "day"}
    backfill = client.post("/api/v1/backfills", json={"task": "task 3", "queue": "queue 3", "slices": slices})
    job = {"queue": "queue 3", "task": "task 3"}
    first = [job | {"key": f"part {n}", "lock_key": f"part {n}"} for n in range(30)]
    last = job | {"key": "all", "lock_key": "all", "after": [{"job": part["key"]} for part in first]}
    graph = client.post("/api/v1/graphs", json={"jobs": [*first, last], "name": "parts"})
    for made in (backfill, graph):
        if made.status_code >= 400:
            raise SystemExit(made.get_data(as_text=True)[:500])
    return [f"/backfills/{made_id(backfill.json, 'backfill_id')}", f"/graphs/{made_id(graph.json, 'graph_id')}"]


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


def time_request(client: FlaskClient, address: str, cost: CpuClock) -> tuple[float, float | None]:
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
        limit = MAX_METRICS_MS if address == "/metrics" else MAX_PAGE_MS
        ms = median(times) * 1000
        shown = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "JOB", re.sub("after=.*", "after=…", address))
        spent = median(cpu) * 1000 if cpu else None
        lines.append((shown, ms, quantile(times, 95) * 1000, spent, limit, f"{ms / limit:.2f} ×"))
    print(f"{rows:,} finished jobs, {rounds} rounds in turn, medians in ms")
    print(format_table(["address", "median", "p95", "CPU", "limit", "of it"], lines))


if __name__ == "__main__":
    main()
