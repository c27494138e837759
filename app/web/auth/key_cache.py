"""The valid API keys, held in memory: a request with a key costs no database query."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from app import log
from app.admin.api_keys import TOKEN_PATTERN, ActiveKey, ActiveKeys, ApiKeys, key_digest
from app.errors import DatabaseUnavailable, DataloaderError, SchemaMissing
from app.web.refreshing import RefreshingValue

_log = log.get("app.web.auth.guard")
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
