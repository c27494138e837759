"""How fast one process empties a queue of jobs that do nothing, against the simple loop.

    python -m benchmarks.drain [--jobs 20000] [--threads 10] [--rounds 3] [--processes 1]

Both sides get the same jobs in turn, round after round, so that a busy machine slows them alike; what counts is the
ratio of the medians. The time is the database's own: from the commit of the jobs to the end of the last one.

The simple loop is what one would write first: each thread with a connection of its own claims one job with FOR UPDATE
SKIP LOCKED, takes the key's advisory lock, writes an event, runs, writes the end, an event, and unlocks: six commits a
job. Its tables have no more columns, indexes and triggers than it needs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2

from benchmarks.place import ask, cpu_of, environment, fresh_database, some_server
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
FILL = "INSERT INTO {table} (queue, task, lock_key) SELECT 'bench', 'noop', 'key ' || n FROM generate_series(1, %s) n"
PATIENCE = 600.0  # seconds for a round


@dataclass(frozen=True)
class Side:
    name: str
    table: str


@dataclass(frozen=True)
class Taken:
    jobs_a_second: float
    python: float  # CPU microseconds a job
    server: float | None  # None: the server is not ours to look at
    commits: float  # a job


OURS, SIMPLE = Side("dataloader", "dl_jobs"), Side("simple loop", "simple_jobs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=10)
    parser.add_argument("--processes", type=int, default=1, help="of dataloader; the simple loop has one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", choices=[OURS.table, SIMPLE.table], help=argparse.SUPPRESS)
    parser.add_argument("--dsn", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work(asked.work, asked.dsn, asked.threads)
        return
    with some_server() as (server_dsn, server):
        print(environment(server_dsn))
        taken: dict[Side, list[Taken]] = {SIMPLE: [], OURS: []}
        for _ in range(asked.rounds):
            for side, rounds in taken.items():
                processes = asked.processes if side is OURS else 1
                rounds.append(one_round(side, server_dsn, server, asked.jobs, asked.threads, processes))
                print(f"  {side.name}: {rounds[-1].jobs_a_second:,.0f} jobs/s", flush=True)
    show(taken, asked)


# ── a round ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def one_round(
    side: Side, server_dsn: str, server: psutil.Process | None, jobs: int, threads: int, processes: int
) -> Taken:
    """Idle workers, a burst of jobs, and the time until the last one is done."""
    with fresh_database(server_dsn) as dsn:
        if side is SIMPLE:
            ask(dsn, SIMPLE_TABLES)
        ask(server_dsn, "CHECKPOINT")
        with at_work(side, dsn, threads, processes) as workers:
            before = (sum(map(cpu_of, workers)), cpu_of(server) if server else 0.0)
            ask(dsn, FILL.format(table=side.table), jobs)
            ((began,),) = ask(dsn, "SELECT clock_timestamp()")
            until_done(side, dsn)
            after = (sum(map(cpu_of, workers)), cpu_of(server) if server else 0.0)
        ((done, seconds),) = ask(
            dsn,
            f"SELECT count(*), extract(epoch FROM max(finished_at) - %s)::float8 FROM {side.table}"
            " WHERE status = 'succeeded' AND attempt = 1",
            began,
        )
        assert done == jobs, f"{side.name}: {done} of {jobs} succeeded at the first attempt"
        python, of_server = ((b - a) / jobs * 1e6 for a, b in zip(before, after, strict=True))
        ((commits,),) = ask(dsn, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        return Taken(jobs / seconds, python, of_server if server else None, commits / jobs)


@contextmanager
def at_work(side: Side, dsn: str, threads: int, processes: int) -> Iterator[list[psutil.Process]]:
    """Processes that wait for jobs; ended with their standard input."""
    command = [sys.executable, "-m", "benchmarks.drain", "--work", side.table, "--dsn", dsn, "--threads", str(threads)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
        yield [psutil.Process(process.pid) for process in started]
    finally:
        for process in started:
            process.communicate(timeout=60)


def until_done(side: Side, dsn: str) -> None:
    until = time.monotonic() + PATIENCE
    while ask(dsn, f"SELECT 1 FROM {side.table} WHERE status IN ('queued', 'running') LIMIT 1"):
        assert time.monotonic() < until, f"{side.name} is not done after {PATIENCE:.0f} s"
        time.sleep(0.1)


def show(taken: dict[Side, list[Taken]], asked: Any) -> None:
    print(f"\n{asked.jobs:,} jobs, {asked.threads} threads, {asked.rounds} rounds in turn, medians")
    print(f"{'':24}{'jobs/s':>10}{'ratio':>8}{'CPU µs a job: Python':>24}{'server':>10}{'commits a job':>16}")
    simple = statistics.median(one.jobs_a_second for one in taken[SIMPLE])
    for side, rounds in taken.items():
        speed = statistics.median(one.jobs_a_second for one in rounds)
        python = statistics.median(one.python for one in rounds)
        servers = [one.server for one in rounds if one.server is not None]
        server = f"{statistics.median(servers):,.0f}" if servers else "not ours"
        name = side.name + (f", {asked.processes} processes" if side is OURS and asked.processes > 1 else "")
        commits = statistics.median(one.commits for one in rounds)
        print(f"{name:24}{speed:>10,.0f}{speed / simple:>8.1f}{python:>24,.0f}{server:>10}{commits:>16.2f}")


# ── the two sides, each in a process of its own ─────────────────────────────────────────────────────────────────────


def work(table: str, dsn: str, threads: int) -> None:
    if table == OURS.table:
        work_as_we_do(dsn, threads)
    else:
        work_simply(dsn, threads)


def work_as_we_do(dsn: str, threads: int) -> None:
    pipelines = Pipelines()
    pipelines.register("noop")(lambda: None)
    pool = WorkerPool(pipelines, PoolOptions(dsn=dsn, queues={"bench": threads}))
    pool.start()
    while pool.state().listener != "listening":
        time.sleep(0.02)
    print("ready", flush=True)
    sys.stdin.read()
    pool.stop(5.0)


def work_simply(dsn: str, threads: int) -> None:
    stopping = threading.Event()
    connections = [psycopg2.connect(dsn) for _ in range(threads)]
    loops = [threading.Thread(target=simple_loop, args=(connection, stopping)) for connection in connections]
    for loop in loops:
        loop.start()
    print("ready", flush=True)
    sys.stdin.read()
    stopping.set()
    for loop in loops:
        loop.join()


def simple_loop(connection: Any, stopping: threading.Event) -> None:
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
    connection.close()


if __name__ == "__main__":
    main()
