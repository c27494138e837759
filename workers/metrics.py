"""The state of a worker pool, the counters of its attempts, and both as Prometheus metrics."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol
from uuid import UUID

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from dataloader.workers.listener import ListenMode, ListenState

_BUCKETS_SEC = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
    *(1800, 3600, 7200, 14_400, 43_200, math.inf),
)
_MAX_CHECK_NAMES = 1_000
_MAX_SCHEDULE_NAMES = 1_000


@dataclass(frozen=True)
class PoolState:
    """The state of a pool, read without a query."""

    ready: bool
    worker_id: UUID
    name: str
    listener: str
    listen_mode: str
    self_test_age_sec: float | None
    claim_age_sec: float
    dispatch_age_sec: float
    consuming: bool
    heartbeat_age_sec: float
    outage: str | None  # why the last heartbeat did not reach the database
    reaper_age_sec: float | None  # None: it leaves leases of others to other processes
    threads: int
    busy: int
    queues: Mapping[str, Mapping[str, int]]
    running: Sequence[Mapping[str, Any]]
    crashed_threads: Sequence[str]
    memory: Mapping[str, Any] | None  # None: it is not watched, or not read yet


class _DurationHistogram:
    """A histogram of seconds by queue and task. The library's takes a lock and walks the buckets for each value."""

    def __init__(self, name: str, documentation: str, labels: tuple[str, str]) -> None:
        self._name, self._documentation, self._labels = name, documentation, labels
        self._lock = threading.Lock()
        self._series: dict[tuple[str, str], tuple[list[int], list[float]]] = {}  # counts of buckets, and the sum

    def observe(self, queue: str, task: str, durations: Collection[float]) -> None:
        with self._lock:
            counts, total = self._series.setdefault((queue, task), ([0] * len(_BUCKETS_SEC), [0.0]))
            for seconds in durations:
                counts[bisect_left(_BUCKETS_SEC, seconds)] += 1
            total[0] += sum(durations)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        with self._lock:
            for labels, (counts, total) in self._series.items():
                sums = zip(map(floatToGoString, _BUCKETS_SEC), accumulate(counts), strict=True)
                family.add_metric(labels, [(bound, float(count)) for bound, count in sums], total[0])
        yield family


class PoolCounters:
    """What became of attempts and webhooks. May be used by any thread."""

    def __init__(self) -> None:
        self._attempts = Counter(
            "dataloader_attempts",
            "Attempts that ended, by the status of the job after them; queued: it is retried.",
            ("queue", "task", "status"),
            registry=None,
        )
        self._runs, self._waits = (
            _DurationHistogram(name, documentation, ("queue", "task"))
            for name, documentation in (
                ("dataloader_job_run_seconds", "How long attempts ran."),
                ("dataloader_job_wait_seconds", "From when a job was last due until it was claimed."),
            )
        )
        self.leases_lost = Counter(
            "dataloader_leases_lost", "Attempts that were stopped because their lease was lost.", registry=None
        )
        self.fenced_writes = Counter(
            "dataloader_fenced_writes", "Settlements refused because another run owns the job.", registry=None
        )
        self._checks = Counter(
            "dataloader_checks", "Data checks of attempts that ended.", ("task", "name", "outcome"), registry=None
        )
        self._check_names: set[tuple[str, str]] = set()  # of a task; those beyond a thousand share one series
        self._firings = Counter(
            "dataloader_schedule_firings",
            "Nominal times of schedules that this process accounted for.",
            ("schedule", "outcome"),
            registry=None,
        )
        self._schedule_names: set[str] = set()  # those beyond a thousand share one series
        webhooks = Counter("dataloader_webhooks_sent", "Webhooks sent, by outcome.", ("outcome",), registry=None)
        self.webhooks_delivered, self.webhooks_failed = webhooks.labels("delivered"), webhooks.labels("failed")
        self._all = (
            self._attempts,
            self._runs,
            self._waits,
            self.leases_lost,
            self.fenced_writes,
            self._checks,
            self._firings,
            webhooks,
        )

    def record(
        self, queue: str, task: str, status: str, *, run_durations: Collection[float], wait_durations: Collection[float]
    ) -> None:
        """Count attempts that ended with this status: one for each run duration."""
        self._attempts.labels(queue, task, status).inc(len(run_durations))
        self._runs.observe(queue, task, run_durations)
        self._waits.observe(queue, task, wait_durations)

    def record_checks(self, task: str, checks: Iterable[Mapping[str, Any]]) -> None:
        for check in checks:
            names, name = self._check_names, check["name"]
            if len(names) < _MAX_CHECK_NAMES:
                names.add((task, name))
            label = name if (task, name) in names else "other"
            for outcome in ("passed", "warned", "failed"):  # a series that begins at 1 has no increase
                self._checks.labels(task, label, outcome).inc(outcome == check["outcome"])

    def record_firing(self, schedule: str, outcome: str) -> None:
        if len(self._schedule_names) < _MAX_SCHEDULE_NAMES:
            self._schedule_names.add(schedule)
        self._firings.labels(schedule if schedule in self._schedule_names else "other", outcome).inc()

    def collect(self) -> Iterator[Metric]:
        for counter in self._all:
            for metric in counter.collect():
                metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
                yield metric


def state_metrics(state: PoolState) -> Iterator[Metric]:
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
    mode = GaugeMetricFamily("dataloader_listen_mode", "1 for the value of DL_LISTEN.", labels=("mode",))
    for listen_mode in ListenMode:
        mode.add_metric((listen_mode.value,), state.listen_mode == listen_mode.value)
    yield mode
    for name, documentation, value in (
        ("dataloader_consuming", "Whether the dispatcher completed a cycle in time.", float(state.consuming)),
        ("dataloader_claim_age_seconds", "Since a claim or poll last returned.", state.claim_age_sec),
        ("dataloader_dispatch_age_seconds", "Since the dispatcher last completed a cycle.", state.dispatch_age_sec),
        ("dataloader_heartbeat_age_seconds", "Since leases were last renewed.", state.heartbeat_age_sec),
        ("dataloader_reaper_age_seconds", "Since expired leases were last looked for.", state.reaper_age_sec),
        (
            "dataloader_memory_high",
            "Whether one job runs at a time because memory is high.",
            float(state.memory is not None and state.memory["high"]),
        ),
        ("dataloader_crashed_threads", "Threads that ended with a bug.", float(len(state.crashed_threads))),
    ):
        if value is not None:
            yield GaugeMetricFamily(name, documentation, value)


class MeasuredPool(Protocol):
    """A worker pool, as its metrics see it."""

    counters: PoolCounters

    def state(self) -> PoolState: ...


class PoolCollector(Collector):
    """Reads the pool, and never the database. Without a pool there are no metrics."""

    def __init__(self, pool: Callable[[], MeasuredPool | None]) -> None:
        self._pool = pool

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        pool = self._pool()
        if pool is not None:
            yield from state_metrics(pool.state())
            yield from pool.counters.collect()
