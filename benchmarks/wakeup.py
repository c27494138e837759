"""How soon a worker begins a job: after a plain INSERT, idle and at work, and when a delayed job falls due.

Takes about 1 minute.

Polling is off, so that only notifications and timers can have woken it. A pick-up is measured on one clock, in the
process that works, from the answer to the commit of an INSERT to the first line of the pipeline. At work, another
connection inserts so many jobs a second beside, one by one. Lateness is from `available_at` to that line, by the
system's clock: for it the server must be on this machine.
"""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2

from benchmarks.place import environment, fresh_database, some_server
from benchmarks.rounds import Cell, options, quantile, table
from pipelines.contract import Pipelines
from workers.pool import PoolOptions, WorkerPool

INSERT = "INSERT INTO dl_jobs (queue, task, lock_key, args, available_at) VALUES ('bench', 'note', %s, %s, %s)"
BESIDE = "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('bench', 'noop', %s)"
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


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__name__)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--delayed", type=int, default=50)
    parser.add_argument("--threads", type=int, default=10)
    parser.add_argument("--beside", type=int, default=400, help="jobs a second that are inserted beside, when at work")
    asked = parser.parse_args(argv)
    with some_server() as (server_dsn, _), fresh_database(server_dsn) as dsn:
        print(environment(dsn))
        worker = Worker(dsn, asked.threads)
        connection = psycopg2.connect(dsn)
        connection.autocommit = True
        try:
            for _ in range(20):  # connections, plans and caches warm up
                pick_up(worker, connection)
            lines = [shown("idle", [pick_up(worker, connection) for _ in range(asked.samples)])]
            with beside(dsn, asked.beside):
                name = f"under {asked.beside} jobs/s"
                lines.append(shown(name, [pick_up(worker, connection) for _ in range(asked.samples)]))
            lines.append(shown("delayed", [lateness(worker, connection) for _ in range(asked.delayed)]))
            print(table(["ms", "p50", "p95", "p99", "worst", "samples"], lines))
        finally:
            connection.close()
            worker.pool.stop(5.0)


def pick_up(worker: Worker, connection: Any) -> float:
    time.sleep(random.uniform(0.01, 0.03))  # the worker is idle again, and in step with nothing
    insert(connection, datetime.now(UTC) - timedelta(seconds=1))
    committed = time.perf_counter()
    began, _ = worker.began.get(timeout=PATIENCE)
    return max(0.0, began - committed)  # it may begin before the answer has come


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


def shown(what: str, seconds: list[float]) -> list[Cell]:
    return [what, *(quantile(seconds, n) * 1000 for n in (50, 95, 99)), max(seconds) * 1000, len(seconds)]


if __name__ == "__main__":
    main()
