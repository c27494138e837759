"""Prometheus metrics of this process's worker pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workers.listener import ListenState
from workers.pool import PoolState, WorkerPool


class PoolCollector(Collector):
    """Reads the pool, and never the database. Without a pool there are no metrics."""

    def __init__(self, pool: Callable[[], WorkerPool | None]) -> None:
        self._pool = pool

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        pool = self._pool()
        if pool is not None:
            yield from _state_metrics(pool.state())
            yield from pool.counters.collect()
            sent = CounterMetricFamily("dataloader_webhooks_sent", "Webhooks sent, by outcome.", labels=("outcome",))
            for outcome, count in pool.webhook_counts().items():
                sent.add_metric((outcome,), count)
            yield sent


def _state_metrics(state: PoolState) -> Iterator[Metric]:
    threads = GaugeMetricFamily("dataloader_worker_threads", "Worker threads.", labels=("queue",))
    busy = GaugeMetricFamily("dataloader_worker_busy_threads", "Worker threads that run a job.", labels=("queue",))
    for queue, counts in state.queues.items():
        threads.add_metric((queue,), counts["threads"])
        busy.add_metric((queue,), counts["busy"])
    yield threads
    yield busy
    listener = GaugeMetricFamily("dataloader_listener", "1 for the listener's current state.", labels=("state",))
    for listen_state in ListenState:
        listener.add_metric((listen_state.value,), state.listener == listen_state.value)
    yield listener
    for name, documentation, value in (
        ("dataloader_consuming", "Whether the dispatcher completed a cycle in time.", float(state.consuming)),
        ("dataloader_claim_age_seconds", "Since a claim last returned.", state.claim_age_sec),
        ("dataloader_dispatch_age_seconds", "Since the dispatcher last completed a cycle.", state.dispatch_age_sec),
        ("dataloader_heartbeat_age_seconds", "Since leases were last renewed.", state.heartbeat_age_sec),
        ("dataloader_reaper_age_seconds", "Since expired leases were last looked for.", state.reaper_age_sec),
        ("dataloader_crashed_threads", "Threads that ended with a bug.", float(len(state.crashed_threads))),
    ):
        yield GaugeMetricFamily(name, documentation, value)
