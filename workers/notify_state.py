"""Suppresses notifications while a worker process is busy, without missing a job.

A process with more jobs than threads claims again by itself and needs no notification. Before it waits for one it
requests notifications, makes sure that no transaction that has not seen the request is about to commit, and claims once
more. Decision 15 has the proof.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from app.errors import DatabaseUnavailable

_FULL_CLAIMS_BEFORE_SUPPRESSION = 3  # full claims in a row, until suppressing saves more than it costs
_FIRST_RECHECK_SEC, _MAX_RECHECK_SEC = 0.005, 0.25


class NotifyStateStore(Protocol):
    """The table with the state: `app.queue.workers.NotifyStateTable`."""

    def set_needs_notification(self, queues: Iterable[str], *, needs_notification: bool) -> None: ...

    def has_no_silent_insert(self, queue: str) -> bool: ...


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


class NotifyState:
    """Used by the claiming thread alone."""

    def __init__(self, store: NotifyStateStore) -> None:
        self._store = store
        self._queues: dict[str, _QueueState] = {}

    def update_after_claim(self, queue_name: str, *, is_full: bool) -> float | None:
        """Return the seconds until the next claim without a notification, or None to wait for one."""
        queue = self._queues.setdefault(queue_name, _QueueState())
        queue.full_claims = queue.full_claims + 1 if is_full else 0
        try:
            if not is_full:
                return self._request_notifications(queue_name, queue)
            if queue.full_claims >= _FULL_CLAIMS_BEFORE_SUPPRESSION and queue.stored is not _StoredState.SUPPRESSED:
                queue.stored = _StoredState.UNKNOWN  # if the next statement fails
                self._store.set_needs_notification([queue_name], needs_notification=False)
                queue.stored = _StoredState.SUPPRESSED
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
