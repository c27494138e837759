"""How fast jobs are put into the queue: one by one, many at once, through SQL, with many sessions listening.

    python -m benchmarks.enqueue [--rows 20000] [--ones 400] [--listeners 0,10,50] [--rounds 3] [--ways sql]
                                [--processes]

Ways: `one` (the API's statement, a commit a job, four threads), `many` (what the batch endpoint sends, without HTTP,
10,000 a statement), `api` (the batch endpoint's whole way through Flask, in this process), `sql` (dl_enqueue_many),
`insert` (a plain INSERT whose rows the server makes up: nothing is written, sent or parsed), and two plain INSERTs of
rows that the client has, as it has them for `sql`: `values` (of another service: a multi-row VALUES by psycopg2) and
`json` (from the same JSON text, with no check and no answer). Each is tried with no session listening, and then with so
many that LISTEN as idle worker processes do; with --processes these are real processes (`dataloader worker`), idle on a
queue of their own. What counts is the ratio to the same way with none; all take turns, round after round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg2
from psycopg2.extras import Json, execute_values

from app.queue.batch import Batch
from app.queue.job import NewJob
from app.queue.jobqueue import JobQueue
from app.queue.pool import Pool
from app.web import WebOptions, create_app
from benchmarks.place import ask, environment, fresh_database, some_server
from pipelines.contract import Pipelines

AT_ONCE = 10_000
THREADS = 4
PLAIN = (
    "INSERT INTO dl_jobs (queue, task, lock_key, args) SELECT 'bench', 'noop', 'k' || n, jsonb_build_object('n', n)"
    " FROM generate_series(1, %s) n"
)
VALUES = "INSERT INTO dl_jobs (queue, task, lock_key, args) VALUES %s"
FROM_JSON = (
    "INSERT INTO dl_jobs (queue, task, lock_key, args)"
    " SELECT * FROM jsonb_to_recordset(%s) AS r (queue text, task text, lock_key text, args jsonb)"
)
YARDSTICKS = ("insert", "values", "json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000, help="a round of the ways that make many")
    parser.add_argument("--ones", type=int, default=2_000, help="a round of the way that makes one at a time")
    parser.add_argument("--listeners", default="0,10,50")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="one,many,api,sql", help="of these; they are compared with the plain INSERTs")
    parser.add_argument("--processes", action="store_true", help="real worker processes, not only their sessions")
    asked = parser.parse_args()
    counts = [int(count) for count in asked.listeners.split(",")]
    rates: dict[tuple[str, int], list[float]] = {}
    with some_server({"max_connections": "400"}) as (server_dsn, _):  # of fifty processes each has four
        print(environment(server_dsn))
        for _ in range(asked.rounds):
            for count in counts:
                with fresh_database(server_dsn) as dsn, listening(dsn, count, processes=asked.processes):
                    for way, make in ways(dsn).items():
                        if way not in (*asked.ways.split(","), *YARDSTICKS):
                            continue
                        rows = asked.ones if way == "one" else asked.rows
                        make(min(rows, 100))  # connections are open, plans are made
                        ask(dsn, "CHECKPOINT")
                        began = time.perf_counter()
                        make(rows)
                        rates.setdefault((way, count), []).append(rows / (time.perf_counter() - began))
    show(rates, counts)


# ── who listens ─────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def listening(dsn: str, count: int, *, processes: bool) -> Iterator[None]:
    started = []
    sessions = []
    try:
        if processes:
            started = [worker(dsn) for _ in range(count)]
            deadline = time.monotonic() + 120
            while ask(dsn, "SELECT count(*) FROM dl_watch WHERE asleep")[0][0] < count:  # they have nothing left to do
                if time.monotonic() > deadline:
                    raise TimeoutError("the worker processes did not start")
                time.sleep(0.2)
            time.sleep(10.0 if count else 0.0)  # their first heartbeats and looks are over
        else:
            sessions = [psycopg2.connect(dsn) for _ in range(count)]
            for session in sessions:
                session.autocommit = True
                session.cursor().execute("LISTEN dl_jobs")
            if count:  # as the processes of which they would be
                ask(
                    dsn,
                    "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
                    " SELECT gen_random_uuid(), 'w' || n, '0', '{idle}', '{noop}', 2, 3600"
                    " FROM generate_series(1, %s) n",
                    count,
                )
                ask(dsn, "INSERT INTO dl_watch SELECT 'idle', worker_id, true FROM dl_workers")
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)
        for session in sessions:
            session.close()


def worker(dsn: str) -> subprocess.Popen[bytes]:
    env = {"DL_DB_DSN": dsn, "PATH": "/usr/bin:/bin", "DL_RETENTION": "false"}
    command = [sys.executable, "-m", "app", "worker", "--queue", "idle:2"]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# ── who enqueues ────────────────────────────────────────────────────────────────────────────────────────────────────


def ways(dsn: str) -> dict[str, Callable[[int], None]]:
    return {
        "one": lambda rows: one_by_one(dsn, rows),
        "many": lambda rows: in_batches(rows, many(dsn)),
        "api": lambda rows: in_batches(rows, api(dsn)),
        "sql": lambda rows: in_batches(rows, lambda n: sql(dsn, n)),
        "insert": lambda rows: in_batches(rows, lambda n: plain(dsn, n)),
        "values": lambda rows: in_batches(rows, lambda n: values(dsn, n)),
        "json": lambda rows: in_batches(rows, lambda n: from_json(dsn, n)),
    }


def in_batches(rows: int, make: Callable[[int], None]) -> None:
    while rows > 0:
        make(min(rows, AT_ONCE))
        rows -= AT_ONCE


def one_by_one(dsn: str, rows: int) -> None:
    with closing(Pool(dsn, size=THREADS, overflow=0)) as pool:
        queue = JobQueue(pool)

        def some() -> None:
            for n in range(rows // THREADS):
                queue.enqueue(NewJob(queue="bench", task="noop", lock_key=f"k{n}"))

        threads = [threading.Thread(target=some) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def many(dsn: str) -> Callable[[int], None]:
    def make(rows: int) -> None:
        jobs = [NewJob(queue="bench", task="noop", lock_key=f"k{n}", args={"n": n}) for n in range(rows)]
        with closing(Pool(dsn, size=1, overflow=0)) as pool:
            Batch(pool).enqueue(jobs)

    return make


def api(dsn: str) -> Callable[[int], None]:
    def make(rows: int) -> None:
        jobs = [{"queue": "bench", "task": "noop", "lock_key": f"k{n}", "args": {"n": n}} for n in range(rows)]
        with closing(Pool(dsn, size=1, overflow=0)) as pool:
            client = create_app(JobQueue(pool), Pipelines(), WebOptions(version="0")).test_client()
            response = client.post("/api/v1/jobs/batch", json={"jobs": jobs})
            assert response.status_code == 200, response.text

    return make


def sql(dsn: str, rows: int) -> None:
    ask(dsn, "SELECT count(*) FROM dl_enqueue_many(%s)", json_text(rows))


def json_text(rows: int) -> str:
    return json.dumps([{"queue": "bench", "task": "noop", "lock_key": f"k{n}", "args": {"n": n}} for n in range(rows)])


def plain(dsn: str, rows: int) -> None:
    ask(dsn, PLAIN, rows)


def values(dsn: str, rows: int) -> None:
    jobs = [("bench", "noop", f"k{n}", Json({"n": n})) for n in range(rows)]
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        execute_values(cursor, VALUES, jobs, page_size=rows)


def from_json(dsn: str, rows: int) -> None:
    ask(dsn, FROM_JSON, json_text(rows))


def show(rates: dict[tuple[str, int], list[float]], counts: list[int]) -> None:
    for yardstick in YARDSTICKS:
        show_ratios(rates, counts, yardstick)
    print(f"\njobs/s, and of the rate with {counts[0]} listening\n")
    print(f"{'way':<8}" + "".join(f"{f'{count} listening':>22}" for count in counts))
    for way in dict.fromkeys(way for way, _ in rates):
        middle = [statistics.median(rates[way, count]) for count in counts]
        print(f"{way:<8}" + "".join(f"{rate:>15,.0f} ({rate / middle[0]:.2f})" for rate in middle))


def show_ratios(rates: dict[tuple[str, int], list[float]], counts: list[int], yardstick: str) -> None:
    """Each way's rate in a round, divided by the yardstick's of the same round: the median, and the extremes."""
    print(f"\nof `{yardstick}` in the same round: median (least to greatest)\n")
    for way in dict.fromkeys(way for way, _ in rates):
        shown = []
        for count in counts:
            ratios = sorted(a / b for a, b in zip(rates[way, count], rates[yardstick, count], strict=True))
            shown.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        print(f"{way:<8}" + "".join(f"{text:>24}" for text in shown))


if __name__ == "__main__":
    main()
