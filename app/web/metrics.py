"""Prometheus metrics of HTTP requests and queues."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flask import Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from app import log
from app.admin.api_keys import Scope
from app.admin.counts import JobCounts
from app.errors import DataloaderError
from app.queue.job import Status
from app.queue.jobs import JobQueue
from app.web.options import WebOptions
from app.web.refreshing import RefreshingValue, RefreshTimeout
from app.web.routing import ApiBlueprint

LOG = log.get("app.web.metrics")
OTHER_QUEUES = "other"
_BUCKETS_SEC = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RequestMetrics:
    """Counters and histograms of HTTP requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter("requests_total", "Requests that came in.", registry=registry)
        self._responses = Counter(
            "responses_total", "Responses by route template and status.", ("route", "status"), registry=registry
        )
        self._duration = Histogram(
            "request_duration_seconds", "Time to answer.", ("route",), buckets=_BUCKETS_SEC, registry=registry
        )
        self.feedback = Counter("feedback_total", "Votes on the service.", ("vote",), registry=registry)

    def start(self) -> None:
        self._requests.inc()

    def finish(self, route: str, status: str, seconds: float) -> None:
        self._responses.labels(route, status).inc()
        self._duration.labels(route).observe(seconds)


@dataclass(frozen=True)
class QueueMetrics:
    """The number of jobs and the oldest ready job of each queue."""

    jobs: Mapping[tuple[str, str], int]  # (queue, status) → jobs
    estimated: frozenset[tuple[str, str]]  # the keys of `jobs` whose number is an estimate
    oldest_ready_sec: Mapping[str, float]


class QueueCollector(Collector):
    """Reads the queues on each scrape. Without a database the scrape has the metrics of the process only."""

    def __init__(self, queue: JobQueue, options: WebOptions) -> None:
        self._counts = JobCounts(queue.executor)
        self._registered_queues = frozenset(options.queues)
        self._queue_metrics = RefreshingValue(
            self._read,
            name="refresh-metrics",
            timeout_sec=options.status_timeout_sec,
            max_age_sec=options.metrics_max_age_sec,
        )

    def describe(self) -> Iterable[Metric]:
        return []  # otherwise registration would collect, and so query the database

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("dataloader_database_up", "Whether the queue's tables could be read.")
        jobs = GaugeMetricFamily("dataloader_jobs", "Jobs by queue and status.", labels=("queue", "status"))
        estimated = GaugeMetricFamily(
            "dataloader_jobs_estimated", "1 where dataloader_jobs is an estimate.", labels=("queue", "status")
        )
        oldest = GaugeMetricFamily("dataloader_oldest_ready_seconds", "Age of the oldest ready job.", labels=("queue",))
        try:
            metrics = self._queue_metrics.get()
        except (DataloaderError, RefreshTimeout) as error:
            LOG.warning("metrics.database_unavailable", error=str(error))
            up.add_metric((), 0)
            return [up]
        except Exception:  # a bug here must not remove the other metrics
            LOG.exception("metrics.failed")
            return []
        up.add_metric((), 1)
        for (queue, status), count in metrics.jobs.items():
            jobs.add_metric((queue, status), count)
            estimated.add_metric((queue, status), (queue, status) in metrics.estimated)
        for queue, seconds in metrics.oldest_ready_sec.items():
            oldest.add_metric((queue,), seconds)
        return [up, jobs, estimated, oldest]

    def _read(self) -> QueueMetrics:
        jobs: Tally[tuple[str, str]] = Tally(
            {(queue, status.value): 0 for queue in self._registered_queues for status in Status}
        )
        estimated = set()
        for count in self._counts.by_queue():
            series = (self._queue_label(count.queue), str(count.status))
            jobs[series] += count.jobs
            if not count.exact:
                estimated.add(series)
        oldest: dict[str, float] = dict.fromkeys(self._registered_queues, 0.0)
        for queue, seconds in self._counts.oldest_ready().items():
            label = self._queue_label(queue)
            oldest[label] = max(oldest.get(label, 0.0), seconds)
        return QueueMetrics(jobs, frozenset(estimated), oldest)

    def _queue_label(self, queue: str) -> str:
        """Callers may name any queue: unregistered ones share one label, to bound the number of series."""
        return queue if queue in self._registered_queues else OTHER_QUEUES


def create_metrics_blueprint(registry: CollectorRegistry, options: WebOptions) -> ApiBlueprint:
    blueprint = ApiBlueprint("metrics", "", options.max_json_depth)

    @blueprint.get("/metrics", response=str, media_type="text/plain", scope=Scope.READ)
    def get_metrics() -> Response:
        """Return the metrics in the text format of Prometheus.

        Without the database they are the metrics of the process, and `dataloader_database_up 0`.
        """
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    return blueprint
