"""Measures what the parts of a job's life cost: the CPU of each session and program in two loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import psutil  # type: ignore[import-untyped]

from benchmarks.queue_model import Constants, Load, StatementCost, find_saturation
from benchmarks.real_load import RealLoad, run_load

SIZES = (20, 80)  # jobs of the groups whose costs are measured
LOAD_SHARE = 0.7  # of saturation: none of those at which the model is checked


def measure(server_dsn: str, load: Load) -> Constants:
    """Find the saturation, and measure a load below it with groups of two sizes: costs depend on how busy the caches
    and the scheduler are."""
    saturation = find_saturation(load, lambda one: run_load(server_dsn, one, waits=False).done_per_sec)
    rate = saturation * LOAD_SHARE
    small, large = (run_load(server_dsn, replace(load, jobs_per_sec=rate, group=size)) for size in SIZES)
    return fit(small, large, saturation)


def fit(small: RealLoad, large: RealLoad, saturation: float) -> Constants:
    def by_statement(job_us: Callable[[RealLoad], float], statements: Callable[[RealLoad], float]) -> StatementCost:
        sizes = ((1 / statements(load), job_us(load) / statements(load)) for load in (small, large))
        return StatementCost.from_two_sizes(*sizes)

    def by_group(job_us: Callable[[RealLoad], float]) -> StatementCost:
        (one, us), (many, many_us) = zip(SIZES, (job_us(small), job_us(large)), strict=True)
        return StatementCost.from_two_sizes((one, us * one), (many, many_us * many))

    return Constants(
        measured_at=datetime.now(UTC).date().isoformat(),
        cores=psutil.cpu_count() or 1,
        saturation=saturation,
        enqueue=by_group(lambda load: load.enqueue_us),
        claim=by_statement(lambda load: load.claim_us, lambda load: load.claims),
        settle=by_statement(lambda load: load.settle_us, lambda load: load.settlements),
        listen_us=small.listen_us * SIZES[0],
        python=by_statement(lambda load: load.worker_us, lambda load: load.claims + load.settlements),
        generator=by_group(lambda load: load.generator_us),
        flush=by_statement(lambda load: load.flush_us, lambda load: load.flushes),
        vacuum_us=large.vacuum_us,
        statistics_us=large.statistics_us,
        events=large.events,
        others=max(small.others, large.others),
    )
