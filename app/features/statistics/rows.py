"""Aggregates job events to statistics, and records the depths of queues."""

from __future__ import annotations

from dataloader.app.db.encoding import array
from dataloader.app.state.statistics import MAX_RECENT_RUNS, JobCounts, Statistics

MAX_EVENTS_PER_BATCH = 10_000


class StatisticsWriter(Statistics):
    """Writes what Statistics reads."""

    def aggregate(self, limit: int = MAX_EVENTS_PER_BATCH) -> float | None:
        """Aggregate the next events; return how old they are, in seconds, if there are more, else None.

        Safe to call from several processes.
        """
        if not self._execute("has_unread_events")[0][0]:
            return None
        parameters = {"schema": self._executor.schema, "limit": limit, "runs": MAX_RECENT_RUNS}
        rows = self._execute("aggregate_events", parameters)
        return float(rows[0][1]) if rows and rows[0][0] >= limit else None

    def prune(self) -> None:
        """Delete statistics of old minutes, quarters and hours."""
        self._execute("prune_statistics")

    def record_depths(self) -> None:
        """Record the current queue depths, at most once a minute."""
        ages = JobCounts(self._executor).oldest_ready()
        self._execute("record_depths", {"queues": array(ages), "ages": array(ages.values())})
