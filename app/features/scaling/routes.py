"""Signals for autoscalers, over HTTP and as metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import Field

from dataloader.app import log
from dataloader.app.db.statements import Executor
from dataloader.app.errors import DatabaseUnavailable, DataloaderError
from dataloader.app.features.scaling.rows import (
    DEFAULT_TARGET_WAIT_SEC,
    QueueReading,
    QueueScaling,
    Scaling,
    ScalingSignals,
    summarize,
)
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.caches import RefreshingValue, RefreshTimeout
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import DATABASE_PROBLEMS
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import QueryModel
from dataloader.app.http.site import Site

_LOG = log.get(__name__)
_MAX_AGE_SEC = 2.0


class ScalingQuery(QueryModel):
    queue: Annotated[str | None, Field(min_length=1, description="Only this queue.")] = None
    target_wait_sec: Annotated[
        float, Field(gt=0, le=86_400, description="How long a ready job may wait for a thread.")
    ] = DEFAULT_TARGET_WAIT_SEC


class CachedScaling:
    """The signals of the last two seconds, which requests and scrapes share."""

    def __init__(self, executor: Executor, options: WebOptions) -> None:
        self._readings: RefreshingValue[Sequence[QueueReading]] = RefreshingValue(
            ScalingSignals(executor).read,
            name="refresh-scaling",
            timeout_sec=options.status_timeout_sec,
            max_age_sec=_MAX_AGE_SEC,
        )

    def get(self) -> Sequence[QueueReading]:
        """Raises DatabaseUnavailable if the database does not answer in time."""
        try:
            return self._readings.get()
        except RefreshTimeout as error:
            raise DatabaseUnavailable(str(error)) from error


class ScalingCollector(Collector):
    """The signals of registered queues as metrics."""

    def __init__(self, scaling: CachedScaling, queues: Iterable[str]) -> None:
        self._scaling, self._queues = scaling, frozenset(queues)

    def describe(self) -> Iterable[Metric]:
        return []  # otherwise registration would collect, and so query the database

    def collect(self) -> Iterable[Metric]:
        try:
            queues = summarize(self._scaling.get()).queues
        except DataloaderError as error:
            _LOG.warning("metrics.database_unavailable", error=str(error))
            return []
        except Exception:  # a bug here must not remove the other metrics
            _LOG.exception("metrics.failed")
            return []
        return list(_metrics([queue for queue in queues if queue.queue in self._queues]))


def _metrics(queues: Sequence[QueueScaling]) -> Iterator[Metric]:
    wanted = {queue.queue: queue.wanted_threads for queue in queues}
    yield _gauge("dataloader_wanted_threads", "Threads that running and ready jobs ask for.", wanted, label="queue")
    # NaN, not an absent series: a rule about it must not depend on when the last job started.
    waits_sec = {queue.queue: math.nan if queue.wait_p95_sec is None else queue.wait_p95_sec for queue in queues}
    about = "The wait of jobs that started in the last five minutes, p95; NaN: none has."
    yield _gauge("dataloader_wait_p95_seconds", about, waits_sec, label="queue")
    due = {queue.queue: queue.due_soon for queue in queues}
    about = "Scheduled jobs, and schedules, of the next five minutes."
    yield _gauge("dataloader_due_soon", about, due, label="queue")
    busy = {queue.queue: queue.busy_threads for queue in queues}
    yield _gauge("dataloader_busy_threads", "Running jobs of live worker processes.", busy, label="queue")
    idle = {queue.queue: queue.idle_threads for queue in queues}
    about = "Threads without a job, of worker processes that claim."
    yield _gauge("dataloader_idle_threads", about, idle, label="queue")
    draining = {queue.queue: queue.draining for queue in queues}
    about = "Live worker processes that claim no more jobs."
    yield _gauge("dataloader_draining_workers", about, draining, label="queue")


def _gauge(name: str, meaning: str, values: Mapping[str, float], *, label: str) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=(label,))
    for label_value, value in values.items():
        family.add_metric((label_value,), value)
    return family


def _create_scaling(site: Site) -> CachedScaling:
    return CachedScaling(site.executor, site.options)


def create_scaling_collector(site: Site) -> Collector:
    return ScalingCollector(site.shared(_create_scaling), site.options.queues)


def create_scaling_blueprint(site: Site) -> ApiBlueprint:
    scaling = site.shared(_create_scaling)
    blueprint = ApiBlueprint("scaling", "/api/v1", problems=DATABASE_PROBLEMS)

    @blueprint.get("/scaling", query=ScalingQuery, response=Scaling, scope=Scope.READ)
    def get_scaling(query: ScalingQuery) -> Scaling:
        """Get the signals for an autoscaler: how many threads jobs ask for, how long they wait, what is due soon.

        At most two seconds old. The sums are over the queues listed.
        """
        caller, wanted = current_actor(), query.queue
        readings = [
            reading
            for reading in scaling.get()
            if caller.can_see_queue(reading.queue) and wanted in (None, reading.queue)
        ]
        return summarize(readings, query.target_wait_sec)

    return blueprint
