"""How fast processes empty a queue of jobs that do nothing, beside the simple loop and beside PostgreSQL's own limit.

Takes about 2 minutes.

All sides get the same jobs in turn, round after round, so that a busy machine slows them alike; what counts is the
ratio of the medians. The jobs come as plain INSERTs to workers that are idle. The time is the database's own: from the
commit of the jobs to the end of the last one.

The simple loop is what one would write first: each thread with a connection of its own claims one job with FOR UPDATE
SKIP LOCKED, takes the key's advisory lock, writes an event, runs, writes the end, an event, and unlocks: six trips
a job. Its tables have no more columns, indexes and triggers than it needs.

The limit is pgbench on those tables: a hundred jobs claimed in one prepared statement and ended in another, with the
journal written in the same statements, and nothing run in between, on as many connections as there are processors.

CPU is what a job costs on either side, from the commit of the jobs on. Trips are messages to the server that were
waited for; a trip that writes is a commit.
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

from app.queue import session
from benchmarks.place import ask, cpu_of, environment, fresh_database, some_server
from benchmarks.rounds import Cell, in_turn, options, table, times
from pipelines.contract import Pipelines
from workers.pool import PoolOptions, WorkerPool

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
PATIENCE = 600.0  # seconds for a round


@dataclass(frozen=True)
class Side:
    name: str
    table: str
    processes: int = 1


@dataclass(frozen=True)
class Taken:
    jobs_a_second: float
    python: float | None  # CPU microseconds a job
    server: float | None  # None: the server is not ours to look at
    trips: float | None  # a job
    commits: float


SIMPLE, LIMIT = Side("simple loop", "simple_jobs"), Side("pgbench, 100 at once", "simple_jobs", 0)
OURS = (Side("dataloader, 1 process", "dl_jobs", 1), Side("dataloader, 2 processes", "dl_jobs", 2))


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__name__, rounds=3)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=10, help="of each process")
    parser.add_argument(
        "--work", choices=[OURS[0].table, SIMPLE.table], help="for the processes of the benchmark itself"
    )
    parser.add_argument("--dsn", help="likewise")
    asked = parser.parse_args(argv)
    if asked.work:
        work(asked.work, asked.dsn, asked.threads)
        return
    with some_server() as (server_dsn, server):
        print(environment(server_dsn))
        sides = {
            side.name: partial(one_round, side, server_dsn, server, asked.jobs, asked.threads)
            for side in (SIMPLE, *OURS, LIMIT)
        }
        taken = in_turn(sides, asked.rounds, tell=lambda _, one: f"{one.jobs_a_second:,.0f} jobs/s")
    show(taken, asked)


# ── a round ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def one_round(side: Side, server_dsn: str, server: psutil.Process | None, jobs: int, threads: int) -> Taken:
    """Idle workers, a burst of jobs, and the time until the last one is done."""
    trips: list[int] = []
    with fresh_database(server_dsn) as dsn:
        if side.table == SIMPLE.table:
            ask(dsn, SIMPLE_TABLES)
        with at_work(side, dsn, threads, trips.append) as workers:
            ask(dsn, FILL.format(table=side.table), jobs)
            before = (sum(map(cpu_of, workers)), cpu_of(server) if server else 0.0, commits_of(dsn))
            ((began,),) = ask(dsn, "SELECT clock_timestamp()")
            if side is LIMIT:
                run_pgbench(dsn, jobs)
            until_done(side, dsn)
            after = (sum(map(cpu_of, workers)), cpu_of(server) if server else 0.0)
        ((done, seconds),) = ask(
            dsn,
            f"SELECT count(*), extract(epoch FROM max(finished_at) - %s)::float8 FROM {side.table}"
            " WHERE status = 'succeeded' AND attempt = 1",
            began,
        )
        assert done == jobs, f"{side.name}: {done} of {jobs} succeeded at the first attempt"
        python, of_server = ((b - a) / jobs * 1e6 for a, b in zip(before[:2], after, strict=True))
        return Taken(
            jobs / seconds,
            None if side is LIMIT else python,
            of_server if server else None,
            sum(trips) / jobs if trips else None,
            (commits_of(dsn) - before[2]) / jobs,
        )


def commits_of(dsn: str) -> int:
    """As far as the server's processes have told: each does at its end."""
    ((commits,),) = ask(dsn, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
    return int(commits)


@contextmanager
def at_work(side: Side, dsn: str, threads: int, trips: Callable[[int], None]) -> Iterator[list[psutil.Process]]:
    """Processes that wait for jobs; ended with their standard input."""
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
            told, _ = process.communicate(timeout=60)
            if process.returncode == 0:
                trips(json.loads(told)["trips"])


def until_done(side: Side, dsn: str) -> None:
    """Looked for where it costs the server nothing: its time is counted, and a look through the table is dear."""
    until = time.monotonic() + PATIENCE
    waiting = f"SELECT 1 FROM {side.table} WHERE queue = 'bench' AND status = 'queued'"
    unended = f"SELECT 1 FROM {side.table} WHERE status IN ('queued', 'running')"
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    cursor = connection.cursor()
    for look in (waiting + (" AND place = 'ready'" if side in OURS else ""), unended):
        cursor.execute(f"{look} LIMIT 1")
        while cursor.fetchone():
            assert time.monotonic() < until, f"{side.name} is not done after {PATIENCE:.0f} s"
            time.sleep(0.1)
            cursor.execute(f"{look} LIMIT 1")
    connection.close()


def run_pgbench(dsn: str, jobs: int) -> None:
    clients = min(os.cpu_count() or 1, 4)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "batches.sql"
        script.write_text(IN_BATCHES)
        given = parse_dsn(dsn)
        where = [word for option, name in (("-h", "host"), ("-p", "port"), ("-U", "user")) if name in given
                 for word in (option, given[name])]  # fmt: skip
        subprocess.run(
            [pgbench(), "-n", "-M", "prepared", "-c", str(clients), "-j", str(clients), "-t",
             str(-(-jobs // (100 * clients)) + 1), "-f", str(script), *where, given["dbname"]],
            check=True, capture_output=True, env={**os.environ, "PGPASSWORD": given.get("password", "")},
        )  # fmt: skip


def pgbench() -> str:
    """Wherever a local server's programs are; the wheel has none."""
    folders = sorted(Path("/").glob("usr/lib/postgresql/*/bin"), reverse=True)
    found = shutil.which("pgbench", path=os.pathsep.join([os.environ["PATH"], *map(str, folders)]))
    assert found is not None, "pgbench is not installed"
    return found


def show(taken: dict[str, list[Taken]], asked: Any) -> None:
    print(f"{asked.jobs:,} jobs, {asked.threads} threads a process, {asked.rounds} rounds in turn, medians\n")
    rows: list[list[Cell]] = []
    simple, limit = (middle(taken[side.name], "jobs_a_second") or 1.0 for side in (SIMPLE, LIMIT))
    for name, rounds in taken.items():
        speed = middle(rounds, "jobs_a_second") or 0.0
        rest = [middle(rounds, field) for field in ("python", "server", "trips", "commits")]
        rows.append([name, speed, times(speed / simple), times(speed / limit), *rest])
    headings = [
        "",
        "jobs/s",
        "of the simple loop",
        "of the limit",
        "CPU µs a job: Python",
        "server",
        "trips",
        "commits",
    ]
    print(table(headings, rows))


def middle(rounds: Sequence[Taken], field: str) -> float | None:
    values = [getattr(one, field) for one in rounds if getattr(one, field) is not None]
    return statistics.median(values) if values else None


# ── the sides, each in processes of its own ─────────────────────────────────────────────────────────────────────────


def work(which: str, dsn: str, threads: int) -> None:
    trips = work_as_we_do(dsn, threads) if which == OURS[0].table else work_simply(dsn, threads)
    print(json.dumps({"trips": trips}))


def work_as_we_do(dsn: str, threads: int) -> int:
    pipelines = Pipelines()
    pipelines.register("noop")(lambda: None)
    trips = counted_trips()
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


def counted_trips() -> list[int]:
    """Each message that is sent from now on adds to it, by whatever thread."""
    trips: list[int] = []
    really = session.Wire.ask

    def counting(wire: session.Wire, sql: str, parameters: Any, timeout: float) -> Any:
        trips.append(1)
        return really(wire, sql, parameters, timeout)

    session.Wire.ask = counting  # type: ignore[method-assign, assignment]
    return trips


def work_simply(dsn: str, threads: int) -> int:
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
