"""Counts of matching jobs by state, kept for a few seconds where they take long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dataloader.app.features.jobs.job_rows import JobRows
from dataloader.app.features.jobs.job_search import Filter, MatchCount

_MAX_AGE_SEC = 5.0
_MIN_DURATION_SEC = 0.015  # counts that take less are never kept
_MAX_FILTERS = 100


@dataclass(frozen=True)
class StateCounts:
    by_state: dict[str, MatchCount | None]
    counted_at: float
    age_sec: float = 0.0


class StateCounter:
    """Counts in the thread of the request, which may read from a standby. Called by any thread."""

    def __init__(self, rows: JobRows, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows, self._clock = rows, clock
        self._lock = threading.Lock()
        self._kept: dict[Filter, StateCounts] = {}  # under the lock; the oldest first

    def count(self, job_filter: Filter) -> StateCounts:
        """Count jobs that match the filter, whatever states it asks for."""
        anything = replace(job_filter, status=None, wait_state=None)
        began = self._clock()
        with self._lock:
            kept = self._kept.get(anything)
        if kept is not None and began - kept.counted_at < _MAX_AGE_SEC:
            return replace(kept, age_sec=began - kept.counted_at)
        counts = StateCounts(self._rows.count_states(anything), began)
        if self._clock() - began >= _MIN_DURATION_SEC:
            self._keep(anything, counts)
        return counts

    def _keep(self, job_filter: Filter, counts: StateCounts) -> None:
        with self._lock:
            self._kept.pop(job_filter, None)
            self._kept[job_filter] = counts
            if len(self._kept) > _MAX_FILTERS:
                del self._kept[next(iter(self._kept))]

    def forget(self) -> None:
        """Count again at the next request: jobs have been changed."""
        with self._lock:
            self._kept.clear()
