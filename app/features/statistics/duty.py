"""Aggregates events into statistics, and records the depths of queues."""

from __future__ import annotations

from dataloader.app.features.statistics.rows import StatisticsWriter
from dataloader.pipelines.portable import clock
from dataloader.workers.duties import PRUNE_INTERVAL_SEC, Duty, DutyContext

INTERVAL_SEC = 2.0  # between two checks for new events
_DEPTHS_INTERVAL_SEC = 30.0  # recorded once a minute, and none may be left out
_REST_FACTOR = 9  # statistics that are not late rest this many times as long as a batch took: jobs come first
_MAX_STATISTICS_LAG_SEC = 60.0  # later statistics do not rest at all
AGGREGATE_BATCH = 10_000  # events


def create_duties(context: DutyContext) -> list[Duty]:
    statistics = StatisticsWriter(context.executor)
    return [
        Duty("statistics", INTERVAL_SEC, lambda: _aggregate(statistics), is_paced=True),
        Duty("statistics-prune", PRUNE_INTERVAL_SEC, statistics.prune, is_paced=True),
        Duty("queue-depths", _DEPTHS_INTERVAL_SEC, statistics.record_depths, is_paced=True),
    ]


def _aggregate(statistics: StatisticsWriter) -> float | None:
    started_at = clock()
    lag_sec = statistics.aggregate(AGGREGATE_BATCH)
    return None if lag_sec is None else rest_sec(clock() - started_at, lag_sec)


def rest_sec(batch_sec: float, lag_sec: float) -> float:
    """Return how long statistics rest after a batch: the later they are, the shorter."""
    return _REST_FACTOR * batch_sec * max(0.0, 1 - lag_sec / _MAX_STATISTICS_LAG_SEC)
