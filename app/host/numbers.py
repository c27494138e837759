"""What a process says of itself to Prometheus. Each process has numbers of its own: who scrapes one of several behind
one port is answered by one of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class ProcessNumbers(Collector):
    def __init__(self, *, works: bool, answers: bool) -> None:
        self._role = "both" if works and answers else "workers" if works else "api"
        self._began = time.time()

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        process = GaugeMetricFamily(
            "dataloader_process", "The process that was asked, and what it does: 1.", labels=("pid", "role")
        )
        process.add_metric((str(os.getpid()), self._role), 1)
        yield process
        yield GaugeMetricFamily(
            "dataloader_process_start_time_seconds", "When it began, in seconds since 1970.", self._began
        )
