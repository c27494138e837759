"""Simulates loads of one PostgreSQL from measured costs, and checks the simulation against two real loads.

Takes about 10 seconds; with --measure 30 seconds, with --check 2 minutes.

`--measure` writes the costs of this machine to the file of constants; measure on a machine without other load.
Without options the table shows what the model makes of them: for 11,574 jobs a second, a billion a day, and twice that.

`--check` measures the costs, then the rate at which a worker process on this machine saturates, and runs 0.5 and 0.9
times that rate: the p99 from the start of an enqueue to the end of the job must be within 30 % of the model's. **Only
then show its figures.** It ends with 1 if they are not.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2

from app.db.connection import Session
from app.queue.job import ClaimedJob, Settlement, Status, new_run_ids
from app.queue.jobs import JobQueue
from benchmarks import drain
from benchmarks.place import benchmark_server, cpu_sec_of, describe_environment, fresh_database, query_value
from benchmarks.queue_model import Constants, Load, StatementCost, simulate
from benchmarks.rounds import Cell, format_table, make_parser

CONSTANTS_FILE = Path("benchmarks/constants.json")
BILLION_A_DAY = 1e9 / 86_400
SIZES = (1, 100)  # jobs of the statements whose costs are measured
MAX_DIFFERENCE = 0.3
THREADS = 8
_ENQUEUE = """
INSERT INTO dl_jobs (queue, task, lock_key) SELECT %s, 'noop', 'k' || random() FROM generate_series(1, %s)
"""
_TIMES = """
SELECT extract(epoch FROM percentile_cont(0.5) WITHIN GROUP (ORDER BY finished_at - created_at))::float8 * 1e3,
       extract(epoch FROM percentile_cont(0.99) WITHIN GROUP (ORDER BY finished_at - created_at))::float8 * 1e3
  FROM dl_jobs WHERE status = 'succeeded' AND created_at > (SELECT min(created_at) FROM dl_jobs) + %s * interval '1 s'
"""
_DONE_BETWEEN = """
SELECT count(*) FROM dl_jobs, (SELECT min(created_at) AS at FROM dl_jobs) began
 WHERE finished_at BETWEEN at + %s * interval '1 s' AND at + %s * interval '1 s'
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--constants", type=Path, default=CONSTANTS_FILE, help="the file of the measured costs")
    parser.add_argument("--measure", action="store_true", help="measure the costs of this machine into that file")
    parser.add_argument("--check", action="store_true", help="compare two real loads with the model")
    parser.add_argument("--statements", type=int, default=400, help="statements of each kind and size to measure")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load, real or simulated")
    parser.add_argument("--group", type=int, default=20, help="jobs of each statement that enqueues, in real loads")
    options = parser.parse_args(argv)
    if not (options.measure or options.check):
        if not options.constants.exists():
            parser.error(f"there is no file {options.constants}; --measure writes it")
        print_table(Constants.load(options.constants), options.seconds)
        return
    with benchmark_server() as (server_dsn, server):
        if server is None:
            parser.error("the CPU time of a server that DL_BENCH_DSN names cannot be measured")
        print(describe_environment(server_dsn))
        constants = measure(server_dsn, server, options.statements)
        constants.save(options.constants)
        print(f"{constants}\n")
        has_passed = not options.check or check(server_dsn, constants, options.seconds, options.group)
    sys.exit(0 if has_passed else 1)


def print_table(constants: Constants, seconds: float) -> None:
    print(f"Costs of {constants.measured_at}, {constants.cores} CPUs; workers on other machines\n")
    rows: list[list[Cell]] = []
    for rate in (BILLION_A_DAY, 2 * BILLION_A_DAY):
        for group in (20, 100, 400):
            cells: list[Cell] = [f"{rate:,.0f}", group]
            for cores in (2, 4, 8):
                result = simulate(
                    constants, Load(jobs_per_sec=rate, group=group, cores=cores, workers=8, seconds=seconds)
                )
                saturated = f"saturated at {result.done_per_sec:,.0f}/s"
                cells.append(saturated if result.is_saturated else f"p99 {result.p99_ms:.0f} ms")
            rows.append(cells)
    print(format_table(["jobs/s", "in groups of", "2 cores", "4 cores", "8 cores"], rows, text_columns=(2, 3, 4)))


# ── costs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure(server_dsn: str, server: psutil.Process, statements: int) -> Constants:
    """Measure each statement alone, with one job and with a hundred."""
    with fresh_database(server_dsn) as dsn:
        costs = [_StatementTimer(dsn, server, size, max(10, statements * 2 // (size + 1))) for size in SIZES]
        enqueue, claim, settle = (
            StatementCost.from_two_sizes(*((cost.size, cost.measure(part)) for cost in costs))
            for part in (_StatementTimer.enqueue, _StatementTimer.claim, _StatementTimer.settle)
        )
        with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            vacuum_sec = _cpu_sec(server, lambda: cursor.execute("VACUUM dl_jobs, dl_job_events"))
            flush_sec = _flush_sec(cursor, server)
        for cost in costs:
            cost.close()
    python = drain.run_round(drain.DATALOADER[0], server_dsn, server, max(1_000, statements * 10), THREADS)
    return Constants(
        measured_at=datetime.now(UTC).date().isoformat(),
        cores=os.cpu_count() or 1,
        enqueue=enqueue,
        claim=claim,
        settle=settle,
        flush_sec=flush_sec,
        vacuum_us=vacuum_sec / sum(cost.size * cost.count for cost in costs) * 1e6,
        python_us=python.python_cpu_us or 0.0,
    )


class _StatementTimer:
    """Enqueues, claims and settles groups of one size, in a queue of its own. Its sessions stay open: the CPU time of
    a server process that has just ended may not be counted yet."""

    def __init__(self, dsn: str, server: psutil.Process, size: int, count: int) -> None:
        self.size, self.count, self._server = size, count, server
        self._name = f"groups of {size}"
        self._session = Session(dsn, application_name="bench")
        self._queue = JobQueue(self._session)
        self._connection = psycopg2.connect(dsn)
        self._connection.autocommit = True
        self._claimed: list[list[ClaimedJob]] = []

    def measure(self, part: Callable[[_StatementTimer], None]) -> float:
        """Return the CPU microseconds of a statement."""
        return _cpu_sec(self._server, lambda: part(self)) / self.count * 1e6

    def enqueue(self) -> None:
        with self._connection.cursor() as cursor:
            for _ in range(self.count):
                cursor.execute(_ENQUEUE, (self._name, self.size))

    def claim(self) -> None:
        for _ in range(self.count):
            jobs, _outlook = self._queue.claim(self._name, ["noop"], new_run_ids(self.size), "bench")
            self._claimed.append(list(jobs))

    def settle(self) -> None:
        assert sum(map(len, self._claimed)) == self.size * self.count, "not all jobs were claimed"
        for jobs in self._claimed:
            self._queue.settle([(job, Settlement(Status.SUCCEEDED)) for job in jobs])

    def close(self) -> None:
        self._session.close()
        self._connection.close()


def _cpu_sec(server: psutil.Process, run: Callable[[], object]) -> float:
    before = cpu_sec_of(server)
    run()
    return cpu_sec_of(server) - before


def _flush_sec(cursor: Any, server: psutil.Process, count: int = 200) -> float:
    """Return how long a commit of one row waits for the disk: its time without the server's CPU."""
    cursor.execute("CREATE TABLE flushed (n int)")
    before, began = cpu_sec_of(server), time.perf_counter()
    for n in range(count):
        cursor.execute("INSERT INTO flushed VALUES (%s)", (n,))
    waited_sec = time.perf_counter() - began - (cpu_sec_of(server) - before)
    return max(0.0, waited_sec / count)


# ── real loads ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RealLoad:
    done_per_sec: float
    p50_ms: float
    p99_ms: float


def check(server_dsn: str, constants: Constants, seconds: float, group: int) -> bool:
    """Compare p99 at 0.5 and 0.9 of saturation with the model's; print both and return whether they agree."""
    upper = drain.run_round(drain.DATALOADER[0], server_dsn, None, 10_000, THREADS).jobs_per_sec
    saturation = run_load(server_dsn, upper, seconds, group).done_per_sec
    rows: list[list[Cell]] = []
    has_passed = True
    for share in (0.5, 0.9):
        rate = saturation * share
        real = run_load(server_dsn, rate, seconds, group)
        load = Load(jobs_per_sec=rate, group=group, cores=constants.cores, seconds=seconds, shares_cores=True)
        result = simulate(constants, load)
        difference = result.p99_ms / real.p99_ms - 1
        has_passed = has_passed and abs(difference) <= MAX_DIFFERENCE
        times = (real.p50_ms, result.p50_ms, real.p99_ms, result.p99_ms)
        rows.append([f"{share:g} of saturation", rate, *times, f"{difference:+.0%}"])
    headings = ["load", "jobs/s", "p50 real, ms", "p50 model", "p99 real", "p99 model", "difference"]
    print(format_table(headings, rows, text_columns=(0, 6)))
    print(f"\n{'passed' if has_passed else 'FAILED'}: the limit is {MAX_DIFFERENCE:.0%}")
    return has_passed


def run_load(server_dsn: str, jobs_per_sec: float, seconds: float, group: int) -> RealLoad:
    """Enqueue at random times at this rate, and measure the jobs done a second and their times.

    The first fifth is left out. What is not done at the end is not waited for.
    """
    warm_up_sec, rng = seconds / 5, random.Random(1)
    with fresh_database(server_dsn) as dsn, drain.running_workers(drain.DATALOADER[0], dsn, THREADS, lambda _: None):
        with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            began = due_at = time.monotonic()
            while due_at < began + seconds and time.monotonic() < began + seconds:
                time.sleep(max(0.0, due_at - time.monotonic()))
                cursor.execute(_ENQUEUE, ("bench", group))
                due_at += rng.expovariate(jobs_per_sec / group)
        ((done,),) = query_value(dsn, _DONE_BETWEEN, warm_up_sec, seconds)
        ((p50_ms, p99_ms),) = query_value(dsn, _TIMES, warm_up_sec)
    assert done, "no job was done after the warm-up"
    return RealLoad(done / (seconds - warm_up_sec), p50_ms, p99_ms)


if __name__ == "__main__":
    main()
