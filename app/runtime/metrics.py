"""Metrics of a process. Each process has its own: of several processes behind one port, one answers a scrape."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class ProcessCollector(Collector):
    def __init__(self, *, has_workers: bool, has_api: bool) -> None:
        self._role = "both" if has_workers and has_api else "workers" if has_workers else "api"
        self._started_at = time.time()

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        process = GaugeMetricFamily(
            "dataloader_process", "The answering process and its role; always 1.", labels=("pid", "role")
        )
        process.add_metric((str(os.getpid()), self._role), 1)
        yield process
        yield GaugeMetricFamily(
            "dataloader_process_start_time_seconds",
            "When the process started, in seconds since 1970.",
            self._started_at,
        )
