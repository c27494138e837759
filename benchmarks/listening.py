"""What notifications, idle sessions and claiming sessions cost one server: parts of the benchmark of a cluster."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2

from benchmarks.hosts import Place, running_hosts
from benchmarks.place import commit_count, cpu_sec_of, query_value
from benchmarks.rounds import Cell, format_ratio, format_table
from dataloader.app.db.connection import Session
from dataloader.app.queue.claims import FRONT, ClaimRequest
from dataloader.app.queue.job import SUCCEEDED, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.workers.listener import ListenMode

_SETTLE_SEC = 3.0  # what processes do at their start is not measured
_GROUP = 100


def commits_per_sec(dsn: str, statement: str, seconds: float, *, clients: int = 8) -> float:
    """Return how often a second clients commit a statement, each in a thread."""
    counts, is_over = [0] * clients, threading.Event()

    def run(n: int) -> None:
        with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            while not is_over.is_set():
                cursor.execute(statement)
                counts[n] += 1

    threads = [threading.Thread(target=run, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    is_over.wait(seconds)
    is_over.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


def measure_listening(place: Place, counts: Sequence[int], seconds: float) -> None:
    rows: list[list[Cell]] = []
    statement = "WITH n AS (INSERT INTO notes VALUES (1)) SELECT pg_notify('dl_jobs', 'other')"
    for count in counts:
        rates = {}
        for mode in ListenMode:
            with place.database(f"listen_{count}_{mode}") as database:
                dsn = place.dsn(database)
                query_value(dsn, "CREATE TABLE notes (n int)")
                with running_hosts(None, dsn, [dsn] * count, mode):
                    time.sleep(_SETTLE_SEC)
                    rates[mode] = commits_per_sec(dsn, statement, seconds)
        rows.append([f"{count}", *rates.values(), f"{os.getloadavg()[0]:.0f}"])
        print(
            f"  {count} idle processes: {', '.join(f'{mode} {rate:,.0f}/s' for mode, rate in rates.items())}",
            flush=True,
        )
    headings = ("idle worker processes", *(f"commits/s, DL_LISTEN={mode}" for mode in ListenMode), "load")
    print("\n" + format_table(headings, rows) + "\n")


def measure_claimers(place: Place, counts: Sequence[int], jobs: int) -> None:
    """Claims and settlements in groups by sessions without worker processes, each in a thread of this process."""
    rows: list[list[Cell]] = []
    least = math.inf
    for count in counts:
        with place.database(f"claimers_{count}") as database:
            dsn = place.dsn(database)
            sessions = [Session(dsn, application_name="dataloader-bench") for _ in range(count)]
            drain_by_sessions(dsn, sessions, 20 * count)  # each has planned its statements
            cpu, commits = cpu_sec_of(place.process), commit_count(dsn)
            claims = drain_by_sessions(dsn, sessions, jobs)
            cpu, commits = cpu_sec_of(place.process) - cpu, commit_count(dsn) - commits
            for session in sessions:
                session.close()
        least = min(least, cpu)
        rows.append([f"{count}", cpu / jobs * 1e6, format_ratio(least / cpu), claims / jobs, commits / jobs])
    headings = ("claiming sessions", "server CPU, µs/job", "jobs for the same CPU", "claims/job", "commits/job")
    print("\n" + format_table(headings, rows) + "\n")


def drain_by_sessions(dsn: str, sessions: Sequence[Session], jobs: int) -> int:
    """Insert jobs and let all sessions claim and settle until none is left; return how often they claimed."""
    query_value(dsn, "INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'bench', 'claim', 'key ' || n"
                     " FROM generate_series(1, %s) n", jobs)  # fmt: skip
    counts = [0] * len(sessions)

    def run(n: int) -> None:
        queue, position = JobQueue(sessions[n]), FRONT
        while True:
            request = ClaimRequest(start=position, promote_due=False)
            claimed, hint = queue.claim("bench", ["claim"], new_run_ids(_GROUP), "bench", request)
            counts[n] += 1
            if not claimed and position == FRONT:
                return
            position = hint.next_start if hint.next_start and len(claimed) == _GROUP else FRONT
            if claimed:
                queue.settle([(job, SUCCEEDED) for job in claimed])

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def memory_of(process: psutil.Process) -> int:
    """Return its proportional share of memory; 0 if it has just ended."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0


def measure_sessions(place: Place, seconds: float) -> None:
    rows: list[list[Cell]] = []
    with place.database("sessions") as database:
        dsn = place.dsn(database)
        query_value(dsn, "CREATE TABLE notes (n int)")
        for count in (0, 1000):
            held: list[Any] = [psycopg2.connect(dsn) for _ in range(count)]
            rate = commits_per_sec(dsn, "INSERT INTO notes VALUES (1)", seconds)
            pss = sum(map(memory_of, place.process.children()))
            rows.append([f"{count:,}", rate, pss / 2**20])
            for connection in held:
                connection.close()
    print("\n" + format_table(("idle sessions", "commits/s of 8 clients", "memory of the server, MB"), rows) + "\n")
