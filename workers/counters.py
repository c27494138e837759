"""Counters of a worker process for Prometheus."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

_BUCKETS_SEC = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
    *(1800, 3600, 7200, 14_400, 43_200, math.inf),
)


class _Durations:
    """Durations by bucket. prometheus_client's Histogram would take several times as long, under a lock each time."""

    def __init__(self) -> None:
        self._counts = [0] * len(_BUCKETS_SEC)
        self._sum_sec = 0.0

    def add(self, durations: Collection[float]) -> None:
        for seconds in durations:
            self._counts[bisect_left(_BUCKETS_SEC, seconds)] += 1
        self._sum_sec += sum(durations)

    def add_to(self, family: HistogramMetricFamily, labels: tuple[str, str]) -> None:
        bounds = map(floatToGoString, _BUCKETS_SEC)
        family.add_metric(labels, list(zip(bounds, accumulate(self._counts), strict=True)), self._sum_sec)


class AttemptCounters:
    """What became of attempts, and how long they waited and ran. May be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # for all fields
        self._attempts: defaultdict[tuple[str, str, str], int] = defaultdict(int)  # by queue, task, status
        self._runs: defaultdict[tuple[str, str], _Durations] = defaultdict(_Durations)  # by queue and task
        self._waits: defaultdict[tuple[str, str], _Durations] = defaultdict(_Durations)
        self._lost_lease_count = self._fenced_count = 0

    def record(
        self, queue: str, task: str, status: str, *, run_durations: Collection[float], wait_durations: Collection[float]
    ) -> None:
        """Count attempts that ended with this status: one for each run duration."""
        with self._lock:
            self._attempts[queue, task, status] += len(run_durations)
            self._runs[queue, task].add(run_durations)
            self._waits[queue, task].add(wait_durations)

    def record_lease_lost(self) -> None:
        with self._lock:
            self._lost_lease_count += 1

    def record_fenced(self) -> None:
        with self._lock:
            self._fenced_count += 1

    def collect(self) -> Iterator[Metric]:
        attempts = CounterMetricFamily(
            "dataloader_attempts",
            "Attempts that ended, by the status of the job after them; queued: it is retried.",
            labels=("queue", "task", "status"),
        )
        runs, waits = (
            HistogramMetricFamily(name, documentation, labels=("queue", "task"))
            for name, documentation in (
                ("dataloader_job_run_seconds", "How long attempts ran."),
                ("dataloader_job_wait_seconds", "From when a job was last due until it was claimed."),
            )
        )
        with self._lock:
            for labels, count in self._attempts.items():
                attempts.add_metric(labels, count)
            for family, series in ((runs, self._runs), (waits, self._waits)):
                for queue_task, durations in series.items():
                    durations.add_to(family, queue_task)
            lost_lease_count, fenced_count = self._lost_lease_count, self._fenced_count
        lost = "Attempts that were stopped because their lease was lost."
        fenced = "Settlements refused because another run owns the job."
        yield from (attempts, runs, waits)
        yield CounterMetricFamily("dataloader_leases_lost", lost, value=lost_lease_count)
        yield CounterMetricFamily("dataloader_fenced_writes", fenced, value=fenced_count)
