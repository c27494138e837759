"""Signals for autoscalers, over HTTP and as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import Field

from app import log
from app.admin.api_keys import Scope
from app.admin.scaling import DEFAULT_TARGET_WAIT_SEC, QueueReading, QueueScaling, Scaling, ScalingSignals, summarize
from app.db.statements import Executor
from app.errors import DatabaseUnavailable, DataloaderError
from app.web.auth.guard import current_actor
from app.web.caches import RefreshingValue, RefreshTimeout
from app.web.options import WebOptions
from app.web.problems import DATABASE_PROBLEMS
from app.web.routing import ApiBlueprint
from app.web.schemas import QueryModel

_LOG = log.get(__name__)
_MAX_AGE_SEC = 2.0
_METRICS: tuple[tuple[str, str, Callable[[QueueScaling], float | None]], ...] = (
    ("wanted_threads", "Threads that the running and the ready jobs ask for.", lambda queue: queue.wanted_threads),
    ("wait_p95_seconds", "Wait of the jobs started in five minutes, p95.", lambda queue: queue.wait_p95_sec),
    ("due_soon", "Scheduled jobs and schedules due in five minutes.", lambda queue: queue.due_soon),
    ("busy_threads", "Running jobs of live worker processes.", lambda queue: queue.busy_threads),
    ("idle_threads", "Threads without a job, of worker processes that claim.", lambda queue: queue.idle_threads),
    ("draining_workers", "Worker processes that claim no more jobs.", lambda queue: queue.draining),
)


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
        families = []
        for name, about, value in _METRICS:
            family = GaugeMetricFamily(f"dataloader_{name}", about, labels=("queue",))
            for queue in queues:
                if queue.queue in self._queues and (number := value(queue)) is not None:
                    family.add_metric((queue.queue,), number)
            families.append(family)
        return families


def create_scaling_blueprint(scaling: CachedScaling) -> ApiBlueprint:
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
