"""How soon an idle worker begins a job: after a plain INSERT, and when a delayed job falls due.

    python -m benchmarks.wakeup [--samples 200] [--delayed 50] [--threads 10]

Polling is off, so that only notifications and timers can have woken it. A pick-up is measured on one clock, in the
process that works, from the answer to the commit of an INSERT to the first line of the pipeline. Lateness is from
`available_at` to that line, by the system's clock: for it the server must be on this machine.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2

from benchmarks.place import environment, fresh_database, some_server
from pipelines.contract import Pipelines
from workers.pool import PoolOptions, WorkerPool

INSERT = "INSERT INTO dl_jobs (queue, task, lock_key, args, available_at) VALUES ('bench', 'note', %s, %s, %s)"
PATIENCE = 30.0


class Worker:
    """A pool in this process whose one task notes when it began."""

    def __init__(self, dsn: str, threads: int) -> None:
        self.began: queue.SimpleQueue[tuple[float, float]] = queue.SimpleQueue()  # monotonic and system clock
        pipelines = Pipelines()
        pipelines.register("note")(lambda args: self.began.put((time.perf_counter(), time.time())))
        options = PoolOptions(dsn=dsn, queues={"bench": threads}, claim_backoff_sec=3600)
        self.pool = WorkerPool(pipelines, options)
        self.pool.start()
        while self.pool.state().listener != "listening":
            time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--delayed", type=int, default=50)
    parser.add_argument("--threads", type=int, default=10)
    asked = parser.parse_args()
    with some_server() as (server_dsn, _), fresh_database(server_dsn) as dsn:
        print(environment(dsn))
        worker = Worker(dsn, asked.threads)
        connection = psycopg2.connect(dsn)
        connection.autocommit = True
        try:
            for _ in range(20):  # connections, plans and caches warm up
                pick_up(worker, connection)
            show("pick-up of a plain INSERT", [pick_up(worker, connection) for _ in range(asked.samples)])
            show("lateness of a delayed job", [lateness(worker, connection) for _ in range(asked.delayed)])
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


def show(what: str, seconds: list[float]) -> None:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    told = ", ".join(f"p{n} {cuts[n - 1] * 1000:.2f}" for n in (50, 95, 99))
    print(f"{what}: {told}, worst {max(seconds) * 1000:.2f} ms ({len(seconds)} samples)")


if __name__ == "__main__":
    main()
