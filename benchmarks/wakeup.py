"""How soon a worker begins a job: after a plain INSERT, idle and at work, and when a delayed job falls due.

Takes about 1 minute.

Polling is off, so that only notifications and timers can have woken it. A pick-up is measured on one clock, in the
process that works, from the answer to the commit of an INSERT to the first line of the pipeline. At work, another
connection inserts so many jobs a second beside, one by one. The yardstick takes its turn after each idle pick-up: a
thread that does nothing but listen on a connection of its own and claim one row with the least statement that would do,
as the simple loop of `drain` has it. The ratio says how much of the time is the machine's and the server's. Lateness is
from `available_at` to that line, by the system's clock: for it the server must be on this machine.
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
from benchmarks.place import ask, environment, fresh_database, some_server
from benchmarks.rounds import Cell, options, quantile, table, times
from pipelines.contract import Pipelines
from workers.pool import PoolOptions, WorkerPool

INSERT = "INSERT INTO dl_jobs (queue, task, lock_key, args, available_at) VALUES ('bench', 'note', %s, %s, %s)"
BESIDE = "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('bench', 'noop', %s)"
BARE = "INSERT INTO simple_jobs (queue, task, lock_key) VALUES ('bench', 'note', %s); NOTIFY bare"
PATIENCE = 30.0


class Worker:
    """A pool in this process whose one task notes when it began."""

    def __init__(self, dsn: str, threads: int) -> None:
        self.began: queue.SimpleQueue[tuple[float, float]] = queue.SimpleQueue()  # monotonic and system clock
        pipelines = Pipelines()
        pipelines.register("note")(lambda args: self.began.put((time.perf_counter(), time.time())))
        pipelines.register("noop")(lambda: None)
        self.pool = WorkerPool(pipelines, PoolOptions(dsn=dsn, queues={"bench": threads}, claim_backoff_sec=3600))
        self.pool.start()
        while self.pool.state().listener != "listening":
            time.sleep(0.02)


class Bare:
    """The yardstick: one thread, one connection, one statement."""

    def __init__(self, dsn: str) -> None:
        ask(dsn, SIMPLE_TABLES)
        self.began: queue.SimpleQueue[float] = queue.SimpleQueue()
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
                        self.began.put(time.perf_counter())

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._connection.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__name__)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--delayed", type=int, default=50)
    parser.add_argument("--threads", type=int, default=10)
    parser.add_argument("--beside", type=int, default=400, help="jobs a second that are inserted beside, when at work")
    asked = parser.parse_args(argv)
    with some_server() as (server_dsn, _), fresh_database(server_dsn) as dsn:
        print(environment(dsn))
        worker, bare = Worker(dsn, asked.threads), Bare(dsn)
        connection = psycopg2.connect(dsn)
        connection.autocommit = True
        try:
            for _ in range(20):  # connections, plans and caches warm up
                pick_up(worker, connection)
                pick_up_barely(bare, connection)
            idle, least = zip(
                *((pick_up(worker, connection), pick_up_barely(bare, connection)) for _ in range(asked.samples)),
                strict=True,
            )
            ratio = times(quantile(idle, 50) / max(quantile(least, 50), 1e-6))
            lines = [[*shown("idle", idle), ratio], [*shown("the yardstick", least), times(1.0)]]
            with beside(dsn, asked.beside):
                name = f"under {asked.beside} jobs/s"
                lines.append([*shown(name, [pick_up(worker, connection) for _ in range(asked.samples)]), None])
            lines.append([*shown("delayed", [lateness(worker, connection) for _ in range(asked.delayed)]), None])
            print(table(["ms", "p50", "p95", "p99", "worst", "samples", "p50 of the yardstick's"], lines))
        finally:
            connection.close()
            bare.stop()
            worker.pool.stop(5.0)


def pick_up(worker: Worker, connection: Any) -> float:
    time.sleep(random.uniform(0.01, 0.03))  # the worker is idle again, and in step with nothing
    insert(connection, datetime.now(UTC) - timedelta(seconds=1))
    committed = time.perf_counter()
    began, _ = worker.began.get(timeout=PATIENCE)
    return max(0.0, began - committed)  # it may begin before the answer has come


def pick_up_barely(bare: Bare, connection: Any) -> float:
    time.sleep(random.uniform(0.01, 0.03))
    with connection.cursor() as cursor:
        cursor.execute(BARE, (f"key {random.random()}",))
    committed = time.perf_counter()
    return max(0.0, bare.began.get(timeout=PATIENCE) - committed)


def lateness(worker: Worker, connection: Any) -> float:
    due = time.time() + random.uniform(0.1, 0.3)
    insert(connection, datetime.fromtimestamp(due, UTC))
    _, began = worker.began.get(timeout=PATIENCE)
    return began - due


def insert(connection: Any, available_at: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT, (f"key {random.random()}", json.dumps({}), available_at))


@contextmanager
def beside(dsn: str, a_second: int) -> Iterator[None]:
    """Somebody else's jobs, evenly."""
    stopping = threading.Event()

    def insert_all() -> None:
        with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            due = time.perf_counter()
            while not stopping.wait(max(0.0, due - time.perf_counter())):
                cursor.execute(BESIDE, (f"beside {random.random()}",))
                due += 1 / a_second

    thread = threading.Thread(target=insert_all)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def shown(what: str, seconds: Sequence[float]) -> list[Cell]:
    return [what, *(quantile(seconds, n) * 1000 for n in (50, 95, 99)), max(seconds) * 1000, len(seconds)]


if __name__ == "__main__":
    main()
