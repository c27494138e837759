"""The numbers for Prometheus, in a registry of the app's own."""

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
from app.errors import DataloaderError
from app.queue.counts import Counts
from app.queue.job import Status
from app.queue.jobqueue import JobQueue
from app.queue.keys import Scope
from app.web.bounded import Bounded, NoAnswer
from app.web.operations import Subject
from app.web.options import WebOptions

LOG = log.get("app.web.metrics")
OTHER = "other"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Traffic:
    """What the HTTP side counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter("requests_total", "Requests that came in.", registry=registry)
        self._responses = Counter(
            "responses_total", "Responses by route template and status.", ("route", "status"), registry=registry
        )
        self._duration = Histogram(
            "request_duration_seconds", "Time to answer.", ("route",), buckets=_BUCKETS, registry=registry
        )
        self._of: dict[tuple[str, str], tuple[Counter, Histogram]] = {}  # there are few, and looking one up takes long
        self.feedback = Counter("feedback_total", "Votes on the service.", ("vote",), registry=registry)

    def began(self) -> None:
        self._requests.inc()

    def ended(self, route: str, status: str, seconds: float) -> None:
        of = self._of.get((route, status))
        if of is None:
            of = self._of[route, status] = self._responses.labels(route, status), self._duration.labels(route)
        responses, duration = of
        responses.inc()
        duration.observe(seconds)


@dataclass(frozen=True)
class QueueNumbers:
    """The state of the queues at one look."""

    jobs: Mapping[tuple[str, str], int]  # (queue, status) → jobs
    estimated: frozenset[tuple[str, str]]  # those of them that were not counted one by one
    oldest_ready_sec: Mapping[str, float]


class QueueCollector(Collector):
    """Looks into the table when a scrape comes. Without a database, the scrape says so and has the rest."""

    def __init__(self, queue: JobQueue, options: WebOptions) -> None:
        self._counts = Counts(queue.source)
        self._known = frozenset(options.queues)
        self._numbers = Bounded(
            self._look, patience_sec=options.status_patience_sec, fresh_sec=options.metrics_fresh_sec
        )

    def describe(self) -> Iterable[Metric]:
        return []  # or registering would already ask the database

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("dataloader_database_up", "Whether the queue's tables could be read.")
        jobs = GaugeMetricFamily("dataloader_jobs", "Jobs by queue and status.", labels=("queue", "status"))
        guessed = GaugeMetricFamily(
            "dataloader_jobs_estimated", "1 where dataloader_jobs is an estimate.", labels=("queue", "status")
        )
        oldest = GaugeMetricFamily("dataloader_oldest_ready_seconds", "Age of the oldest ready job.", labels=("queue",))
        try:
            numbers = self._numbers.get()
        except (DataloaderError, NoAnswer) as error:
            LOG.warning("metrics.database.away", error=str(error))
            up.add_metric((), 0)
            return [up]
        except Exception:  # a bug here must not cost the scrape its other numbers
            LOG.exception("metrics.failed")
            return []
        up.add_metric((), 1)
        for (queue, status), count in numbers.jobs.items():
            jobs.add_metric((queue, status), count)
            guessed.add_metric((queue, status), (queue, status) in numbers.estimated)
        for queue, seconds in numbers.oldest_ready_sec.items():
            oldest.add_metric((queue,), seconds)
        return [up, jobs, guessed, oldest]

    def _look(self) -> QueueNumbers:
        jobs: Tally[tuple[str, str]] = Tally({(queue, status.value): 0 for queue in self._known for status in Status})
        estimated = set()
        for count in self._counts.by_queue():
            series = (self._label(count.queue), str(count.status))
            jobs[series] += count.jobs
            if not count.exact:
                estimated.add(series)
        oldest: dict[str, float] = dict.fromkeys(self._known, 0.0)
        for queue, seconds in self._counts.oldest_ready().items():
            label = self._label(queue)
            oldest[label] = max(oldest.get(label, 0.0), seconds)
        return QueueNumbers(jobs, frozenset(estimated), oldest)

    def _label(self, queue: str) -> str:
        """Callers invent queues at will; a metric for each would never end."""
        return queue if queue in self._known else OTHER


def metrics(registry: CollectorRegistry, options: WebOptions) -> Subject:
    subject = Subject("metrics", "", options.max_json_depth)

    @subject.get("/metrics", answer=str, media_type="text/plain", scope=Scope.READ)
    def scrape() -> Response:
        """Read the numbers, in the text format of Prometheus.

        Without the database the answer holds what the process knows, and `dataloader_database_up 0`.
        """
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    return subject
