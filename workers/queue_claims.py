"""The claim of a queue: what is claimed, how, where the attempts go, and when to claim again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.job import ReleaseReason
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.claim_timers import CONFLICT_RETRY_SEC, DueTimer
from dataloader.workers.claimer import Claimer
from dataloader.workers.notify_state import NotifyState, UnwantedNotifications
from dataloader.workers.queue_buffer import QueueBuffer

_log = log.get(__name__)
_UNKNOWN_TASK_INTERVAL_SEC = 1.0
# A run of another process may make room in a limited queue, or a transaction unlock a key, without a notification.
_LIMIT_POLL_SEC = 0.25


class QueueClaims:
    """Claims for the queues of a process, one at a time, by any thread.

    State is under the dispatcher's lock, but for what says otherwise.
    """

    def __init__(
        self,
        queues: Mapping[str, QueueBuffer],
        lock: threading.Lock,
        *,
        claimer: Claimer,
        notify_state: NotifyState | UnwantedNotifications,
        on_retry: Callable[[], None],
    ) -> None:
        """`on_retry` is called under the lock when the next claim without a notification may be due earlier."""
        self._queues, self._lock = queues, lock
        self._claimer, self._notify_state, self._on_retry = claimer, notify_state, on_retry
        self.due = DueTimer()
        self.is_running = False  # read by any thread, as the next two
        self.is_stopping = False
        self.database_down = False  # the last claim failed
        self.memory_high = False
        self._outage_logged = False  # written by the claiming thread
        self.last_claim_at = clock()  # when a claim or poll last returned; read by any thread, as the next
        self.last_cycle_at = clock()  # when a claim last returned, or a wait on a working LISTEN connection ended

    @property
    def may_run(self) -> bool:
        return not self.is_running and not self.database_down

    def is_needed(self, buffer: QueueBuffer) -> bool:
        return buffer.needs_claim and self.may_run and self._has_memory

    @property
    def _has_memory(self) -> bool:
        """Whether to claim at all: while memory is high the process runs one job, of whichever queue."""
        return not self.memory_high or not any(b.idle_count < b.threads or b.attempts for b in self._queues.values())

    def run(self, buffer: QueueBuffer, kept_count: int) -> None:
        """Claim for this queue. The caller takes `kept_count` attempts itself. The lock is released meanwhile."""
        self.is_running = True
        self._lock.release()
        try:
            self._run_without_lock(buffer, kept_count)
        finally:
            self._lock.acquire()
            self.is_running = False

    def _run_without_lock(self, buffer: QueueBuffer, kept_count: int) -> None:
        promoted = False
        try:
            if (recovered := self._claimer.recover()) is not None:  # first: these jobs count against the rest
                self._hand_out(self._queues[recovered[0]], recovered[1], kept_count=0)
            began = clock()
            with self._lock:
                count = min(buffer.claim_size, 1) if self.memory_high else buffer.claim_size
                if count <= 0 or not self._has_memory or self.is_stopping:
                    return
                request = buffer.claim_request(count, began, promote_due=self.due.promote_due)
                promoted = request is not None and request.promote_due
                buffer.may_have_work, self.due.promote_due = False, self.due.promote_due and not promoted
            if request is None:
                return
            attempts, claimed_count, hint = self._claimer.claim(buffer.queue, count, request)
        except DatabaseUnavailable as error:
            self._on_outage(buffer, error, promoted=promoted)
            return
        self._hand_out(buffer, attempts, kept_count)
        self.last_claim_at = self.last_cycle_at = now = clock()
        if self._outage_logged:
            _log.info("database.available")
            self._outage_logged = False
        is_full = claimed_count >= count
        with self._lock:
            buffer.was_full = is_full
            may_have_more = buffer.record_claim(request, hint, is_full=is_full, began=began, now=now)
            self.due.record_claim(hint, now, may_have_more=may_have_more, promoted=promoted)
            if may_have_more or self.due.promote_due:
                buffer.may_have_work = True
            if not may_have_more and (buffer.settings.has_concurrency or hint.skipped):
                stuck_sec = math.inf if buffer.settings.has_concurrency else now - (buffer.stuck_since or now)
                buffer.retry_at = now + min(_LIMIT_POLL_SEC, max(CONFLICT_RETRY_SEC, stuck_sec))
            self.database_down = False
            self._on_retry()
        if request.is_from_front and not is_full:
            self._defer_unknown_tasks(buffer)
        if is_full or not may_have_more:
            self._update_notify_state(buffer, claimed_count, is_full=is_full)

    def _hand_out(self, buffer: QueueBuffer, attempts: list[Attempt], kept_count: int) -> None:
        """Put attempts where the threads of the queue find them."""
        if not attempts:
            return
        with self._lock:
            if not self.is_stopping:
                buffer.add(attempts, clock())
                if len(attempts) > kept_count:
                    buffer.available.notify()  # it wakes the next: short jobs end before many threads are awake
                return
        self._claimer.release(attempts, ReleaseReason.SHUTDOWN)  # the claim was in progress when the stop came

    def _on_outage(self, buffer: QueueBuffer, error: DatabaseUnavailable, *, promoted: bool) -> None:
        now = clock()
        with self._lock:
            buffer.may_have_work = self.database_down = True
            self.due.promote_due = self.due.promote_due or promoted
            for each in self._queues.values():
                each.poll.poll_soon(now)
            self._on_retry()
        if not self._outage_logged:
            _log.warning("database.unavailable", error=str(error))
        self._outage_logged = True

    def _defer_unknown_tasks(self, buffer: QueueBuffer) -> None:
        now, check_at = clock(), buffer.next_unknown_task_check_at
        if now < check_at:
            with self._lock:  # a job that comes a moment after a check would wait until the next poll
                buffer.retry_at = min(buffer.retry_at or check_at, check_at)
                self._on_retry()
            return
        buffer.next_unknown_task_check_at = now + _UNKNOWN_TASK_INTERVAL_SEC
        with suppress(DatabaseUnavailable):  # the next claim reports it
            self._claimer.defer_unknown_tasks(buffer.queue)

    def _update_notify_state(self, buffer: QueueBuffer, claimed_count: int, *, is_full: bool) -> None:
        recheck_sec = self._notify_state.update_after_claim(buffer.queue, jobs=claimed_count, is_full=is_full)
        with self._lock:
            if recheck_sec == 0:
                buffer.may_have_work = True
            elif recheck_sec is not None:
                buffer.retry_at = min(buffer.retry_at or math.inf, clock() + recheck_sec)
                self._on_retry()
