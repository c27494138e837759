"""Measures how soon a worker starts a job: after an INSERT when idle and under load, and when a delayed job is due.

Takes about 1 minute.

Polling is off, so that only notifications and timers wake the worker. A pick-up lasts from the response to the commit
of an INSERT to the first line of the pipeline, on one clock in one process. Under load another connection inserts jobs
one by one at a fixed rate. The baseline takes a turn after each idle pick-up: a thread that listens on its own
connection and claims one row with the minimal statement of the simple loop in `drain`. The ratio shows how much of the
time is due to the machine and the server. Lateness is the time from `available_at` to the pipeline's first line by the
system's clock, so the server must run on this machine.
"""

from __future__ import annotations

import json
import queue
import random
import select
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2

from benchmarks.drain import SIMPLE_CLAIM, SIMPLE_TABLES
from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, quantile
from dataloader.pipelines.contract import Pipelines
from dataloader.workers.pool import WorkerPool
from dataloader.workers.pool_options import PoolOptions

INSERT = "INSERT INTO dl_jobs (queue, task, lock_key, args, available_at) VALUES ('bench', 'note', %s, %s, %s)"
BACKGROUND_INSERT = "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('bench', 'noop', %s)"
SIMPLE_INSERT = "INSERT INTO simple_jobs (queue, task, lock_key) VALUES ('bench', 'note', %s); NOTIFY bare"
TIMEOUT_SEC = 30.0


class MeasuredPool:
    """A worker pool in this process whose task records when it started."""

    def __init__(self, dsn: str, threads: int) -> None:
        self.started: queue.SimpleQueue[tuple[float, float]] = queue.SimpleQueue()  # monotonic and system clock
        pipelines = Pipelines()
        pipelines.register("note")(lambda args: self.started.put((time.perf_counter(), time.time())))
        pipelines.register("noop")(lambda: None)
        self.pool = WorkerPool(pipelines, PoolOptions(dsn=dsn, queues={"bench": threads}, claim_backoff_sec=3600))
        self.pool.start()
        while self.pool.state().listener != "listening":
            time.sleep(0.02)


class SimpleWorker:
    """The baseline: one thread, one connection, one statement."""

    def __init__(self, dsn: str) -> None:
        query_value(dsn, SIMPLE_TABLES)
        self.started: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._connection = psycopg2.connect(dsn)
        self._connection.autocommit = True
        with self._connection.cursor() as cursor:
            cursor.execute("LISTEN bare")
            cursor.execute("PREPARE claim AS " + SIMPLE_CLAIM)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        with self._connection.cursor() as cursor:
            while not self._stopping.is_set():
                if not select.select([self._connection], [], [], 0.2)[0]:
                    continue
                self._connection.poll()
                if self._connection.notifies:
                    self._connection.notifies.clear()
                    cursor.execute("EXECUTE claim")
                    if cursor.fetchone() is not None:
                        self.started.put(time.perf_counter())

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._connection.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--delayed", type=int, default=50)
    parser.add_argument("--threads", type=int, default=10)
    parser.add_argument("--load", type=int, default=400, help="jobs inserted per second for the measurement under load")
    options = parser.parse_args(argv)
    with benchmark_server() as (server_dsn, _), fresh_database(server_dsn) as dsn:
        print(describe_environment(dsn))
        worker, bare = MeasuredPool(dsn, options.threads), SimpleWorker(dsn)
        connection = psycopg2.connect(dsn)
        connection.autocommit = True
        try:
            for _ in range(20):  # warm up connections, plans and caches
                measure_pickup(worker, connection)
                measure_simple_pickup(bare, connection)
            idle, least = zip(
                *(
                    (measure_pickup(worker, connection), measure_simple_pickup(bare, connection))
                    for _ in range(options.samples)
                ),
                strict=True,
            )
            ratio = format_ratio(quantile(idle, 50) / max(quantile(least, 50), 1e-6))
            lines = [[*table_row("idle", idle), ratio], [*table_row("baseline", least), format_ratio(1.0)]]
            with background_load(dsn, options.load):
                name = f"under {options.load} jobs/s"
                lines.append(
                    [*table_row(name, [measure_pickup(worker, connection) for _ in range(options.samples)]), None]
                )
            lines.append(
                [*table_row("delayed", [measure_lateness(worker, connection) for _ in range(options.delayed)]), None]
            )
            print(format_table(["ms", "p50", "p95", "p99", "worst", "samples", "p50 of the baseline's"], lines))
        finally:
            connection.close()
            bare.stop()
            worker.pool.stop(5.0)


def measure_pickup(worker: MeasuredPool, connection: Any) -> float:
    time.sleep(random.uniform(0.01, 0.03))  # until the worker is idle; random, to avoid resonance
    insert(connection, datetime.now(UTC) - timedelta(seconds=1))
    committed = time.perf_counter()
    began, _ = worker.started.get(timeout=TIMEOUT_SEC)
    return max(0.0, began - committed)  # the job may start before the response arrives


def measure_simple_pickup(simple_worker: SimpleWorker, connection: Any) -> float:
    time.sleep(random.uniform(0.01, 0.03))
    with connection.cursor() as cursor:
        cursor.execute(SIMPLE_INSERT, (f"key {random.random()}",))
    committed = time.perf_counter()
    return max(0.0, simple_worker.started.get(timeout=TIMEOUT_SEC) - committed)


def measure_lateness(worker: MeasuredPool, connection: Any) -> float:
    due = time.time() + random.uniform(0.1, 0.3)
    insert(connection, datetime.fromtimestamp(due, UTC))
    _, began = worker.started.get(timeout=TIMEOUT_SEC)
    return began - due


def insert(connection: Any, available_at: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT, (f"key {random.random()}", json.dumps({}), available_at))


@contextmanager
def background_load(dsn: str, jobs_per_sec: int) -> Iterator[None]:
    """Insert jobs at a fixed rate from another connection."""
    stopping = threading.Event()

    def insert_all() -> None:
        with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            due = time.perf_counter()
            while not stopping.wait(max(0.0, due - time.perf_counter())):
                cursor.execute(BACKGROUND_INSERT, (f"load {random.random()}",))
                due += 1 / jobs_per_sec

    thread = threading.Thread(target=insert_all)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def table_row(label: str, seconds: Sequence[float]) -> list[Cell]:
    return [label, *(quantile(seconds, n) * 1000 for n in (50, 95, 99)), max(seconds) * 1000, len(seconds)]


if __name__ == "__main__":
    main()
