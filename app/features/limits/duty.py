"""Wakes jobs that wait for a limit, probes open breakers and deletes old limits."""

from __future__ import annotations

from dataloader.app import log
from dataloader.app.features.limits.breakers import Breakers
from dataloader.app.features.limits.rows import Limits
from dataloader.workers.duties import HOURLY_SEC, Duty, DutyContext

_log = log.get(__name__)
_INTERVAL_SEC = 1.0
_MIN_RATE_INTERVAL_SEC = 0.005  # between two steps that wake jobs of rates
_NEXT_LIMITS_SEC = 0.05  # between two parts of all limits that jobs wait for


def create_duties(context: DutyContext) -> list[Duty]:
    limits, breakers = Limits(context.executor), Breakers(context.executor)
    return [
        Duty("limits", _INTERVAL_SEC, LimitsDuty(limits).run, has_work="has_limited_jobs", is_paced=True),
        Duty("breakers", _INTERVAL_SEC, lambda: _probe_breakers(breakers), has_work="has_open_breakers"),
        Duty("limits-prune", HOURLY_SEC, limits.prune),
    ]


class LimitsDuty:
    """Wakes jobs whose rate lets them start now, and those that wait for a limit that has room."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._cursor = ""

    def run(self) -> float | None:
        result = self._limits.wake(after=self._cursor)
        self._cursor = result.cursor
        if result.repaired:  # the end of a run should have done it
            _log.info("limited_jobs.repaired", jobs=result.repaired)
        if result.cursor:
            return _NEXT_LIMITS_SEC
        return None if result.next_start_in_sec is None else max(_MIN_RATE_INTERVAL_SEC, result.next_start_in_sec)


def _probe_breakers(breakers: Breakers) -> float | None:
    result = breakers.probe()
    for task in result.tasks:
        _log.info("breaker.half_open", task=task)
    return None if result.next_probe_in_sec is None else max(0.05, result.next_probe_in_sec)
