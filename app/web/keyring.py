"""The valid keys, held in memory: a request that shows one costs no trip to the database."""

from __future__ import annotations

import hmac
import threading
import time
from dataclasses import dataclass

from app import log
from app.errors import DatabaseUnavailable, DataloaderError, SchemaMissing
from app.queue.keys import TOKEN, Keys, Live, Ring, digest_of

_log = log.get("app.web.auth")
_NOBODYS = bytes(32)
_USED_EVERY = 60.0  # seconds between two notes that a key is used


@dataclass(frozen=True, kw_only=True)
class RingTimes:
    """In seconds."""

    fresh: float = 5.0  # for so long a look at the keys counts: a key that is revoked is refused after that
    ahead: float = 2.5  # the next look is taken aside when the last one is as old
    outage: float = 300.0  # and for so long while the database is away
    unknown: float = 1.0  # a key that is not known may have been made since the last look, if that is as old
    patience: float = 1.5  # how long a request waits for a look
    again: float = 1.0  # between two looks, when one has failed


class KeyRing:
    """All keys, looked at every few seconds by a thread that lives for one look. Whoever asks is kept waiting only for
    the first look, and when nobody has asked for a while."""

    def __init__(self, keys: Keys, times: RingTimes | None = None) -> None:
        self._keys, self._times = keys, times or RingTimes()
        self._lock = threading.Lock()
        self._ring: Ring | None = None  # replaced whole under the lock, as the next; read by anyone
        self._by_id: dict[str, Live] = {}
        self._seen_at = -1e9  # under the lock, as all that follow
        self._failed_at = -1e9
        self._failure: DataloaderError | None = None
        self._looking: threading.Event | None = None
        self._given_up: threading.Event | None = None  # a look that somebody has waited for long enough
        self._used: set[str] = set()
        self._noted: dict[str, float] = {}
        self._told = False

    def find(self, token: str) -> Live | None:
        """The valid key that this text is. Raises DatabaseUnavailable, if it cannot be known."""
        known = TOKEN.fullmatch(token)
        if known is None:
            return None
        found = self.by_id(known[1])
        # As long for an id that is not there: which ids are is nobody's business.
        right = hmac.compare_digest(digest_of(token), found.digest if found else _NOBODYS)
        if found is None or not right:
            return None
        self.note_use(found.id)
        return found

    def by_id(self, key_id: str) -> Live | None:
        self._freshen()
        found = self._by_id.get(key_id)
        if found is None and time.monotonic() - self._seen_at >= self._times.unknown:
            self._look(wait=True)
            found = self._by_id.get(key_id)
        if found is None or (found.seconds_left is not None and found.seconds_left < time.monotonic() - self._seen_at):
            return None
        return found

    def knows_at_once(self, token: str | None) -> bool:
        """Would nobody be kept waiting who asks about this key, or about there being any?"""
        if self._ring is None or time.monotonic() - self._seen_at >= self._times.fresh:
            return False
        known = None if token is None else TOKEN.fullmatch(token)
        return known is None or known[1] in self._by_id

    @property
    def configured(self) -> bool:
        """Was there ever a key? Raises DatabaseUnavailable, if it cannot be known."""
        return self._freshen().configured

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _freshen(self) -> Ring:
        ring, age = self._ring, time.monotonic() - self._seen_at
        if ring is not None and age < self._times.ahead:
            return ring
        if ring is None or age >= self._times.fresh:
            self._look(wait=True)
        else:
            self._look(wait=False)
        ring, age = self._ring, time.monotonic() - self._seen_at
        if ring is None or age >= self._times.outage:
            raise DatabaseUnavailable("the keys cannot be looked at") from self._failure
        return ring

    def _look(self, *, wait: bool) -> None:
        with self._lock:
            looking = self._looking
            if looking is None:
                if time.monotonic() - self._failed_at < self._times.again:
                    return
                looking = self._looking = threading.Event()
                threading.Thread(target=self._turn, args=(looking,), name="keys", daemon=True).start()
            if looking is self._given_up:
                return  # a database that is silent: nobody else waits for this look
        if wait and not looking.wait(self._times.patience):
            with self._lock:
                self._given_up = looking

    def _turn(self, looking: threading.Event) -> None:
        try:
            began = time.monotonic()
            try:
                ring = self._keys.ring()
            except SchemaMissing:  # tables of a time before keys
                ring = Ring((), False)
            with self._lock:
                self._ring, self._by_id, self._seen_at = ring, {key.id: key for key in ring.keys}, began
                self._failure, self._told = None, False
                used, self._used = self._used, set()
            if used:
                self._keys.touch(used)
        except Exception as error:
            self._fail(error)
        finally:
            with self._lock:
                self._looking = None
            looking.set()

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._failed_at = time.monotonic()
            told, self._told = self._told, True
            self._failure = error if isinstance(error, DataloaderError) else DataloaderError(type(error).__name__)
        if not isinstance(error, DataloaderError):
            _log.exception("auth.keys.failed")
        elif not told:
            _log.warning("auth.keys.away", error=str(error))

    def note_use(self, key_id: str) -> None:
        now = time.monotonic()
        if now - self._noted.get(key_id, -1e9) < _USED_EVERY:
            return
        with self._lock:
            self._noted[key_id] = now
            self._used.add(key_id)
        self._look(wait=False)
