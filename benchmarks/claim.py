"""What a claim costs when few jobs wait and when very many do.

    python -m benchmarks.claim                    1,000 and 1,000,000 waiting jobs
    python -m benchmarks.claim --rows 1000 100000

Runs on a throw-away embedded server, or on the one that DL_BENCH_DSN names, in a database made for it and dropped.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
from psycopg2.extensions import make_dsn

from app.postgres import EmbeddedServer
from app.queue.ids import draw_runs
from app.queue.job import Settlement, Status
from app.queue.jobqueue import JobQueue
from app.queue.schema import migrate
from app.queue.session import Session

FILL = """
INSERT INTO dl_jobs (queue, task, lock_key, priority, place)
SELECT 'bench', 'noop', 'key ' || n, n %% 10, 'ready' FROM generate_series(1, %s) n
"""


@contextmanager
def some_server() -> Iterator[str]:
    named = os.environ.get("DL_BENCH_DSN")
    if named:
        yield named
        return
    with tempfile.TemporaryDirectory(prefix="dl-bench-") as folder:
        Path(folder).chmod(0o755)  # as root the server has an account of its own, which must get there
        with EmbeddedServer(Path(folder) / "data") as server:
            yield server.dsn


@contextmanager
def some_database(server_dsn: str) -> Iterator[str]:
    name = f"dl_bench_{os.getpid()}"
    admin = psycopg2.connect(server_dsn)
    admin.autocommit = True
    try:
        admin.cursor().execute(f"CREATE DATABASE {name}")
        yield make_dsn(server_dsn, dbname=name)
    finally:
        admin.cursor().execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        admin.close()


def fill(dsn: str, rows: int) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    try:
        connection.cursor().execute(FILL, (rows,))
        connection.cursor().execute("VACUUM ANALYZE dl_jobs")
        connection.cursor().execute("CHECKPOINT")
    finally:
        connection.close()


def measure(dsn: str, times: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each claim, and of each claim with its settlement, one job at a time."""
    session = Session(dsn, name="bench")
    queue = JobQueue(session)
    claims, both = [], []
    for n in range(times + 20):
        began = time.perf_counter()
        (run,), _ = queue.claim("bench", ["noop"], draw_runs(1), "bench")
        taken = time.perf_counter()
        queue.settle([(run, Settlement(Status.SUCCEEDED))])
        ended = time.perf_counter()
        if n >= 20:  # the first ones connect, prepare and warm up
            claims.append((taken - began) * 1000)
            both.append((ended - began) * 1000)
    session.close()
    return claims, both


def main() -> None:
    options = argparse.ArgumentParser(description="What a claim costs at several depths of the queue.")
    options.add_argument("--rows", type=int, nargs="+", default=[1_000, 1_000_000], help="how many jobs wait")
    options.add_argument("--times", type=int, default=400, help="how many claims are measured at each depth")
    asked = options.parse_args()

    medians = []
    print(f"{'waiting':>10}  {'claim p50':>10}  {'p95':>8}  {'with settle p50':>16}  {'p95':>8}   (ms)")
    for rows in asked.rows:
        with some_server() as server, some_database(server) as dsn:
            migrate(dsn)
            fill(dsn, max(rows, asked.times + 20))
            claims, both = measure(dsn, asked.times)
        medians.append(statistics.median(claims))
        p95, p95_both = (statistics.quantiles(times, n=20)[-1] for times in (claims, both))
        print(f"{rows:>10,}  {medians[-1]:>10.3f}  {p95:>8.3f}  {statistics.median(both):>16.3f}  {p95_both:>8.3f}")
    if len(medians) > 1:
        print(f"a claim at {asked.rows[-1]:,} costs {medians[-1] / medians[0]:.2f} times one at {asked.rows[0]:,}")


if __name__ == "__main__":
    main()
