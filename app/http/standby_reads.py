"""Lets the statements of some requests be executed on a standby, and records how old their data is.

A route says that its answer may be a few seconds old. What it reads then comes from the standby while that is fresh
enough and answers, else from the primary. All other statements go to the primary.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dataloader.app import log
from dataloader.app.db.pool import Pool
from dataloader.app.db.standby_age import StandbyAge
from dataloader.app.db.statements import Executor
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.http.caches import RefreshingValue

DATA_AGE_HEADER = "X-Data-Age"
# A browser that has changed something reads from the primary until the standby has the change.
CHANGED_COOKIE = "dl_changed"
MAX_LAG_KEY = "DATA_MAX_LAG_SEC"  # in the app's configuration; without it there is no standby
_CHECK_INTERVAL_SEC = 0.5
_CHECK_TIMEOUT_SEC = 0.5
_MAX_CHECK_AGE_SEC = 2.0  # of a standby that was asked and has not answered
_LOG = log.get("dataloader.app.http.standby")


@dataclass
class Reads:
    """What the statements of one request have read."""

    age_sec: float | None = None  # of the oldest data; None: nothing came from the standby
    uses_primary: bool = False  # a statement had to go there: the others follow, so that no later one sees less

    def record(self, age_sec: float) -> None:
        self.age_sec = max(age_sec, self.age_sec or 0.0)


_READS: ContextVar[Reads | None] = ContextVar("reads that a standby may answer", default=None)


@contextmanager
def allowing_standby() -> Iterator[Reads]:
    """Let a standby answer the statements of this thread."""
    reads = Reads()
    token = _READS.set(reads)
    try:
        yield reads
    finally:
        _READS.reset(token)


def data_age_sec() -> float | None:
    """Return how old the data is that this request has read so far; None: it is the primary's."""
    reads = _READS.get()
    return None if reads is None else reads.age_sec


def record_data_age(age_sec: float | None) -> None:
    """Record the age of data that another thread has read."""
    reads = _READS.get()
    if reads is not None and age_sec is not None:
        reads.record(age_sec)


class StandbyExecutor:
    """Executes on the primary, and on the standby what `allowing_standby` allows. An Executor."""

    def __init__(self, primary: Pool, standby: Pool, *, max_lag_sec: float) -> None:
        self.schema = primary.schema
        self._primary, self._standby, self._max_lag_sec = primary, standby, max_lag_sec
        self._as_of = RefreshingValue(
            StandbyAge(primary, standby).check,
            name="check-standby",
            timeout_sec=_CHECK_TIMEOUT_SEC,
            retry_sec=_CHECK_INTERVAL_SEC,
        )
        self._lock = threading.Lock()
        self._failed_at = -math.inf  # under the lock, as what follows
        self._is_used = False
        self._reads = {"standby": 0, "primary": 0}

    def execute(
        self, name: str, parameters: Mapping[str, Any] | None = None, *, timeout_sec: float | None = None
    ) -> list[tuple[Any, ...]]:
        reads = _READS.get()
        if reads is None:
            return self._primary.execute(name, parameters, timeout_sec=timeout_sec)
        age_sec = None if reads.uses_primary else self.age_sec()
        if age_sec is not None and age_sec <= self._max_lag_sec:
            try:
                rows = self._standby.execute(name, parameters, timeout_sec=timeout_sec)
            except Exception as error:  # a conflict with recovery, an older schema, an outage: the primary is asked
                self._record_failure(name, error)
            else:
                reads.record(age_sec)
                self._count("standby")
                return rows
        reads.uses_primary = True
        self._count("primary")
        return self._primary.execute(name, parameters, timeout_sec=timeout_sec)

    def transaction(self) -> AbstractContextManager[Executor]:
        """A transaction of the primary."""
        return self._primary.transaction()

    def age_sec(self) -> float | None:
        """Return how old the standby's data is at most; None: it does not answer."""
        if self._as_of.age_sec >= _CHECK_INTERVAL_SEC:
            self._as_of.refresh()
        now, as_of, check_age_sec = time.monotonic(), self._as_of.value, self._as_of.age_sec
        is_current = check_age_sec < _MAX_CHECK_AGE_SEC and now - check_age_sec > self._failed_at
        age_sec = now - as_of if is_current and as_of is not None and as_of > -math.inf else None
        self._log_change(age_sec)
        return age_sec

    def _record_failure(self, statement: str, error: Exception) -> None:
        """After an outage, or a query that a conflict ended, nothing is read from the standby until the next check."""
        _LOG.debug("standby.read_failed", statement=statement, error=str(error))
        if isinstance(error, DatabaseUnavailable):
            with self._lock:
                self._failed_at = time.monotonic()

    def _log_change(self, age_sec: float | None) -> None:
        is_used = age_sec is not None and age_sec <= self._max_lag_sec
        with self._lock:
            has_changed, self._is_used = is_used != self._is_used, is_used
        if not has_changed:
            return
        if is_used:
            _LOG.info("standby.used")
        else:
            reason = (
                "it does not answer, or its age is not known" if age_sec is None else f"it is {age_sec:.0f} s behind"
            )
            _LOG.warning("standby.not_used", reason=reason, error=str(self._as_of.error or ""))

    def _count(self, server: str) -> None:
        with self._lock:
            self._reads[server] += 1

    def counts(self) -> dict[str, int]:
        """Return how many statements that a standby may answer each server has answered."""
        with self._lock:
            return dict(self._reads)


class StandbyCollector(Collector):
    """Metrics of reads from a standby."""

    def __init__(self, executor: StandbyExecutor) -> None:
        self._executor = executor

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        age_sec = self._executor.age_sec()
        about = "Whether the standby of DL_READ_DSN answers."
        yield GaugeMetricFamily("dataloader_standby_up", about, float(age_sec is not None))
        if age_sec is not None:
            about = "How old the standby's data is at most."
            yield GaugeMetricFamily("dataloader_standby_age_seconds", about, age_sec)
        about = "Statements that a standby may answer, by the server that answered."
        family = CounterMetricFamily("dataloader_standby_reads", about, labels=("server",))
        for server, count in self._executor.counts().items():
            family.add_metric((server,), count)
        yield family
