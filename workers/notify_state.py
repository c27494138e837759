"""Which inserts notify this process: those that it cannot find by itself. Decision 15 has the proof."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.workers import NotifyStateTable
from dataloader.pipelines.portable import clock

_FULL_CLAIMS_BEFORE_SUPPRESSION = 3  # full claims in a row, until suppressing saves more than it costs
# So many jobs are claimed from one suppression to the next: while a transaction of hours is open, every insert into the
# queue reads all versions of the record. Fewer inserts than that cost less when they notify.
_JOBS_PER_SUPPRESSION = 500
_FIRST_RECHECK_SEC, _MAX_RECHECK_SEC = 0.005, 0.25
_UNWANTED_INTERVAL_SEC = 60.0


class _StoredState(Enum):
    """Whether inserts into a queue notify this process, as the database has it."""

    UNKNOWN = auto()  # inserts notify
    SUPPRESSED = auto()
    REQUESTED = auto()  # a transaction may not have seen the request
    NEEDED = auto()


@dataclass
class _QueueState:
    stored: _StoredState = _StoredState.UNKNOWN
    full_claims: int = 0
    recheck_sec: float = _FIRST_RECHECK_SEC
    jobs: int = _JOBS_PER_SUPPRESSION  # claimed since the last suppression; the first one is free


class UnwantedNotifications:
    """Keeps inserts from notifying a process that polls. The table is unlogged: it is written again now and then."""

    def __init__(self, store: NotifyStateTable) -> None:
        self._store = store
        self._next_write_at: dict[str, float] = {}  # by queue

    def update_after_claim(self, queue_name: str, *, jobs: int, is_full: bool) -> float | None:
        if clock() >= self._next_write_at.get(queue_name, 0.0):
            with suppress(DatabaseUnavailable):
                self._store.set_needs_notification([queue_name], needs_notification=False)
                self._next_write_at[queue_name] = clock() + _UNWANTED_INTERVAL_SEC
        return None

    def clear(self) -> None:
        self._next_write_at.clear()


class NotifyState:
    """Suppresses notifications while a worker process is busy. Used by the claiming thread alone.

    A process with more jobs than threads claims again by itself and needs no notification. Before it waits for one it
    requests notifications, makes sure that no transaction that has not seen the request is about to commit, and claims
    once more. Decision 15 has the proof.
    """

    def __init__(self, store: NotifyStateTable) -> None:
        self._store = store
        self._queues: dict[str, _QueueState] = {}

    def update_after_claim(self, queue_name: str, *, jobs: int, is_full: bool) -> float | None:
        """Return the seconds until the next claim without a notification, or None to wait for one."""
        queue = self._queues.setdefault(queue_name, _QueueState())
        queue.jobs += jobs
        queue.full_claims = queue.full_claims + 1 if is_full else 0
        try:
            if not is_full:
                return self._request_notifications(queue_name, queue)
            is_busy = queue.full_claims >= _FULL_CLAIMS_BEFORE_SUPPRESSION and queue.jobs >= _JOBS_PER_SUPPRESSION
            if is_busy and queue.stored is not _StoredState.SUPPRESSED:
                queue.stored = _StoredState.UNKNOWN  # if the next statement fails
                self._store.set_needs_notification([queue_name], needs_notification=False)
                queue.stored, queue.jobs = _StoredState.SUPPRESSED, 0
        except DatabaseUnavailable:
            queue.stored = _StoredState.UNKNOWN
        return None

    def _request_notifications(self, queue_name: str, queue: _QueueState) -> float | None:
        if queue.stored is _StoredState.NEEDED:
            return None
        if queue.stored is not _StoredState.REQUESTED:
            self._store.set_needs_notification([queue_name], needs_notification=True)
            queue.stored, queue.recheck_sec = _StoredState.REQUESTED, _FIRST_RECHECK_SEC
        if self._store.has_no_silent_insert(queue_name):
            queue.stored = _StoredState.NEEDED
            return 0.0
        queue.recheck_sec = min(_MAX_RECHECK_SEC, 2 * queue.recheck_sec)
        return queue.recheck_sec

    def clear(self) -> None:
        """Forget all states after a connection was lost: the database may have lost them."""
        self._queues.clear()
