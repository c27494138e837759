"""Values that background threads refresh for all requests: API keys, queue settings and live workers."""

from __future__ import annotations

import hmac
import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable, DataloaderError, QueueDraining, SchemaMissing
from dataloader.app.http.auth.api_keys import TOKEN_PATTERN, ActiveKey, ActiveKeys, ApiKeys, key_digest
from dataloader.app.queue.labels import describe_missing
from dataloader.app.queue.queues import LiveWorker, QueueControl, QueueSettings, QueueState, find_requirements
from dataloader.app.wording import suggestion

K = TypeVar("K", bound=Hashable)
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
        self.wait_for(self.start(), timeout_sec)

    def wait_for(self, fetch: Future[T] | None, timeout_sec: float | None = None) -> None:
        """Wait for the end of a fetch that `start` has returned; not for one that has timed out before."""
        if fetch is None or fetch is self._timed_out:
            return
        try:
            fetch.exception(self._timeout_sec if timeout_sec is None else timeout_sec)
        except TimeoutError:
            with self._lock:
                self._timed_out = fetch

    @property
    def is_fetching(self) -> bool:
        with self._lock:
            return self._in_progress is not None

    def get_recent(self, *, refresh_after_sec: float, max_age_sec: float, wait_sec: float | None = None) -> T | None:
        """Return a value of at most `max_age_sec`, or None when none comes in time: within the timeout, or within
        `wait_sec`. One that is older than `refresh_after_sec` is replaced in the background."""
        if self.age_sec > max_age_sec and wait_sec is not None:
            wait([fetch] if (fetch := self.start()) else [], wait_sec)
        elif self.age_sec > max_age_sec:
            self.refresh()
        elif self.age_sec > refresh_after_sec:
            self.start()
        return self.value if self.age_sec <= max_age_sec else None

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


class RefreshingValues(Generic[K, T]):
    """One refreshing value for each of the keys that were read last. `make_fetch` makes the fetch of a key, which only
    one thread at a time calls."""

    def __init__(
        self, make_fetch: Callable[[K], Callable[[], T]], *, name: str, timeout_sec: float, max_count: int
    ) -> None:
        self._make_fetch, self._name, self._timeout_sec, self._max_count = make_fetch, name, timeout_sec, max_count
        self._lock = threading.Lock()
        self._values: dict[K, RefreshingValue[T]] = {}  # under the lock; the last one read is the last one

    def is_fetching(self, key: K) -> bool:
        with self._lock:
            value = self._values.get(key)
        return value is not None and value.is_fetching

    def get_recent(
        self, key: K, *, refresh_after_sec: float, max_age_sec: float, wait_sec: float | None = None
    ) -> T | None:
        """As of RefreshingValue."""
        with self._lock:
            value = self._values.pop(key, None) or self._make_value(key)
            self._values[key] = value
            for oldest in list(self._values)[: -self._max_count]:
                del self._values[oldest]
        return value.get_recent(refresh_after_sec=refresh_after_sec, max_age_sec=max_age_sec, wait_sec=wait_sec)

    def _make_value(self, key: K) -> RefreshingValue[T]:
        times = {"timeout_sec": self._timeout_sec, "retry_sec": self._timeout_sec}
        return RefreshingValue(self._make_fetch(key), name=self._name, **times)


_log = log.get("dataloader.app.http.auth.guard")
_DUMMY_DIGEST = bytes(32)
_USE_INTERVAL_SEC = 60.0


@dataclass(frozen=True, kw_only=True)
class KeyCacheTimes:
    """In seconds."""

    max_age_sec: float = 5.0  # a revoked key is rejected after this time
    refresh_after_sec: float = 2.5  # older keys are refreshed in the background
    max_outage_sec: float = 300.0  # how long known keys are accepted while the database is unavailable
    unknown_key_interval_sec: float = 1.0  # an unknown key refreshes keys of this age: it may be new
    wait_timeout_sec: float = 1.5  # how long a request waits for a refresh
    retry_interval_sec: float = 1.0  # between two refreshes when one has failed


@dataclass(frozen=True)
class _KnownKeys:
    by_id: Mapping[str, ActiveKey]
    has_any_key: bool


class KeyCache:
    """All valid keys, refreshed in the background. A request waits only for the first refresh, and after a pause."""

    def __init__(self, keys: ApiKeys, times: KeyCacheTimes | None = None) -> None:
        self._keys, self._times = keys, times or KeyCacheTimes()
        self._known = RefreshingValue(
            self._fetch,
            name="refresh-api-keys",
            timeout_sec=self._times.wait_timeout_sec,
            retry_sec=self._times.retry_interval_sec,
        )
        self._lock = threading.Lock()
        self._used_key_ids: set[str] = set()  # since the last refresh; under the lock, as the next
        self._last_use_recorded_at: dict[str, float] = {}
        self._outage_logged = False

    def find(self, token: str) -> ActiveKey | None:
        """Return the valid key of this token, or None. Raises DatabaseUnavailable if the keys are not known."""
        match = TOKEN_PATTERN.fullmatch(token)
        if match is None:
            return None
        key = self.get(match[1])
        # An unknown id takes as long as a known one, so that the time reveals no ids.
        is_match = hmac.compare_digest(key_digest(token), key.digest if key else _DUMMY_DIGEST)
        if key is None or not is_match:
            return None
        self.record_use(key.id)
        return key

    def get(self, key_id: str) -> ActiveKey | None:
        """Return the valid key with this id, or None. Raises DatabaseUnavailable if the keys are not known."""
        key = self._current().by_id.get(key_id)
        if key is None and self._known.age_sec >= self._times.unknown_key_interval_sec:
            self._known.refresh()
            key = self._current_or_stale().by_id.get(key_id)
        if key is not None and key.expires_in_sec is not None and key.expires_in_sec < self._known.age_sec:
            return None
        return key

    @property
    def has_keys(self) -> bool:
        """Whether there has ever been a key. Raises DatabaseUnavailable if that is not known."""
        return self._current().has_any_key

    def record_use(self, key_id: str) -> None:
        """Store the time of use with the next refresh, once a minute for each key."""
        now = time.monotonic()
        if now - self._last_use_recorded_at.get(key_id, -1e9) < _USE_INTERVAL_SEC:
            return
        with self._lock:
            self._last_use_recorded_at[key_id] = now
            self._used_key_ids.add(key_id)
        self._known.start()

    def _current(self) -> _KnownKeys:
        age_sec = self._known.age_sec
        if age_sec >= self._times.max_age_sec:
            self._known.refresh()
        elif age_sec >= self._times.refresh_after_sec:
            self._known.start()
        return self._current_or_stale()

    def _current_or_stale(self) -> _KnownKeys:
        known = self._known.value
        if known is None or self._known.age_sec >= self._times.max_outage_sec:
            raise DatabaseUnavailable("the API keys cannot be read") from self._known.error
        return known

    def _fetch(self) -> _KnownKeys:
        try:
            active = self._keys.active()
        except SchemaMissing:  # tables of a version without keys
            active = ActiveKeys((), False)
        except DataloaderError as error:
            if not self._outage_logged:
                _log.warning("auth.keys_stale", error=str(error))
            self._outage_logged = True
            raise
        except Exception:
            _log.exception("auth.keys_failed")
            raise
        self._outage_logged = False
        with self._lock:
            used, self._used_key_ids = self._used_key_ids, set()
        if used:
            try:
                self._keys.record_use(used)
            except DataloaderError as error:
                _log.warning("auth.key_use_not_recorded", error=str(error))
        return _KnownKeys({key.id: key for key in active.keys}, active.has_any_key)


_SETTINGS_MAX_AGE_SEC = 1.0
_WARNINGS_MAX_AGE_SEC = 0.2
_REFRESH_TIMEOUT_SEC = 0.5
_FIRST_REFRESH_TIMEOUT_SEC = 10.0  # before it nothing is known
NO_WORKER_WARNING = "no worker process is live; the job waits until one is started"
IsVisible = Callable[[str], bool]


def run_warnings(
    queue: str,
    task: str,
    workers: Sequence[LiveWorker],
    settings: QueueSettings | None,
    *,
    can_see_queue: IsVisible = lambda _: True,
    can_see_task: IsVisible = lambda _: True,
) -> list[str]:
    """List the reasons why no live worker would claim a job of this task in this queue; empty if one would.

    A similar name is suggested if the caller may know it.
    """
    found = []
    if settings is not None and settings.state is QueueState.PAUSED:
        found.append(f"queue {queue!r} is paused{f': {settings.note}' if settings.note else ''}")
    if not workers:
        return [*found, NO_WORKER_WARNING]
    serving = [worker for worker in workers if queue in worker.queues]
    knowing = [worker for worker in serving if task in worker.tasks]
    if not serving:
        names = frozenset(name for worker in workers for name in worker.queues if can_see_queue(name))
        found.append(f"no live worker serves queue {queue!r}{suggestion(queue, names)}")
    requires = None if knowing else find_requirements(task, serving)
    if requires is not None:
        found.append(describe_missing(task, requires, [worker.labels for worker in serving], queue=queue))
    elif not any(task in worker.tasks for worker in workers):
        names = frozenset(name for worker in serving or workers for name in worker.tasks if can_see_task(name))
        found.append(f"no live worker knows {task!r}{suggestion(task, names)}")
    elif serving and not knowing:
        found.append(f"no live worker of queue {queue!r} knows {task!r}")
    elif knowing and not any(worker.can_claim for worker in knowing):
        found.append(f"all live workers of queue {queue!r} that know {task!r} are drained or shut down")
    return found


class QueueSettingsCache:
    """The settings of queues and what live workers serve, refreshed in the background: a trigger runs no query.

    `own_worker` is what the workers of this process serve: they are not in the database yet when the process starts.
    """

    def __init__(self, queues: QueueControl, own_worker: LiveWorker | None = None) -> None:
        self._queues, self._own_worker = queues, own_worker
        self._known = RefreshingValue(self._fetch, name="refresh-queue-settings", timeout_sec=_REFRESH_TIMEOUT_SEC)

    def reject_if_draining(self, queue: str) -> None:
        """Raises QueueDraining. Without a database nothing is rejected here: the enqueue fails."""
        if self._known.value is None:
            self._known.refresh(_FIRST_REFRESH_TIMEOUT_SEC)
        elif self._known.age_sec >= _SETTINGS_MAX_AGE_SEC:
            self._known.refresh()
        settings = self._settings_and_workers(queue)[0]
        if settings is not None and settings.state is QueueState.DRAINING:
            raise QueueDraining(queue, settings.note)

    def run_warnings(self, queue: str, task: str, *, can_see_queue: IsVisible, can_see_task: IsVisible) -> list[str]:
        """List the reasons why no live worker would run a job; first refreshed, as a worker may just have started."""
        if self._will_run(queue, task):
            return []
        if self._known.age_sec >= _WARNINGS_MAX_AGE_SEC:
            self._known.refresh()
        settings, workers = self._settings_and_workers(queue)
        if workers is None:
            return []
        return run_warnings(queue, task, workers, settings, can_see_queue=can_see_queue, can_see_task=can_see_task)

    def _will_run(self, queue: str, task: str) -> bool:
        settings, workers = self._settings_and_workers(queue)
        if workers is None:
            return True
        if settings is not None and settings.state is QueueState.PAUSED:
            return False
        return any(queue in worker.queues and task in worker.tasks and worker.can_claim for worker in workers)

    def _settings_and_workers(self, queue: str) -> tuple[QueueSettings | None, list[LiveWorker] | None]:
        if self._known.value is None:
            return None, None
        settings, workers = self._known.value
        if workers is not None and self._own_worker and not any(queue in worker.queues for worker in workers):
            workers = [*workers, self._own_worker]
        return settings.get(queue), workers

    def _fetch(self) -> tuple[dict[str, QueueSettings], list[LiveWorker] | None]:
        """Without a database no settings are known: old ones must not reject a trigger."""
        try:
            return self._queues.settings(), self._queues.live_workers()
        except DataloaderError:
            return {}, None
