"""Measures how fast jobs are enqueued: one by one, in batches, by SQL, with many sessions listening.

    python -m benchmarks.enqueue [--rows 20000] [--ones 400] [--listeners 0,10,50] [--rounds 3] [--ways sql]
                                [--processes]

Takes about 5 minutes.

`--ways call` compares the server's time for one `dl_enqueue` with that for a plain INSERT of the same row.

Ways: `one` (the API's statement, one commit per job, four threads), `many` (the statement of the batch endpoint without
HTTP, 10,000 jobs each), `api` (the batch endpoint through Flask, in this process), `sql` (dl_enqueue_many). Baselines:
`insert` (a plain INSERT whose rows the server generates), `values` (a multi-row VALUES by psycopg2) and `json` (an
INSERT from the JSON text of `sql`, without checks and results). Each is measured with no session listening, and then
with many that LISTEN as idle worker processes do; with --processes they are real `dataloader worker` processes, idle on
another queue. Compare the ratio to the same way without listeners; all take turns, round after round.
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

from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.batch import enqueue_batch
from dataloader.app.queue.job import NewJob
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines

BATCH_ROWS = 10_000
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
BASELINES = ("insert", "values", "json")
CALLS = {
    "insert": "INSERT INTO dl_jobs (queue, task, lock_key, args) VALUES ('bench', 'noop', %s, '{\"n\": 1}')",
    "call": "SELECT dl_enqueue('bench', 'noop', %s, '{\"n\": 1}')",
}
CALL_ROUNDS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000, help="jobs per round of the batch ways")
    parser.add_argument("--ones", type=int, default=2_000, help="jobs per round of the way `one`")
    parser.add_argument("--listeners", default="0,10,50")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--ways", default="one,many,api,sql", help="the ways to measure; they are compared with plain INSERTs"
    )
    parser.add_argument("--processes", action="store_true", help="start real worker processes instead of sessions")
    options = parser.parse_args()
    counts = [int(count) for count in options.listeners.split(",")]
    rates: dict[tuple[str, int], list[float]] = {}
    with benchmark_server({"max_connections": "400"}) as (server_dsn, _):  # fifty processes have four connections each
        print(describe_environment(server_dsn))
        if options.ways == "call":
            with fresh_database(server_dsn) as dsn:
                for _ in range(options.rounds):
                    print_calls(call_times(dsn))
            return
        for _ in range(options.rounds):
            for count in counts:
                with fresh_database(server_dsn) as dsn, listening(dsn, count, processes=options.processes):
                    for way, make in all_ways(dsn).items():
                        if way not in (*options.ways.split(","), *BASELINES):
                            continue
                        rows = options.ones if way == "one" else options.rows
                        make(min(rows, 100))  # warm up connections and plans
                        query_value(dsn, "CHECKPOINT")
                        began = time.perf_counter()
                        make(rows)
                        rates.setdefault((way, count), []).append(rows / (time.perf_counter() - began))
    print_results(rates, counts)


# ── listeners ─────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def listening(dsn: str, count: int, *, processes: bool) -> Iterator[None]:
    started = []
    sessions = []
    try:
        if processes:
            started = [worker(dsn) for _ in range(count)]
            deadline = time.monotonic() + 120
            while (
                query_value(dsn, "SELECT count(*) FROM dl_notify_state WHERE needs_notification")[0][0] < count
            ):  # until all of them are idle
                if time.monotonic() > deadline:
                    raise TimeoutError("the worker processes did not start")
                time.sleep(0.2)
            time.sleep(10.0 if count else 0.0)  # until their start-up work is done
        else:
            sessions = [psycopg2.connect(dsn) for _ in range(count)]
            for session in sessions:
                session.autocommit = True
                session.cursor().execute("LISTEN dl_jobs")
            if count:  # register the worker processes of these sessions
                query_value(
                    dsn,
                    "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
                    " SELECT gen_random_uuid(), 'w' || n, '0', '{idle}', '{noop}', 2, 3600"
                    " FROM generate_series(1, %s) n",
                    count,
                )
                query_value(dsn, "INSERT INTO dl_notify_state SELECT 'idle', worker_id, true FROM dl_workers")
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)
        for session in sessions:
            session.close()


def worker(dsn: str) -> subprocess.Popen[bytes]:
    env = {"DL_DB_DSN": dsn, "PATH": "/usr/bin:/bin", "DL_RETENTION_ENABLED": "false"}
    command = [sys.executable, "-m", "app", "worker", "--queue", "idle:2"]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# ── ways to enqueue ─────────────────────────────────────────────────────────────────────────────────────────────────


def all_ways(dsn: str) -> dict[str, Callable[[int], None]]:
    return {
        "one": lambda rows: one_by_one(dsn, rows),
        "many": lambda rows: in_batches(rows, enqueue_many(dsn)),
        "api": lambda rows: in_batches(rows, api(dsn)),
        "sql": lambda rows: in_batches(rows, lambda n: sql(dsn, n)),
        "insert": lambda rows: in_batches(rows, lambda n: plain(dsn, n)),
        "values": lambda rows: in_batches(rows, lambda n: values(dsn, n)),
        "json": lambda rows: in_batches(rows, lambda n: from_json(dsn, n)),
    }


def in_batches(rows: int, make: Callable[[int], None]) -> None:
    while rows > 0:
        make(min(rows, BATCH_ROWS))
        rows -= BATCH_ROWS


def one_by_one(dsn: str, rows: int) -> None:
    with closing(Pool(dsn, size=THREADS, overflow=0)) as pool:
        queue = JobQueue(pool)

        def enqueue_share() -> None:
            for n in range(rows // THREADS):
                queue.enqueue(NewJob(queue="bench", task="noop", lock_key=f"k{n}"))

        threads = [threading.Thread(target=enqueue_share) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def enqueue_many(dsn: str) -> Callable[[int], None]:
    def make(rows: int) -> None:
        jobs = [NewJob(queue="bench", task="noop", lock_key=f"k{n}", args={"n": n}) for n in range(rows)]
        with closing(Pool(dsn, size=1, overflow=0)) as pool:
            enqueue_batch(pool, jobs)

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
    query_value(dsn, "SELECT count(*) FROM dl_enqueue_many(%s)", json_text(rows))


def call_times(dsn: str) -> dict[str, list[float]]:
    """Return the server's milliseconds for each statement, its triggers included; the statements take turns."""
    times: dict[str, list[float]] = {name: [] for name in CALLS}
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for n in range(CALL_ROUNDS):
            for name, statement in CALLS.items():
                cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}", (f"k{n}",))
                for ((plan,),) in cursor.fetchall():
                    times[name].append(plan["Planning Time"] + plan["Execution Time"])
    return times


def print_calls(times: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in times.items()}
    shown = ", ".join(f"{name} {1000 * median:,.0f} µs" for name, median in medians.items())
    print(f"{shown}: ratio {medians['call'] / medians['insert']:.2f}")


def json_text(rows: int) -> str:
    return json.dumps([{"queue": "bench", "task": "noop", "lock_key": f"k{n}", "args": {"n": n}} for n in range(rows)])


def plain(dsn: str, rows: int) -> None:
    query_value(dsn, PLAIN, rows)


def values(dsn: str, rows: int) -> None:
    jobs = [("bench", "noop", f"k{n}", Json({"n": n})) for n in range(rows)]
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        execute_values(cursor, VALUES, jobs, page_size=rows)


def from_json(dsn: str, rows: int) -> None:
    query_value(dsn, FROM_JSON, json_text(rows))


def print_results(rates: dict[tuple[str, int], list[float]], counts: list[int]) -> None:
    for baseline in BASELINES:
        print_ratios(rates, counts, baseline)
    print(f"\njobs/s (ratio to the rate with {counts[0]} listening)\n")
    print(f"{'way':<8}" + "".join(f"{f'{count} listening':>22}" for count in counts))
    for way in dict.fromkeys(way for way, _ in rates):
        middle = [statistics.median(rates[way, count]) for count in counts]
        print(f"{way:<8}" + "".join(f"{rate:>15,.0f} ({rate / middle[0]:.2f})" for rate in middle))


def print_ratios(rates: dict[tuple[str, int], list[float]], counts: list[int], baseline: str) -> None:
    """Print the rates divided by the baseline's of the same round: median, minimum and maximum."""
    print(f"\nof `{baseline}` in the same round: median (min to max)\n")
    for way in dict.fromkeys(way for way, _ in rates):
        shown = []
        for count in counts:
            ratios = sorted(a / b for a, b in zip(rates[way, count], rates[baseline, count], strict=True))
            shown.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        print(f"{way:<8}" + "".join(f"{text:>24}" for text in shown))


if __name__ == "__main__":
    main()
