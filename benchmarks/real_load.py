"""Real loads for benchmarks.simulate: groups of jobs at random times, and what they cost each process.

Nothing but the load runs on the server meanwhile: autovacuum is off, and a checkpoint has just ended. VACUUM is run at
a fixed interval, as in the model.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2

from benchmarks import drain
from benchmarks.place import cpu_sec_of, fresh_database, query_value
from benchmarks.queue_model import (
    BACKLOG_PAUSE_SEC,
    MAX_BACKLOG,
    VACUUM_INTERVAL_SEC,
    Load,
    Times,
    arrival_times,
)
from benchmarks.rounds import quantile

SERVER_SETTINGS = {"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "16GB"}
_QUEUE = "bench"
ENQUEUE = """
INSERT INTO dl_jobs (queue, task, lock_key, created_at)
SELECT %s, 'noop', 'k' || random(), to_timestamp(%s) FROM generate_series(1, %s)
"""
_TIMES = """
SELECT extract(epoch FROM created_at)::float8, extract(epoch FROM finished_at)::float8, 1
  FROM dl_jobs WHERE status = 'succeeded'
"""
_BACKLOG = "SELECT count(*) FROM (SELECT FROM dl_jobs WHERE queue = %s AND status = 'queued' LIMIT %s) waiting"


_EVENTS = """
SELECT count(*), count(*) FILTER (WHERE NOT s.unread @> e.event_id) FROM dl_job_events e, dl_statistics_state s
"""
_STATISTICS_SESSIONS = """
SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'dataloader-maint%%' AND datname = current_database()
"""


@dataclass(frozen=True)
class RealLoad:
    """CPU in microseconds of a job. `late_ms`: how late the generator was at the 99th percentile, of its own doing.
    `others`: the share of all cores that other programs used meanwhile."""

    times: Times = field(repr=False)
    done_per_sec: float
    server_us: float
    worker_us: float
    generator_us: float
    vacuum_us: float
    statistics_us: float  # of an event that was aggregated
    events: float  # of a job
    commits: float
    late_ms: float
    others: float


class _Vacuum:
    """Vacuums the tables of jobs at an interval, and counts the CPU time of its session."""

    def __init__(self, dsn: str) -> None:
        self.cpu_sec = 0.0
        self._dsn, self._is_over = dsn, threading.Event()
        self._thread = threading.Thread(target=self._run, name="vacuum")

    def _run(self) -> None:
        with closing(psycopg2.connect(self._dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            session = psutil.Process(connection.info.backend_pid)
            while not self._is_over.wait(VACUUM_INTERVAL_SEC):
                cursor.execute("VACUUM dl_jobs, dl_job_events")
                times = session.cpu_times()
                self.cpu_sec = times.user + times.system

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()


class _Generator:
    """Enqueues a group at each of the times, on whichever connection is free first."""

    def __init__(self, dsn: str, load: Load) -> None:
        self._dsn, self._load = dsn, load
        self._lock = threading.Lock()
        self._times = arrival_times(load) if load.jobs_per_sec is not None else None  # under the lock
        self.late_ms: list[float] = []
        self.began_at = 0.0

    def run(self) -> None:
        query_value(self._dsn, "CHECKPOINT")
        connections = [psycopg2.connect(self._dsn) for _ in range(self._load.generators)]
        gc.collect()
        gc.disable()  # a collection would be a pause of the arrivals
        try:
            self.began_at = time.time()
            with ThreadPoolExecutor(len(connections), thread_name_prefix="generator") as pool:
                list(pool.map(self._enqueue_closed if self._times is None else self._enqueue_open, connections))
        finally:
            gc.enable()
            for connection in connections:
                connection.close()

    def _enqueue_open(self, connection: Any) -> None:
        connection.autocommit = True
        with connection.cursor() as cursor:
            while True:
                free_at = time.time()
                with self._lock:
                    at = next(self._times, None)  # type: ignore[arg-type]
                if at is None:
                    return
                due_at = self.began_at + at
                time.sleep(max(0.0, due_at - time.time()))
                self.late_ms.append((time.time() - max(due_at, free_at)) * 1e3)
                cursor.execute(ENQUEUE, (_QUEUE, due_at, self._load.group))

    def _enqueue_closed(self, connection: Any) -> None:
        connection.autocommit = True
        with connection.cursor() as cursor:
            while time.time() < self.began_at + self._load.seconds:
                cursor.execute(_BACKLOG, (_QUEUE, MAX_BACKLOG))
                if cursor.fetchone()[0] >= MAX_BACKLOG:
                    time.sleep(BACKLOG_PAUSE_SEC)
                    continue
                for _ in range(max(1, MAX_BACKLOG // 10 // self._load.group)):
                    cursor.execute(ENQUEUE, (_QUEUE, time.time(), self._load.group))


def run_load(server_dsn: str, server: psutil.Process, load: Load, *, has_vacuum: bool = True) -> RealLoad:
    """Enqueue at random times, or as much as possible; measure each job from the time at which it was due.

    Jobs that were due in the warm-up are left out of the times. The others are waited for.
    """
    side = drain.DATALOADER[0]
    with fresh_database(server_dsn) as dsn, drain.running_workers(side, dsn, load.threads, _ignore) as [worker]:
        vacuum, generator = _Vacuum(dsn), _Generator(dsn, load)
        with vacuum.running() if has_vacuum else nullcontext():
            before = _cpu_times(server, worker), time.monotonic(), drain.commit_count(dsn)
            generator.run()
            drain.wait_until_drained(side, dsn)
            after = _cpu_times(server, worker), time.monotonic(), drain.commit_count(dsn)
            statistics_sec = _cpu_sec_of_statistics(dsn)
        rows = query_value(dsn, _TIMES)
        ((events, aggregated),) = query_value(dsn, _EVENTS)
    *own, all_programs = (b - a for a, b in zip(before[0], after[0], strict=True))
    elapsed_sec = after[1] - before[1]
    begin_at, end_at = (generator.began_at + load.seconds * share for share in (load.warm_up_share, 1.0))
    server_us, worker_us, generator_us = (cpu_sec / len(rows) * 1e6 for cpu_sec in own)
    vacuum_us = vacuum.cpu_sec / len(rows) * 1e6
    return RealLoad(
        times=Times(rows).due_in(begin_at, end_at),
        done_per_sec=sum(begin_at <= ended_at < end_at for _, ended_at, _ in rows) / (end_at - begin_at),
        server_us=server_us - vacuum_us - statistics_sec / len(rows) * 1e6,
        worker_us=worker_us,
        generator_us=generator_us,
        vacuum_us=vacuum_us,
        statistics_us=statistics_sec / max(1, aggregated) * 1e6,
        events=events / len(rows),
        commits=(after[2] - before[2]) / len(rows),
        late_ms=quantile(generator.late_ms, 99) if generator.late_ms else 0.0,
        others=max(0.0, (all_programs - sum(own)) / elapsed_sec / (psutil.cpu_count() or 1)),
    )


def _cpu_sec_of_statistics(dsn: str) -> float:
    """The sessions are new, and do little else."""
    times = [psutil.Process(pid).cpu_times() for (pid,) in query_value(dsn, _STATISTICS_SESSIONS)]
    return float(sum(one.user + one.system for one in times))


def _cpu_times(server: psutil.Process, worker: psutil.Process) -> tuple[float, float, float, float]:
    times = psutil.cpu_times()
    all_programs = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
    return cpu_sec_of(server), cpu_sec_of(worker), time.process_time(), all_programs


def _ignore(_: int) -> None: ...
