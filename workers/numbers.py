"""A worker pool's numbers for Prometheus: those of this process alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from workers.listener import Hearing
from workers.pool import PoolState, WorkerPool
from workers.tally import BOUNDS, Counted, Spread


class PoolCollector(Collector):
    """Asks nobody but the pool itself. While there is none yet, it has no numbers."""

    def __init__(self, pool: Callable[[], WorkerPool | None]) -> None:
        self._pool = pool

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        pool = self._pool()
        if pool is not None:
            yield from _of_state(pool.state())
            yield from _of_tally(pool.counted())
            yield _counter("dataloader_webhooks_sent", "Webhooks sent, by what came of it.", ("outcome",), pool.sent())


def _of_state(state: PoolState) -> Iterator[Metric]:
    threads = GaugeMetricFamily("dataloader_worker_threads", "Worker threads.", labels=("queue",))
    busy = GaugeMetricFamily("dataloader_worker_busy_threads", "Worker threads that run a job.", labels=("queue",))
    for queue, line in state.queues.items():
        threads.add_metric((queue,), line["threads"])
        busy.add_metric((queue,), line["busy"])
    yield threads
    yield busy
    listener = GaugeMetricFamily(
        "dataloader_listener", "How the process hears of new jobs: 1 at the present state.", labels=("state",)
    )
    for hearing in Hearing:
        listener.add_metric((hearing.value,), state.listener == hearing.value)
    yield listener
    for name, meaning, value in (
        ("dataloader_consuming", "Whether the claim loop has completed a round in time.", float(state.consuming)),
        ("dataloader_claim_age_seconds", "Since a claim last came back.", state.claim_age_sec),
        ("dataloader_claim_round_age_seconds", "Since the claim loop last completed a round.", state.round_age_sec),
        ("dataloader_heartbeat_age_seconds", "Since leases were last renewed.", state.heartbeat_age_sec),
        ("dataloader_reaper_age_seconds", "Since dead runs were last looked for.", state.reaper_age_sec),
        ("dataloader_dead_threads", "Threads that met a bug.", float(len(state.dead))),
    ):
        yield GaugeMetricFamily(name, meaning, value)


def _of_tally(counted: Counted) -> Iterator[Metric]:
    yield _counter(
        "dataloader_tries_ended",
        "Tries that are over, by what became of the job; queued: it is tried again.",
        ("queue", "task", "status"),
        counted.ended,
    )
    yield _histogram("dataloader_job_run_seconds", "How long tries ran.", counted.ran)
    yield _histogram(
        "dataloader_job_wait_seconds", "From when a job was last due until it was claimed.", counted.waited
    )
    yield CounterMetricFamily(
        "dataloader_leases_lost", "Runs that were stopped for want of a lease.", counted.leases_lost
    )
    yield CounterMetricFamily(
        "dataloader_fenced_writes", "Ends that were refused, for the job was another's by then.", counted.fenced
    )


def _counter(name: str, meaning: str, labels: Iterable[str], values: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=tuple(labels))
    for which, value in values.items():
        family.add_metric((which,) if isinstance(which, str) else which, value)
    return family


def _histogram(name: str, meaning: str, spreads: Mapping[tuple[str, str], Spread]) -> Metric:
    family = HistogramMetricFamily(name, meaning, labels=("queue", "task"))
    bounds = [*(f"{bound:g}" if bound < 1e4 else str(int(bound)) for bound in BOUNDS), "+Inf"]  # noqa: PLR2004
    for which, spread in spreads.items():
        buckets = list(zip(bounds, accumulate(spread.counts), strict=True))
        family.add_metric(which, buckets, spread.total)
    return family
