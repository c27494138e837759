"""Prometheus metrics: of queues, of the database, and of the connections to it."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flask import Response
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from dataloader.app import log
from dataloader.app.acts.feature import Feature, load_all
from dataloader.app.acts.metric_families import gauge
from dataloader.app.db.pool import Pool
from dataloader.app.db.statements import Executor
from dataloader.app.errors import DataloaderError
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.caches import RefreshingValue, RefreshTimeout
from dataloader.app.http.options import WebOptions
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.http.standby_reads import allowing_standby, record_data_age
from dataloader.app.queue.job import Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.state.statistics import JobCounts, Statistics

LOG = log.get("dataloader.app.http.metrics")
OTHER_QUEUES = "other"


@dataclass(frozen=True)
class QueueMetrics:
    """The number of jobs and the oldest ready job of each queue."""

    jobs: Mapping[tuple[str, str], int]  # (queue, status) → jobs
    estimated: frozenset[tuple[str, str]]  # the keys of `jobs` whose number is an estimate
    oldest_ready_sec: Mapping[str, float]
    age_sec: float | None  # of what a standby has answered, when it was read


class QueueCollector(Collector):
    """Reads the queues on each scrape. Without a database the scrape has the metrics of the process only."""

    def __init__(self, queue: JobQueue, options: WebOptions) -> None:
        self._queue, self._counts = queue, JobCounts(queue.executor)
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
        if metrics.age_sec is not None:
            record_data_age(metrics.age_sec + self._queue_metrics.age_sec)
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
        self._queue.ping()  # the primary: a standby may answer the rest
        with allowing_standby() as reads:
            counts, oldest_ready = self._counts.by_queue(), self._counts.oldest_ready()
        for count in counts:
            series = (self._queue_label(count.queue), str(count.status))
            jobs[series] += count.jobs
            if not count.exact:
                estimated.add(series)
        oldest: dict[str, float] = dict.fromkeys(self._registered_queues, 0.0)
        for queue, seconds in oldest_ready.items():
            label = self._queue_label(queue)
            oldest[label] = max(oldest.get(label, 0.0), seconds)
        return QueueMetrics(jobs, frozenset(estimated), oldest, reads.age_sec)

    def _queue_label(self, queue: str) -> str:
        """Callers may name any queue: unregistered ones share one label, to bound the number of series."""
        return queue if queue in self._registered_queues else OTHER_QUEUES


class DatabaseCollector(Collector):
    """Reads the database on a scrape, at most once per `max_age_sec`: the statements are bounded, but not free."""

    def __init__(
        self, pool: Pool, features: Iterable[Feature], *, max_age_sec: float = 15.0, timeout_sec: float = 1.5
    ) -> None:
        self._pool, self._readers = pool, tuple(load_all(features, "metrics"))
        self._snapshot = RefreshingValue(
            self._read, name="refresh-database-metrics", timeout_sec=timeout_sec, max_age_sec=max_age_sec
        )

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._pool_metrics()
        try:
            families = self._snapshot.get()
        except (DataloaderError, RefreshTimeout) as error:
            LOG.warning("metrics.database_unavailable", error=str(error))
            return
        except Exception:  # a bug here must not cost the scrape its other numbers
            LOG.exception("metrics.failed")
            return
        yield from families

    def _read(self) -> list[Metric]:
        return [*_database_metrics(self._pool), *(family for read in self._readers for family in read(self._pool))]

    def _pool_metrics(self) -> Iterator[Metric]:
        stats = self._pool.stats()
        connections = {"in_use": stats.in_use, "idle": stats.idle, "most": stats.size}
        about = "The API's connections: in use, idle, and the most there may be."
        yield gauge("dataloader_pool_connections", about, connections, label="state")
        yield GaugeMetricFamily("dataloader_pool_waiting", "Requests that wait for a connection.", stats.waiting)
        yield CounterMetricFamily(
            "dataloader_pool_exhausted", "Requests that got no connection in time.", stats.exhausted
        )


def _database_metrics(executor: Executor) -> Iterator[Metric]:
    numbers = Statistics(executor).database_metrics()
    yield gauge(
        "dataloader_dead_rows", "Dead rows that vacuum has not taken away yet.", numbers.dead_rows, label="table"
    )
    yield gauge("dataloader_live_rows", "Live rows, as the server estimates them.", numbers.live_rows, label="table")
    about = "Age of the oldest transaction in the database that this role may see."
    yield gauge("dataloader_oldest_transaction_seconds", about, numbers.oldest_transaction_sec)
    about = "The age, in transactions, of the oldest snapshot that delays vacuum."
    yield gauge("dataloader_oldest_snapshot_transactions", about, numbers.oldest_snapshot_xids)
    about = "The used share of the server's notification queue, from 0 to 1."
    yield gauge("dataloader_notification_queue_usage", about, numbers.notification_queue_usage)
    yield gauge("dataloader_workers_alive", "Worker processes with a recent heartbeat.", numbers.live_workers)


def create_queue_collector(site: Site) -> Collector:
    return QueueCollector(site.queue, site.options)


def create_metrics_blueprint(site: Site) -> ApiBlueprint:
    registry = site.registry
    blueprint = ApiBlueprint("metrics", "")

    @blueprint.get("/metrics", response=str, media_type="text/plain", scope=Scope.READ, standby=True)
    def get_metrics() -> Response:
        """Return the metrics in the text format of Prometheus.

        Without the database they are the metrics of the process, and `dataloader_database_up 0`.
        """
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    return blueprint
