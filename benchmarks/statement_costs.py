"""Measures what the parts of a job's life cost: the CPU of each session and program in two loads with a backlog."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2

from benchmarks.place import fresh_database
from benchmarks.queue_model import Constants, Load, StatementCost
from benchmarks.real_load import ENQUEUE, RealLoad, run_load

SIZES = (1, 100)  # jobs of the groups whose costs are measured
_FLUSHES, _PAUSE_SEC = 150, 0.005  # of each size, on an idle machine


def measure(server_dsn: str, load: Load) -> Constants:
    """Measure the load with groups of two sizes: what a statement costs depends on what else uses the same caches."""
    small, large = (run_load(server_dsn, replace(load, jobs_per_sec=None, group=size)) for size in SIZES)
    return fit(small, large, flush=measure_flush(server_dsn))


def fit(small: RealLoad, large: RealLoad, *, flush: StatementCost) -> Constants:
    def by_statement(job_us: Callable[[RealLoad], float], statements: Callable[[RealLoad], float]) -> StatementCost:
        sizes = ((1 / statements(load), job_us(load) / statements(load)) for load in (small, large))
        return StatementCost.from_two_sizes(*sizes)

    def by_group(job_us: Callable[[RealLoad], float]) -> StatementCost:
        (one, us), (many, many_us) = zip(SIZES, (job_us(small), job_us(large)), strict=True)
        return StatementCost.from_two_sizes((one, us * one), (many, many_us * many))

    return Constants(
        measured_at=datetime.now(UTC).date().isoformat(),
        cores=psutil.cpu_count() or 1,
        enqueue=by_group(lambda load: load.enqueue_us),
        claim=by_statement(lambda load: load.claim_us, lambda load: load.claims),
        settle=by_statement(lambda load: load.settle_us, lambda load: load.settlements),
        listen_us=small.listen_us * SIZES[0],
        python=by_statement(lambda load: load.worker_us, lambda load: load.claims + load.settlements),
        generator=by_group(lambda load: load.generator_us),
        flush=flush,
        vacuum_us=large.vacuum_us,
        statistics_us=large.statistics_us,
        events=large.events,
    )


def measure_flush(server_dsn: str) -> StatementCost:
    """Return how long the commit of a group waits for the disk: how much longer it takes than one that does not."""
    with fresh_database(server_dsn) as dsn, closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            small, large = ((size, _flush_us(cursor, size)) for size in SIZES)
    return StatementCost.from_two_sizes(small, large)


def _flush_us(cursor: Any, size: int) -> float:
    times: dict[str, list[float]] = {"on": [], "off": []}
    for mode in list(times) * _FLUSHES:  # in turn: rows make an index deeper
        cursor.execute(f"SET synchronous_commit = {mode}")
        time.sleep(_PAUSE_SEC)
        began = time.perf_counter()
        cursor.execute(ENQUEUE, (f"groups of {size}", time.time(), size))
        times[mode].append(time.perf_counter() - began)
    return max(0.0, statistics.median(times["on"]) - statistics.median(times["off"])) * 1e6
