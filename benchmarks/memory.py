"""Measures the memory of a worker process: idle with few and many threads, and after very many jobs.

Takes about 3 minutes; with --jobs 1000000 about as long as a million jobs take.

Each line of the result is a `dataloader worker` with all shipped pipelines, measured a moment after it listens. The
memory of a thread is the slope between the lines. Growth is counted from the end of the first tenth of the jobs, so
that one-time initialisation is left out. Jobs are enqueued in portions and deleted when done, so that the server stays
small.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped]
from psycopg2 import OperationalError

from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_table, make_parser

FILL = "INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'bench', 'noop', 'key ' || n FROM generate_series(1, %s) n"
HAS_OPEN_JOBS = "SELECT 1 FROM dl_jobs WHERE status IN ('queued', 'running') LIMIT 1"
MIB = 2**20
TIMEOUT_SEC = 600.0


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--jobs", type=int, default=50_000, help="empty jobs for the measurement of growth")
    parser.add_argument("--portion", type=int, default=5_000)
    parser.add_argument("--rest", type=float, default=3.0, help="seconds to wait before an idle process is measured")
    options = parser.parse_args(argv)
    with benchmark_server() as (server_dsn, _), fresh_database(server_dsn) as dsn:
        print(describe_environment(server_dsn))
        idle = {threads: measure_idle(dsn, threads, options.rest) for threads in options.threads}
        print(format_table(["idle, threads", "resident MiB", "private MiB", "OS threads"], idle_rows(idle)))
        few, many = min(idle), max(idle)
        if many > few:
            slope = (idle[many][0] - idle[few][0]) / (many - few)
            print(f"\neach further thread: {slope / 1024:,.0f} KiB")
        first, last = measure_growth(dsn, options.jobs, options.portion)
    print(f"{options.jobs:,} jobs: {first / MIB:.1f} MiB after a tenth of them, {last / MIB:.1f} MiB at the end")


def idle_rows(idle: dict[int, tuple[int, int, int]]) -> list[list[Cell]]:
    return [[str(threads), rss / MIB, uss / MIB, os_threads] for threads, (rss, uss, os_threads) in idle.items()]


def measure_idle(dsn: str, threads: int, seconds: float) -> tuple[int, int, int]:
    """Return the resident bytes, the private bytes and the number of OS threads."""
    with worker(dsn, threads) as process:
        time.sleep(seconds)
        memory = process.memory_full_info()
        return memory.rss, memory.uss, process.num_threads()


def measure_growth(dsn: str, jobs: int, portion: int) -> tuple[int, int]:
    """Return the resident bytes after a tenth of the jobs, and at the end."""
    first = 0
    with worker(dsn, 10) as process:
        for done in range(0, jobs, portion):
            query_value(dsn, FILL, min(portion, jobs - done))
            until = time.monotonic() + TIMEOUT_SEC
            while query_value(dsn, HAS_OPEN_JOBS):
                assert time.monotonic() < until, "the jobs are not done"
                time.sleep(0.1)
            truncate_tables(dsn, until)
            if not first and done + portion >= jobs / 10:
                first = process.memory_info().rss
        return first, process.memory_info().rss


def truncate_tables(dsn: str, deadline: float) -> None:
    """Truncate jobs and events; give way and retry when statistics aggregation holds one of the locks."""
    while True:
        try:
            query_value(dsn, "SET lock_timeout = 300; TRUNCATE dl_jobs, dl_job_events")
            return
        except OperationalError:
            if time.monotonic() > deadline:
                raise


@contextmanager
def worker(dsn: str, threads: int) -> Iterator[psutil.Process]:
    """Start a worker process; yield it once it listens."""
    settings = {
        "DL_DB_DSN": dsn,
        "WORKERS_JSON": json.dumps([{"queue": "bench", "concurrency": threads}]),
        "DL_LOG_FORMAT": "json",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "worker"],
        env={name: value for name, value in os.environ.items() if name != "DL_BENCH_DSN"} | settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        output = ""
        for line in process.stderr:
            output += line
            if "listener.connected" in line:
                break
        else:
            raise AssertionError(f"the worker did not start: {output}")
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)


if __name__ == "__main__":
    main()
