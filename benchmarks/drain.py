"""Measures how fast processes drain a queue of empty jobs, compared with a simple loop and with pgbench.

Takes about 2 minutes.

The variants take turns, round after round, so that a busy machine slows all of them; compare the ratios of the medians.
Plain INSERTs add the jobs while the workers are idle. The database's clock measures the time from the commit of the
jobs to the end of the last one.

The simple loop is the obvious implementation: each thread has its own connection, claims one job with FOR UPDATE SKIP
LOCKED, takes the advisory lock of its key, writes an event, runs the job, writes the end and an event, and unlocks:
six round trips a job. Its tables have only the columns, indexes and triggers that it needs.

The limit is pgbench on the same tables: one prepared statement claims a hundred jobs and another one ends them; both
write the events, and nothing runs in between. It uses one connection per CPU.

CPU is the cost of a job on each side, counted from the commit of the jobs. Trips are round trips to the server; a trip
that writes is a commit.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2
from psycopg2.extensions import parse_dsn

from benchmarks.place import benchmark_server, cpu_sec_of, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, run_rounds
from dataloader.app.db import connection
from dataloader.pipelines.contract import Pipelines
from dataloader.workers.pool import WorkerPool
from dataloader.workers.pool_options import PoolOptions

SIMPLE_TABLES = """
CREATE TABLE simple_jobs (
    job_id uuid PRIMARY KEY DEFAULT gen_random_uuid(), queue text NOT NULL, task text NOT NULL,
    args jsonb NOT NULL DEFAULT '{}', lock_key text NOT NULL, priority int NOT NULL DEFAULT 100,
    available_at timestamptz NOT NULL DEFAULT now(), status dl_status NOT NULL DEFAULT 'queued',
    attempt int NOT NULL DEFAULT 0, lease_expires_at timestamptz, created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz, finished_at timestamptz
);
CREATE INDEX ON simple_jobs (queue, priority, created_at) WHERE status = 'queued';
CREATE TABLE simple_events (
    event_id bigserial PRIMARY KEY, job_id uuid NOT NULL REFERENCES simple_jobs ON DELETE CASCADE, queue text NOT NULL,
    ts timestamptz NOT NULL DEFAULT now(), kind text NOT NULL, payload jsonb DEFAULT '{}'
);
CREATE INDEX ON simple_events (job_id);
"""
SIMPLE_CLAIM = """
UPDATE simple_jobs SET status = 'running', attempt = attempt + 1, started_at = coalesce(started_at, clock_timestamp()),
       lease_expires_at = clock_timestamp() + interval '60 s'
 WHERE job_id = (
     SELECT job_id FROM simple_jobs
      WHERE queue = 'bench' AND status = 'queued' AND available_at <= now()
      ORDER BY priority, created_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING job_id, lock_key
"""
SIMPLE_EVENT = "INSERT INTO simple_events (job_id, queue, kind) VALUES (%s, 'bench', %s)"
SIMPLE_END = """
UPDATE simple_jobs SET status = 'succeeded', finished_at = clock_timestamp(), lease_expires_at = NULL WHERE job_id = %s
"""
IN_BATCHES = """
WITH first AS (
    SELECT job_id FROM simple_jobs WHERE queue = 'bench' AND status = 'queued'
     ORDER BY priority, created_at LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
    UPDATE simple_jobs j
       SET status = 'running', attempt = attempt + 1, started_at = coalesce(started_at, clock_timestamp()),
           lease_expires_at = clock_timestamp() + interval '60 s'
      FROM first WHERE j.job_id = first.job_id
    RETURNING j.job_id, j.queue
), journal AS (
    INSERT INTO simple_events (job_id, queue, kind) SELECT job_id, queue, 'picked' FROM claimed
)
SELECT coalesce(array_agg(job_id), '{}')::text AS ids FROM claimed \\gset
WITH ended AS (
    UPDATE simple_jobs SET status = 'succeeded', finished_at = clock_timestamp(), lease_expires_at = NULL
     WHERE job_id = ANY (:ids::uuid[])
    RETURNING job_id, queue
)
INSERT INTO simple_events (job_id, queue, kind) SELECT job_id, queue, 'done' FROM ended;
"""
FILL = "INSERT INTO {table} (queue, task, lock_key) SELECT 'bench', 'noop', 'key ' || n FROM generate_series(1, %s) n"
CLOCK = "SELECT clock_timestamp()"  # in the transaction of FILL: a job can end before a later statement reads the clock
DRAIN_TIMEOUT_SEC = 600.0


@dataclass(frozen=True)
class Competitor:
    name: str
    table: str
    processes: int = 1


@dataclass(frozen=True)
class DrainCosts:
    jobs_per_sec: float
    python_cpu_us: float | None  # per job
    server_cpu_us: float | None  # per job; None: the server runs elsewhere
    round_trips: float | None  # per job
    commits: float


SIMPLE, LIMIT = Competitor("simple loop", "simple_jobs"), Competitor("pgbench, 100 at once", "simple_jobs", 0)
DATALOADER = (Competitor("dataloader, 1 process", "dl_jobs", 1), Competitor("dataloader, 2 processes", "dl_jobs", 2))


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=3)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=10, help="threads per process")
    parser.add_argument(
        "--work", choices=[DATALOADER[0].table, SIMPLE.table], help="internal: run as a worker process of this kind"
    )
    parser.add_argument("--dsn", help="internal: the database of that worker process")
    options = parser.parse_args(argv)
    if options.work:
        run_worker(options.work, options.dsn, options.threads)
        return
    with benchmark_server() as (server_dsn, server):
        print(describe_environment(server_dsn))
        sides = {
            side.name: partial(run_round, side, server_dsn, server, options.jobs, options.threads)
            for side in (SIMPLE, *DATALOADER, LIMIT)
        }
        taken = run_rounds(sides, options.rounds, log=lambda _, one: f"{one.jobs_per_sec:,.0f} jobs/s")
    print_results(taken, options)


# ── a round ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_round(
    side: Competitor,
    server_dsn: str,
    server: psutil.Process | None,
    jobs: int,
    threads: int,
    prepare: str = "",
) -> DrainCosts:
    """Start idle workers, add all jobs at once, and measure until the last one ends. `prepare` is run before."""
    trips: list[int] = []
    with fresh_database(server_dsn) as dsn:
        if side.table == SIMPLE.table:
            query_value(dsn, SIMPLE_TABLES)
        if prepare:
            query_value(dsn, prepare)
        with running_workers(side, dsn, threads, trips.append) as workers:
            ((began,),) = query_value(dsn, f"{FILL.format(table=side.table)}; {CLOCK}", jobs)
            before = (sum(map(cpu_sec_of, workers)), cpu_sec_of(server) if server else 0.0, commit_count(dsn))
            if side is LIMIT:
                run_pgbench(dsn, jobs)
            wait_until_drained(side, dsn)
            after = (sum(map(cpu_sec_of, workers)), cpu_sec_of(server) if server else 0.0)
        ((done, seconds),) = query_value(
            dsn,
            f"SELECT count(*), extract(epoch FROM max(finished_at) - %s)::float8 FROM {side.table}"
            " WHERE status = 'succeeded' AND attempt = 1",
            began,
        )
        assert done == jobs, f"{side.name}: {done} of {jobs} succeeded at the first attempt"
        python, of_server = ((b - a) / jobs * 1e6 for a, b in zip(before[:2], after, strict=True))
        return DrainCosts(
            jobs / seconds,
            None if side is LIMIT else python,
            of_server if server else None,
            sum(trips) / jobs if trips else None,
            (commit_count(dsn) - before[2]) / jobs,
        )


def commit_count(dsn: str) -> int:
    """Return the commits reported so far; a server process reports when it becomes idle or ends."""
    ((commits,),) = query_value(dsn, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
    return int(commits)


@contextmanager
def running_workers(
    side: Competitor, dsn: str, threads: int, trips: Callable[[int], None]
) -> Iterator[list[psutil.Process]]:
    """Start worker processes that end when their standard input is closed."""
    command = [sys.executable, "-m", "benchmarks.drain", "--work", side.table, "--dsn", dsn, "--threads", str(threads)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(side.processes)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
        yield [psutil.Process(process.pid) for process in started]
    finally:
        for process in started:
            output, _ = process.communicate(timeout=60)
            if process.returncode == 0:
                trips(json.loads(output)["trips"])


def wait_until_drained(side: Competitor, dsn: str) -> None:
    """Poll with statements that use an index: the server's CPU time is measured, and a scan would add to it."""
    until = time.monotonic() + DRAIN_TIMEOUT_SEC
    waiting = f"SELECT 1 FROM {side.table} WHERE queue = 'bench' AND status = 'queued'"
    unfinished = f"SELECT 1 FROM {side.table} WHERE status IN ('queued', 'running')"
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    cursor = connection.cursor()
    for probe in (waiting + (" AND wait_state = 'ready'" if side in DATALOADER else ""), unfinished):
        cursor.execute(f"{probe} LIMIT 1")
        while cursor.fetchone():
            assert time.monotonic() < until, f"{side.name} is not done after {DRAIN_TIMEOUT_SEC:.0f} s"
            time.sleep(0.1)
            cursor.execute(f"{probe} LIMIT 1")
    connection.close()


def run_pgbench(dsn: str, jobs: int) -> None:
    clients = min(os.cpu_count() or 1, 4)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "batches.sql"
        script.write_text(IN_BATCHES)
        target = parse_dsn(dsn)
        where = [word for option, name in (("-h", "host"), ("-p", "port"), ("-U", "user")) if name in target
                 for word in (option, target[name])]  # fmt: skip
        subprocess.run(
            [find_pgbench(), "-n", "-M", "prepared", "-c", str(clients), "-j", str(clients), "-t",
             str(-(-jobs // (100 * clients)) + 1), "-f", str(script), *where, target["dbname"]],
            check=True, capture_output=True, env={**os.environ, "PGPASSWORD": target.get("password", "")},
        )  # fmt: skip


def find_pgbench() -> str:
    """Return the path of a local server's pgbench; the wheel of the embedded server has none."""
    folders = sorted(Path("/").glob("usr/lib/postgresql/*/bin"), reverse=True)
    path = shutil.which("pgbench", path=os.pathsep.join([os.environ["PATH"], *map(str, folders)]))
    assert path is not None, "pgbench is not installed"
    return path


def print_results(costs: dict[str, list[DrainCosts]], options: Any) -> None:
    print(f"{options.jobs:,} jobs, {options.threads} threads per process, {options.rounds} rounds in turn, medians\n")
    rows: list[list[Cell]] = []
    simple, limit = (median_of(costs[side.name], "jobs_per_sec") or 1.0 for side in (SIMPLE, LIMIT))
    for name, rounds in costs.items():
        speed = median_of(rounds, "jobs_per_sec") or 0.0
        rest = [median_of(rounds, field) for field in ("python_cpu_us", "server_cpu_us", "round_trips", "commits")]
        rows.append([name, speed, format_ratio(speed / simple), format_ratio(speed / limit), *rest])
    headings = [
        "",
        "jobs/s",
        "of the simple loop",
        "of the limit",
        "CPU µs per job: Python",
        "server",
        "trips",
        "commits",
    ]
    print(format_table(headings, rows))


def median_of(rounds: Sequence[DrainCosts], field: str) -> float | None:
    values = [getattr(costs, field) for costs in rounds if getattr(costs, field) is not None]
    return statistics.median(values) if values else None


# ── the worker processes of each variant ─────────────────────────────────────────────────────────────────────────


def run_worker(competitor: str, dsn: str, threads: int) -> None:
    trips = (
        run_dataloader_worker(dsn, threads) if competitor == DATALOADER[0].table else run_simple_workers(dsn, threads)
    )
    print(json.dumps({"trips": trips}))


def run_dataloader_worker(dsn: str, threads: int) -> int:
    pipelines = Pipelines()
    pipelines.register("noop")(lambda: None)
    trips = count_round_trips()
    gc.freeze()  # as the service does
    pool = WorkerPool(pipelines, PoolOptions(dsn=dsn, queues={"bench": threads}))
    pool.start()
    while pool.state().listener != "listening":
        time.sleep(0.02)
    print("ready", flush=True)
    before = sum(trips)
    sys.stdin.read()
    after = sum(trips)
    pool.stop(5.0)
    return after - before


def count_round_trips() -> list[int]:
    """Count the messages that any thread sends from now on; return the list that grows by one for each."""
    trips: list[int] = []
    execute = connection.AsyncConnection.execute

    def counting(wire: connection.AsyncConnection, sql: str, parameters: Any, timeout: float) -> Any:
        trips.append(1)
        return execute(wire, sql, parameters, timeout)

    connection.AsyncConnection.execute = counting  # type: ignore[method-assign, assignment]
    return trips


def run_simple_workers(dsn: str, threads: int) -> int:
    stopping = threading.Event()
    trips: list[int] = []
    connections = [psycopg2.connect(dsn) for _ in range(threads)]
    loops = [threading.Thread(target=simple_loop, args=(connection, stopping, trips)) for connection in connections]
    for loop in loops:
        loop.start()
    print("ready", flush=True)
    sys.stdin.read()
    stopping.set()
    for loop in loops:
        loop.join()
    return sum(trips)


def simple_loop(connection: Any, stopping: threading.Event, trips: list[int]) -> None:
    connection.autocommit = True  # each statement is a commit
    cursor = connection.cursor()
    while not stopping.is_set():
        cursor.execute(SIMPLE_CLAIM)
        job = cursor.fetchone()
        if job is None:
            stopping.wait(0.02)
            continue
        job_id, key = job
        cursor.execute("SELECT pg_try_advisory_lock(hashtext(%s))", (key,))
        cursor.execute(SIMPLE_EVENT, (job_id, "picked"))
        # here the pipeline does nothing
        cursor.execute(SIMPLE_END, (job_id,))
        cursor.execute(SIMPLE_EVENT, (job_id, "done"))
        cursor.execute("SELECT pg_advisory_unlock(hashtext(%s))", (key,))
        trips.append(6)
    connection.close()


if __name__ == "__main__":
    main()
