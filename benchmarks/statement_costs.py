"""Measures what the parts of a job's life cost: statements alone on their sessions, and whole loads of two sizes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2

from app.db.connection import Session
from app.queue.job import ClaimedJob, Settlement, Status, new_run_ids
from app.queue.jobs import JobQueue
from benchmarks.place import cpu_sec_of, fresh_database
from benchmarks.queue_model import Constants, Load, StatementCost, simulate
from benchmarks.real_load import ENQUEUE, RealLoad, run_load

SIZES = (1, 100)  # jobs of the groups whose costs are measured
_GROUPS_PER_SEC = 40  # so few that each group finds an idle server
_STATEMENTS = 3  # of a group at least: enqueue, claim, settle
_FLUSH_COUNT = 300
_FACTORS = (0.5, 3.0)  # of costs under load; beyond them other programs use the machine


def measure(server_dsn: str, server: psutil.Process, statements: int, seconds: float) -> Constants:
    """Measure each statement alone, with one job and with a hundred, then loads of such groups."""
    with fresh_database(server_dsn) as dsn:
        timers = [_StatementTimer(dsn, server, size, max(10, statements * 2 // (size + 1))) for size in SIZES]
        enqueue, claim, settle = (
            [timer.measure(part) for timer in timers]
            for part in (_StatementTimer.enqueue, _StatementTimer.claim, _StatementTimer.settle)
        )
        with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            flush_sec = _flush_sec(cursor, server)
        for timer in timers:
            timer.close()
    cores = os.cpu_count() or 1
    loads = [
        run_load(
            server_dsn,
            server,
            Load(jobs_per_sec=size * _GROUPS_PER_SEC, group=size, cores=cores, seconds=seconds),
            has_vacuum=False,
        )
        for size in SIZES
    ]
    settle_cost = _fit(settle)
    counts = [load.commits * size for load, size in zip(loads, SIZES, strict=True)]  # statements of a group
    rest = [
        # A group whose jobs end one after the other has several settlements.
        load.server_us * size - enqueue_us - claim_us - settle_us - (count - _STATEMENTS) * settle_cost.fixed_us
        for load, size, count, enqueue_us, claim_us, settle_us in zip(
            loads, SIZES, counts, enqueue, claim, settle, strict=True
        )
    ]
    return Constants(
        measured_at=datetime.now(UTC).date().isoformat(),
        cores=cores,
        enqueue=_fit(enqueue),
        claim=_fit(claim),
        settle=settle_cost,
        rest=_fit(rest),
        python=_fit_statements([load.worker_us for load in loads], [count - 1 for count in counts]),
        generator=_fit([load.generator_us * size for load, size in zip(loads, SIZES, strict=True)]),
        flush_sec=flush_sec,
        vacuum_us=0.0,
        statistics_us=0.0,
        events=loads[-1].events,
    )


def calibrate(constants: Constants, saturated: RealLoad, load: Load) -> Constants:
    """Return the costs under full load, where statements share caches: so many times those of statements alone that the
    model saturates where the real load does. The costs of vacuum and statistics are measured in that load."""
    constants = replace(constants, vacuum_us=saturated.vacuum_us, statistics_us=saturated.statistics_us)
    low, high = _FACTORS
    for _ in range(9):
        factor = (low + high) / 2
        is_faster = simulate(constants.scaled(factor), load).done_per_sec > saturated.done_per_sec
        low, high = (factor, high) if is_faster else (low, factor)
    return constants.scaled((low + high) / 2)


def _fit(group_us: list[float]) -> StatementCost:
    small, large = zip(SIZES, group_us, strict=True)
    return StatementCost.from_two_sizes(small, large)


def _fit_statements(job_us: list[float], statements: list[float]) -> StatementCost:
    """Each is of the groups of one size: the microseconds of a job, and the statements of a group."""
    (small, large), ratio = SIZES, statements[1] / statements[0]
    per_job_us = max(0.0, (job_us[1] * large - ratio * job_us[0] * small) / (large - ratio * small))
    return StatementCost(max(0.0, (job_us[0] - per_job_us) * small / statements[0]), per_job_us)


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
                cursor.execute(ENQUEUE, (self._name, time.time(), self.size))

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


def _flush_sec(cursor: Any, server: psutil.Process) -> float:
    """Return how long a commit of one row waits for the disk: its time without the server's CPU."""
    cursor.execute("CREATE TABLE flushed (n int)")
    before, began = cpu_sec_of(server), time.perf_counter()
    for n in range(_FLUSH_COUNT):
        cursor.execute("INSERT INTO flushed VALUES (%s)", (n,))
    waited_sec = time.perf_counter() - began - (cpu_sec_of(server) - before)
    return max(0.0, waited_sec / _FLUSH_COUNT)
