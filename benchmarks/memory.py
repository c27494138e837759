"""What a worker process holds in memory: idle with few and many threads, and after very many jobs.

Takes about 3 minutes; with --jobs 1000000 about as long as a million jobs take.

Each line is a `dataloader worker` of its own, as it is shipped, with all pipelines of the settings loaded. It is looked
at when it has listened for a moment. A thread's share is the slope between the lines. Growth is between the moment when
the first tenth of the jobs is done and the end: what is set up once does not count. The jobs come in portions; those
that are done are taken away, so that the server stays small.
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

from benchmarks.place import ask, environment, fresh_database, some_server
from benchmarks.rounds import Cell, options, table

FILL = "INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'bench', 'noop', 'key ' || n FROM generate_series(1, %s) n"
OPEN = "SELECT 1 FROM dl_jobs WHERE status IN ('queued', 'running') LIMIT 1"
MIB = 2**20
PATIENCE = 600.0


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__name__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--jobs", type=int, default=50_000, help="that do nothing, for the growth")
    parser.add_argument("--portion", type=int, default=5_000)
    parser.add_argument("--rest", type=float, default=3.0, help="seconds that an idle process is left alone first")
    asked = parser.parse_args(argv)
    with some_server() as (server_dsn, _), fresh_database(server_dsn) as dsn:
        print(environment(server_dsn))
        idle = {threads: rest(dsn, threads, asked.rest) for threads in asked.threads}
        print(table(["idle, threads", "resident MiB", "its own MiB", "OS threads"], idle_rows(idle)))
        few, many = min(idle), max(idle)
        if many > few:
            slope = (idle[many][0] - idle[few][0]) / (many - few)
            print(f"\na thread more: {slope / 1024:,.0f} KiB")
        first, last = grow(dsn, asked.jobs, asked.portion)
    print(f"{asked.jobs:,} jobs: {first / MIB:.1f} MiB after a tenth of them, {last / MIB:.1f} MiB at the end")


def idle_rows(idle: dict[int, tuple[int, int, int]]) -> list[list[Cell]]:
    return [[str(threads), one[0] / MIB, one[1] / MIB, one[2]] for threads, one in idle.items()]


def rest(dsn: str, threads: int, seconds: float) -> tuple[int, int, int]:
    """Bytes that are resident, those that it shares with nobody, and its threads."""
    with worker(dsn, threads) as process:
        time.sleep(seconds)
        memory = process.memory_full_info()
        return memory.rss, memory.uss, process.num_threads()


def grow(dsn: str, jobs: int, portion: int) -> tuple[int, int]:
    """Bytes that are resident after a tenth of the jobs, and at the end."""
    first = 0
    with worker(dsn, 10) as process:
        for done in range(0, jobs, portion):
            ask(dsn, FILL, min(portion, jobs - done))
            until = time.monotonic() + PATIENCE
            while ask(dsn, OPEN):
                assert time.monotonic() < until, "the jobs are not done"
                time.sleep(0.1)
            empty(dsn, until)
            if not first and done + portion >= jobs / 10:
                first = process.memory_info().rss
        return first, process.memory_info().rss


def empty(dsn: str, until: float) -> None:
    """It wants both tables for itself, and whoever folds the journal may have one and want the other: he goes first."""
    while True:
        try:
            ask(dsn, "SET lock_timeout = 300; TRUNCATE dl_jobs, dl_job_events")
            return
        except OperationalError:
            if time.monotonic() > until:
                raise


@contextmanager
def worker(dsn: str, threads: int) -> Iterator[psutil.Process]:
    """It listens."""
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
        said = ""
        for line in process.stderr:
            said += line
            if "listener.listening" in line:
                break
        else:
            raise AssertionError(f"the worker did not start: {said}")
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)


if __name__ == "__main__":
    main()
