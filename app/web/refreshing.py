"""A value that a background thread fetches, shared by all callers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class RefreshTimeout(Exception):
    """The fetch did not end within its timeout."""


class RefreshingValue(Generic[T]):
    """Fetches in a thread of its own, one fetch at a time, and keeps the last value.

    A database that does not answer delays a caller by the timeout at most, and the process has one thread more however
    many callers there are. After a failed fetch the next one starts when `retry_sec` have passed.
    """

    def __init__(
        self, fetch: Callable[[], T], *, name: str, timeout_sec: float, max_age_sec: float = 0.0, retry_sec: float = 0.0
    ) -> None:
        self._fetch, self._name = fetch, name
        self._timeout_sec, self._max_age_sec, self._retry_sec = timeout_sec, max_age_sec, retry_sec
        self._lock = threading.Lock()
        self._in_progress: Future[T] | None = None  # under the lock, as all that follow
        self._timed_out: Future[T] | None = None  # a fetch for which a caller has waited in vain
        self._last_fetched_at = self._last_failed_at = -math.inf
        self.value: T | None = None
        self.error: BaseException | None = None  # of the last fetch, unless it succeeded

    @property
    def age_sec(self) -> float:
        """Seconds since the fetch of the value started; infinite before the first value."""
        return time.monotonic() - self._last_fetched_at

    def get(self) -> T:
        """Return a value of at most `max_age_sec`. Raises the error of the fetch, or RefreshTimeout."""
        with self._lock:
            if self.value is not None and self.age_sec < self._max_age_sec:
                return self.value
        fetch = self.start()
        if fetch is None:
            assert self.error is not None  # noqa: S101 - for the types: there is no fetch after an error alone
            raise self.error
        try:
            return fetch.result(self._timeout_sec)
        except TimeoutError:
            if fetch.done():  # the fetch itself raised a TimeoutError
                raise
            raise RefreshTimeout(f"no answer within {self._timeout_sec:g} s") from None

    def refresh(self, timeout_sec: float | None = None) -> None:
        """Start a fetch unless one is in progress, and wait for its end; not for one that has timed out before."""
        fetch = self.start()
        if fetch is None or fetch is self._timed_out:
            return
        try:
            fetch.exception(self._timeout_sec if timeout_sec is None else timeout_sec)
        except TimeoutError:
            with self._lock:
                self._timed_out = fetch

    def start(self) -> Future[T] | None:
        """Return the fetch in progress or a new one; None if the last one failed less than `retry_sec` ago."""
        with self._lock:
            if self._in_progress is None:
                if time.monotonic() - self._last_failed_at < self._retry_sec:
                    return None
                self._in_progress = Future()
                threading.Thread(target=self._run, args=(self._in_progress,), name=self._name, daemon=True).start()
            return self._in_progress

    def _run(self, fetch: Future[T]) -> None:
        started_at = time.monotonic()
        try:
            value = self._fetch()
        except BaseException as error:
            with self._lock:
                self._in_progress, self._last_failed_at, self.error = None, time.monotonic(), error
            fetch.set_exception(error)
        else:
            with self._lock:
                self._in_progress, self._last_fetched_at = None, started_at
                self.value, self.error = value, None
            fetch.set_result(value)
