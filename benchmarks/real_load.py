"""Measures how long jobs take that arrive in groups at random times, and what they cost each session and program.

Takes about 5 minutes.

First it finds the rate at which a worker process on this machine saturates: the highest at which the queue does not
grow. Then it runs loads at shares of that rate: the times are those from when a job was due to its end.

Nothing but the load runs on the server meanwhile: autovacuum is off, a checkpoint has just ended, and segments of WAL
are used again as on a server that has run for a while; a new one is written twice, and all commits wait. VACUUM is run
at a fixed interval. Claims and settlements are counted by the transactions that wrote their events. Use a machine
without other load: the last column has the share of it that other programs used.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2

from benchmarks import drain
from benchmarks.place import (
    benchmark_server,
    cpu_sec_of,
    describe_environment,
    fresh_database,
    own_cpu_sec,
    query_value,
)
from benchmarks.rounds import Cell, format_table, make_parser, quantile

SERVER_SETTINGS = {
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "16GB",
    "min_wal_size": "8GB",  # all segments are used again
    "track_wal_io_timing": "on",
}
SHARES = (0.5, 0.9)  # of saturation
_SEARCH_SEC = 12.0  # of each load that saturation is searched with
_VACUUM_INTERVAL_SEC = 5.0
_MIN_KEPT_UP = 0.98  # fewer jobs done than were due: saturated
_SLOWEST, _FASTEST, _MAX_RATIO = 500.0, 64_000.0, 1.04  # jobs a second: where saturation is looked for
_WAL_SEGMENTS = 200  # of 16 MB: more than a load writes
_QUEUE = "bench"
ENQUEUE = """
INSERT INTO dl_jobs (queue, task, lock_key, created_at)
SELECT %s, 'noop', 'k' || random(), to_timestamp(%s) FROM generate_series(1, %s)
"""
_TIMES = """
SELECT extract(epoch FROM created_at)::float8, extract(epoch FROM finished_at)::float8
  FROM dl_jobs WHERE status = 'succeeded'
"""
_EVENTS = """
SELECT count(*), count(*) FILTER (WHERE NOT s.unread @> e.event_id),
       count(DISTINCT e.xmin::text) FILTER (WHERE e.kind = 'picked'),
       count(DISTINCT e.xmin::text) FILTER (WHERE e.kind = 'done')
  FROM dl_job_events e, dl_statistics_state s
"""
_FLUSHES = "SELECT wal_sync, wal_sync_time FROM pg_stat_wal"
_FLUSHES_18 = "SELECT sum(fsyncs), sum(fsync_time) FROM pg_stat_io WHERE object = 'wal'"
_SESSIONS = "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()"
_WORKER_SESSION = "dataloader-"


@dataclass(frozen=True, kw_only=True)
class Load:
    """Jobs that arrive in groups at random times."""

    jobs_per_sec: float
    group: int  # jobs of a statement that enqueues
    seconds: float
    warm_up_share: float = 0.2  # of the seconds: what was due then is left out of the times
    generators: int = 4  # connections that enqueue
    threads: int = 8  # of the worker process
    seed: int = 1


@dataclass(frozen=True)
class Times:
    """When jobs were due, and when they ended."""

    entries: Sequence[tuple[float, float]]

    def due_in(self, begin_sec: float, end_sec: float) -> Times:
        return Times([entry for entry in self.entries if begin_sec <= entry[0] < end_sec])

    def quantile_ms(self, percent: int) -> float:
        """Infinite if there is no job."""
        if not self.entries:
            return float("inf")
        return quantile([ended - due for due, ended in self.entries], percent) * 1e3


@dataclass(frozen=True)
class RealLoad:
    """CPU in microseconds of a job: of the sessions that enqueue, claim, settle and listen, and of the programs.
    `late_ms`: how late the generator was at the 99th percentile, of its own doing. `others`: the share of all cores
    that other programs used meanwhile."""

    times: Times = field(repr=False)
    done_per_sec: float
    enqueue_us: float
    claim_us: float
    settle_us: float
    listen_us: float
    vacuum_us: float
    statistics_us: float  # of an event that was aggregated
    worker_us: float
    flush_us: float  # the time
    events: float  # of a job, as the next three
    claims: float
    settlements: float
    flushes: float
    late_ms: float
    others: float

    @property
    def server_us(self) -> float:
        sessions_us = self.enqueue_us + self.claim_us + self.settle_us + self.listen_us
        return sessions_us + self.vacuum_us + self.statistics_us * self.events


def arrival_times(load: Load) -> Iterator[float]:
    """Yield the times of the groups, in seconds from the beginning."""
    rng, at = random.Random(load.seed), 0.0
    while (at := at + rng.expovariate(load.jobs_per_sec / load.group)) < load.seconds:
        yield at


def keeps_up(load: Load, done_per_sec: float) -> bool:
    """Return whether so many jobs ended in the measured time as were due in it: else the queue grew."""
    begin_sec = load.seconds * load.warm_up_share
    due = load.group * sum(at >= begin_sec for at in arrival_times(load))
    return done_per_sec * (load.seconds - begin_sec) >= _MIN_KEPT_UP * due


def find_saturation(load: Load, run: Callable[[Load], float]) -> float:
    """Return the highest rate of arrivals at random times that is kept up with, to 4 %: seven runs.

    `run` returns how many jobs of a load are done in a second.
    """
    low, high = _SLOWEST, _FASTEST
    while high / low > _MAX_RATIO:
        rate = math.sqrt(low * high)
        tried = replace(load, jobs_per_sec=rate)
        low, high = (rate, high) if keeps_up(tried, run(tried)) else (low, rate)
    return low


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
            while not self._is_over.wait(_VACUUM_INTERVAL_SEC):
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
        self._times = arrival_times(load)  # under the lock
        self.late_ms: list[float] = []
        self.began_at = self.server_sec = 0.0

    def run(self) -> None:
        query_value(self._dsn, "CHECKPOINT")
        connections = [psycopg2.connect(self._dsn) for _ in range(self._load.generators)]
        gc.collect()
        gc.disable()  # a collection would be a pause of the arrivals
        try:
            self.began_at = time.time()
            sessions = [psutil.Process(connection.info.backend_pid) for connection in connections]
            with ThreadPoolExecutor(len(connections), thread_name_prefix="generator") as pool:
                list(pool.map(self._enqueue, connections))
            self.server_sec = own_cpu_sec(sessions)
        finally:
            gc.enable()
            for connection in connections:
                connection.close()

    def _enqueue(self, connection: Any) -> None:
        connection.autocommit = True
        with connection.cursor() as cursor:
            while True:
                free_at = time.time()
                with self._lock:
                    at = next(self._times, None)
                if at is None:
                    return
                due_at = self.began_at + at
                time.sleep(max(0.0, due_at - time.time()))
                self.late_ms.append((time.time() - max(due_at, free_at)) * 1e3)
                cursor.execute(ENQUEUE, (_QUEUE, due_at, self._load.group))


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--saturation", type=float, help="jobs a second, instead of the search for it")
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES, help="of saturation, one load for each")
    parser.add_argument("--group", type=int, default=20, help="jobs of a statement that enqueues")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load")
    parser.add_argument("--runs", type=int, default=3, help="of each load")
    options = parser.parse_args(argv)
    with benchmark_server(SERVER_SETTINGS) as (server_dsn, server):
        if server is None:
            parser.error("the CPU time of a server that DL_BENCH_DSN names cannot be measured")
        print(describe_environment(server_dsn), flush=True)
        prepare_wal(server_dsn)
        load = Load(jobs_per_sec=1, group=options.group, seconds=_SEARCH_SEC)
        saturation = options.saturation or find_saturation(
            load, lambda tried: run_load(server_dsn, tried, waits=False).done_per_sec
        )
        print(f"Saturated: {saturation:,.0f} jobs/s\n", flush=True)
        print_loads(server_dsn, replace(load, seconds=options.seconds), saturation, options.shares, options.runs)


def print_loads(server_dsn: str, load: Load, saturation: float, shares: Sequence[float], runs: int) -> None:
    """Run each share several times; print the medians, and the p99 of each run."""
    rows: list[list[Cell]] = []
    for share in shares:
        loads = [replace(load, jobs_per_sec=saturation * share, seed=seed) for seed in range(1, runs + 1)]
        measured = [run_load(server_dsn, planned) for planned in loads]

        def median(value: Callable[[RealLoad], float], measured: Sequence[RealLoad] = measured) -> float:
            return statistics.median(map(value, measured))

        rows.append(
            [
                f"{share:g}",
                loads[0].jobs_per_sec,
                median(lambda result: result.times.quantile_ms(50)),
                " / ".join(f"{result.times.quantile_ms(99):.0f}" for result in measured),
                median(lambda result: result.enqueue_us),
                median(lambda result: result.claim_us),
                median(lambda result: result.settle_us),
                median(lambda result: result.server_us),
                median(lambda result: result.worker_us),
                median(lambda result: 1 / max(1e-9, result.claims)),
                median(lambda result: 1 / max(1e-9, result.settlements)),
                median(lambda result: result.flush_us / max(1e-9, result.flushes) / 1e3),
                median(lambda result: result.late_ms),
                f"{max(result.others for result in measured):.0%}",
            ]
        )
    headings = (
        *("of saturation", "jobs/s", "p50, ms", "p99 of each run, ms", "enqueue, µs/job", "claim, µs/job"),
        *("settle, µs/job", "server, µs/job", "worker, µs/job", "jobs of a claim", "jobs of a settlement"),
        *("a flush, ms", "generator late, ms", "others"),
    )
    print(format_table(headings, rows, text_columns=(0, 3, 13)))


def prepare_wal(server_dsn: str) -> None:
    """Create the segments of WAL that the loads use; the checkpoint before a load makes those of earlier ones free."""
    with closing(psycopg2.connect(server_dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for _ in range(_WAL_SEGMENTS):
            cursor.execute("SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal()")


def run_load(server_dsn: str, load: Load, *, waits: bool = True) -> RealLoad:
    """Enqueue at random times, and measure each job from the time at which it was due.

    Jobs that were due in the warm-up are left out of the times. Without `waits`, so are those that have not ended.
    """
    side = drain.DATALOADER[0]
    with fresh_database(server_dsn) as dsn, drain.running_workers(side, dsn, load.threads, _ignore) as [worker]:
        vacuum, generator = _Vacuum(dsn), _Generator(dsn, load)
        with vacuum.running():
            before = _cpu_times(worker), time.monotonic(), _session_times(dsn)
            flushes_before, flush_ms_before = _read_flushes(dsn)
            generator.run()
            if waits:
                drain.wait_until_drained(side, dsn)
            after = _cpu_times(worker), time.monotonic(), _session_times(dsn)
        flushes, flush_ms = _read_flushes(dsn)
        rows = query_value(dsn, _TIMES)
        ((events, aggregated, claims, settlements),) = query_value(dsn, _EVENTS)
    worker_sec, generator_sec, busy_sec = (b - a for a, b in zip(before[0], after[0], strict=True))
    sessions = {role: sec - before[2].get(role, 0.0) for role, sec in after[2].items()}
    own_sec = sum(sessions.values()) + generator.server_sec + vacuum.cpu_sec + worker_sec + generator_sec
    elapsed_sec = after[1] - before[1]
    begin_at, end_at = (generator.began_at + load.seconds * share for share in (load.warm_up_share, 1.0))
    job_us = 1e6 / len(rows)
    return RealLoad(
        times=Times(rows).due_in(begin_at, end_at),
        done_per_sec=sum(begin_at <= ended_at < end_at for _, ended_at in rows) / (end_at - begin_at),
        enqueue_us=generator.server_sec * job_us,
        claim_us=sessions["claim"] * job_us,
        settle_us=sessions["settle"] * job_us,
        listen_us=sessions["listen"] * job_us,
        vacuum_us=vacuum.cpu_sec * job_us,
        statistics_us=sessions["maintenance"] / max(1, aggregated) * 1e6,
        worker_us=worker_sec * job_us,
        flush_us=float(flush_ms - flush_ms_before) * 1e3 / len(rows),
        events=events / len(rows),
        claims=claims / len(rows),
        settlements=settlements / len(rows),
        flushes=float(flushes - flushes_before) / len(rows),
        late_ms=quantile(generator.late_ms, 99) if generator.late_ms else 0.0,
        others=max(0.0, (busy_sec - own_sec) / elapsed_sec / (psutil.cpu_count() or 1)),
    )


def _session_times(dsn: str) -> dict[str, float]:
    """The CPU seconds of the worker's sessions, by what each is for."""
    sessions = [(pid, name) for pid, name in query_value(dsn, _SESSIONS) if name.startswith(_WORKER_SESSION)]
    return {
        name.removeprefix(_WORKER_SESSION).partition(":")[0]: own_cpu_sec([psutil.Process(pid)])
        for pid, name in sessions
    }


def _read_flushes(dsn: str) -> tuple[float, float]:
    """How often the WAL was flushed, and for how many milliseconds."""
    ((version,),) = query_value(dsn, "SELECT current_setting('server_version_num')::int")
    ((flushes, flush_ms),) = query_value(dsn, _FLUSHES_18 if version >= 180_000 else _FLUSHES)
    return float(flushes), float(flush_ms)


def _cpu_times(worker: psutil.Process) -> tuple[float, float, float]:
    times = psutil.cpu_times()
    all_programs = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
    return cpu_sec_of(worker), time.process_time(), all_programs


def _ignore(_: int) -> None: ...


if __name__ == "__main__":
    main()
