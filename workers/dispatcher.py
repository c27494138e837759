"""Dispatches claimed jobs to worker threads. One idle thread listens: it waits for notifications and claims for all.

The listening thread blocks in `poll()` on the process's one LISTEN connection. When a queue is notified, a scheduled
job falls due or the poll interval is over, it claims as many jobs as threads of that queue are idle, hands them out,
and runs one of them; another idle thread listens then. While every thread is busy the heartbeat thread listens, so that
cancels arrive and the server need not keep notifications for this process.

Short jobs are prefetched: they wait in the queue's buffer, from which any thread takes the next one without a lock. A
thread that finds the buffer low claims more while the others go on. One claim at a time is in progress.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from dataloader.app.queue.job import ReleaseReason
from dataloader.app.queue.workers import HeartbeatResult
from dataloader.pipelines.portable import clock
from dataloader.pipelines.retry import Policy
from dataloader.workers.attempt import Attempt
from dataloader.workers.claim_timers import PollTimer
from dataloader.workers.claimer import Claimer
from dataloader.workers.listener import ListenerLike, Notifications
from dataloader.workers.notify_state import NotifyState, UnwantedNotifications
from dataloader.workers.queue_buffer import PREFETCH_BELOW_SEC, BufferSettings, QueueBuffer
from dataloader.workers.queue_claims import QueueClaims
from dataloader.workers.threads import WakeupPipe

_MAX_PREFETCH_AGE_SEC = 0.5  # a prefetched job that has found no thread is released


class Dispatcher:
    """State is under `_lock`, but for what says otherwise."""

    def __init__(
        self,
        queue_threads: Mapping[str, int],
        *,
        claimer: Claimer,
        listener: ListenerLike,
        notify_state: NotifyState | UnwantedNotifications,
        poll_policies: Mapping[str, Policy],
        on_control: Callable[[str], None],
    ) -> None:
        self._lock = threading.Lock()
        self.queues = {
            name: QueueBuffer(name, threads, threading.Condition(self._lock), PollTimer(poll_policies[name]))
            for name, threads in queue_threads.items()
        }
        self._claimer, self._listener = claimer, listener
        self._notify_state, self._on_control = notify_state, on_control
        self.claims = QueueClaims(
            self.queues,
            self._lock,
            claimer=claimer,
            notify_state=notify_state,
            on_retry=self._wake_listening_thread_if_due,
        )
        self._wakeup = WakeupPipe()
        self._has_listening_thread = self._heartbeat_listening = False  # the heartbeat only listens, and claims nothing
        self.jobs_left: int | None = None  # that may start; None: any number; under the lock
        self._listening_until = 0.0  # written by the listening thread

    # ── called by worker threads ────────────────────────────────────────────────────────────────────────────────

    def next_attempt(self, buffer: QueueBuffer) -> Attempt | None:
        """Return the next attempt for this queue, or None when the pool is stopping, or has started all its jobs."""
        attempt = None if self.claims.is_stopping else self._next_attempt(buffer)
        if attempt is not None and self.jobs_left is not None and not self._count_start():
            self._claimer.release([attempt], ReleaseReason.SHUTDOWN)
            return None
        if attempt is None:
            self._recover_claim()
        return attempt

    def _count_start(self) -> bool:
        """Whether one more job may start."""
        with self._lock:
            may_start = bool(self.jobs_left)
            self.jobs_left = max(0, (self.jobs_left or 0) - 1)
            return may_start

    def _next_attempt(self, buffer: QueueBuffer) -> Attempt | None:
        if buffer.may_have_work and buffer.is_low and self.claims.may_run:
            self._refill(buffer)
        try:
            return buffer.attempts.popleft()[0]
        except IndexError:
            return self._wait_for_attempt(buffer)

    def _refill(self, buffer: QueueBuffer) -> None:
        """Claim as a thread that has just ended an attempt, while the others take what is left in the buffer."""
        with self._lock:
            if self.claims.is_running or self.claims.is_stopping:
                return
            self._become_idle(buffer)
            try:
                self._claim(buffer)
            finally:
                buffer.become_busy()

    def _become_idle(self, buffer: QueueBuffer) -> None:
        if not any(other.idle_count for other in self.queues.values()):
            self.claims.last_cycle_at = clock()  # no thread had to claim until now
        buffer.idle_count += 1

    def _wait_for_attempt(self, buffer: QueueBuffer) -> Attempt | None:
        with self._lock:
            self._become_idle(buffer)
            if buffer.settings.has_concurrency or buffer.settings.max_in_process is not None:
                buffer.may_have_work = True  # the attempt that has ended made room
            if self.claims.memory_high:
                self._wake_next()  # the next job may be of another queue
            try:
                while not self.claims.is_stopping:
                    if buffer.attempts:
                        with suppress(IndexError):  # another thread took it a moment ago
                            return buffer.attempts.popleft()[0]
                    elif self.claims.is_needed(buffer):
                        self._claim(buffer)
                    elif not self._has_listening_thread:
                        self._listen(buffer)
                    else:
                        self._wait_until_woken(buffer)
                return None
            finally:
                buffer.become_busy()
                self._wake_next()

    def _wait_until_woken(self, buffer: QueueBuffer) -> None:
        if self._heartbeat_listening:
            self._wakeup.set()
        buffer.waiting_count += 1
        try:
            buffer.available.wait()
        finally:
            buffer.waiting_count -= 1

    def _listen(self, buffer: QueueBuffer) -> None:
        """Listen and claim until there is an attempt for a thread of this queue. Then another thread may listen."""
        self._has_listening_thread = True
        try:
            while not self.claims.is_stopping and not buffer.attempts:
                self._lock.release()
                try:
                    self._claim_or_listen(buffer)
                finally:
                    self._lock.acquire()
        finally:
            self._has_listening_thread = False

    def _wake_next(self, kept_count: int = 0, own_buffer: QueueBuffer | None = None) -> None:
        """Wake one thread for each queue with work: it wakes the next one. The caller keeps `kept_count` attempts.

        Waking a thread for each attempt would make them wait for the GIL and find the buffer empty.
        """
        for buffer in self.queues.values():
            has_attempts = len(buffer.attempts) > (kept_count if buffer is own_buffer else 0)
            if buffer.idle_count and (has_attempts or self.claims.is_needed(buffer)):
                if buffer.waiting_count:
                    buffer.available.notify()
                elif self._has_listening_thread:
                    self._wakeup.set()  # the listening thread may be the only idle one
        if not self._has_listening_thread:
            for buffer in self.queues.values():
                if buffer.waiting_count:
                    buffer.available.notify()
                    return

    def _claim(self, buffer: QueueBuffer, kept_count: int = 1) -> None:
        try:
            self.claims.run(buffer, kept_count)
        finally:
            self._wake_next(kept_count, buffer)

    # ── the listening thread, without the lock ──────────────────────────────────────────────────────────────────

    def _claim_or_listen(self, own_buffer: QueueBuffer) -> None:
        """Claim for the queues that may have work; if there is none, listen."""
        has_claimed = False
        now = clock()
        with self._lock:
            self._apply_timers(now)
            for buffer in self.queues.values():
                if self.claims.is_needed(buffer):
                    self._claim(buffer, kept_count=1 if buffer is own_buffer else 0)
                    has_claimed = True
            if has_claimed and not self.claims.database_down:
                return
            self._listening_until = self._listen_deadline()
        notifications = self._listener.listen(max(0.0, self._listening_until - now), self._wakeup)
        self._listening_until = 0.0
        self._apply_notifications(notifications)
        if self._listener.state.is_fine and not self.claims.database_down:
            self.claims.last_cycle_at = clock()
        self.claims.database_down = False

    def _listen_deadline(self) -> float:
        buffers = self.queues.values()
        times = [self.claims.due.next_due_at, *(b.poll.next_poll_at for b in buffers), *(b.retry_at for b in buffers)]
        return min(at for at in times if at is not None)

    def _apply_timers(self, now: float) -> None:
        is_due, is_listening = self.claims.due.expire(now), self._listener.state.is_fine
        for buffer in self.queues.values():
            has_expired = buffer.poll.expire(now, is_listening=is_listening)
            self.claims.due.promote_due = self.claims.due.promote_due or has_expired
            if is_due or has_expired or (buffer.retry_at is not None and now >= buffer.retry_at):
                buffer.may_have_work, buffer.retry_at = True, None

    def _apply_notifications(self, notifications: Notifications) -> None:
        if notifications.reconnected:
            self._notify_state.clear()
        now = clock()
        with self._lock:
            self.claims.due.promote_due = self.claims.due.promote_due or notifications.reconnected
            for name, buffer in self.queues.items():
                if notifications.reconnected or name in notifications.queues:
                    buffer.may_have_work = True
                    buffer.cursor.start_soon()
                    buffer.poll.reset(now)
        for command in notifications.commands:
            self._on_control(command)

    def _wake_listening_thread_if_due(self) -> None:
        """Wake the listening thread if it listens for longer than it should now."""
        if self._has_listening_thread and self._listen_deadline() < self._listening_until:
            self._wakeup.set()

    # ── called by background threads ────────────────────────────────────────────────────────────────────────────

    def offer(self, job_ids: Sequence[str]) -> None:
        """Have jobs claimed that an end of a run has made ready, where claims would not find them soon."""
        for buffer in [b for b in self.queues.values() if b.cursor.offer(job_ids)]:
            self.claim_soon(buffer)

    def claim_soon(self, buffer: QueueBuffer) -> None:
        with self._lock:
            buffer.may_have_work = True
            self._wake_next()

    def listen_while_busy(self, timeout: float) -> bool:
        """Listen in place of a worker thread; return False if one listens, or waits to."""
        with self._lock:
            worker_listens = self._has_listening_thread or any(b.waiting_count for b in self.queues.values())
            if worker_listens or self.claims.is_stopping:
                return False
            self._has_listening_thread = self._heartbeat_listening = True
        try:
            self._apply_notifications(self._listener.listen(timeout, self._wakeup))
        finally:
            with self._lock:
                self._has_listening_thread = self._heartbeat_listening = False
                self._wake_next()
        return True

    def poll_by_heartbeat(self, send_heartbeat: Callable[[Sequence[str]], HeartbeatResult]) -> HeartbeatResult:
        """Send a heartbeat that checks whether queues with idle threads have jobs. If none has, it counts as a poll."""
        with self._lock:
            idle = [b for b in self.queues.values() if self._listener.state.is_receiving and b.awaits_jobs]
        sent_at = clock()
        heartbeat = send_heartbeat([buffer.queue for buffer in idle])
        if idle and not heartbeat.has_ready_jobs:
            self.claims.last_claim_at = clock()
            with self._lock:
                for buffer in idle:
                    buffer.poll.postpone(sent_at)
        return heartbeat

    @property
    def poll_interval_sec(self) -> float:
        """How long the listening thread waits for a notification at most, before it claims."""
        return min((buffer.poll.interval_sec for buffer in self.queues.values()), default=0.0)

    @property
    def all_busy(self) -> bool:
        """Whether every thread has an attempt, so that no thread has to claim."""
        with self._lock:
            return not any(buffer.idle_count for buffer in self.queues.values())

    def apply_settings(self, settings: Mapping[str, BufferSettings]) -> None:
        """Apply what operators have set for the queues; the others get the defaults."""
        with self._lock:
            for name, buffer in self.queues.items():
                new = settings.get(name, BufferSettings())
                if new != buffer.settings:
                    buffer.settings, buffer.may_have_work = new, True
        self._wakeup.set()

    def set_memory_high(self, is_high: bool) -> None:
        """While memory is high, claim one job at a time. Afterwards look for jobs without a notification."""
        with self._lock:
            self.claims.memory_high = is_high
            for buffer in self.queues.values():
                buffer.may_have_work = True
        self._wakeup.set()

    def release_stale(self) -> None:
        """Release prefetched attempts that have found no thread: the jobs before them are not short."""
        before, stale = clock() - _MAX_PREFETCH_AGE_SEC, list[Attempt]()
        with self._lock:
            for buffer in self.queues.values():
                if attempts := buffer.pop_unstarted(before):
                    stale += attempts
                    buffer.longest_run_sec = max(buffer.longest_run_sec, PREFETCH_BELOW_SEC)
        self._claimer.release(stale, ReleaseReason.NOT_STARTED)
        self._recover_claim()

    def _recover_claim(self) -> None:
        """Look up a claim whose answer was lost, also if none follows: threads are busy, or the process is stopping."""
        with self._lock:
            if self._claimer.is_unconfirmed and not self.claims.is_running:
                self._claim(next(iter(self.queues.values())), kept_count=0)

    def stop(self) -> None:
        """Claim nothing more, release what has not started, and let idle threads end."""
        with self._lock:
            self.claims.is_stopping = True
            unstarted = [attempt for buffer in self.queues.values() for attempt in buffer.pop_unstarted()]
            for buffer in self.queues.values():
                buffer.available.notify_all()
        self._wakeup.set()
        self._claimer.release(unstarted, ReleaseReason.SHUTDOWN)

    def wake(self) -> None:
        self._wakeup.set()

    def close(self) -> None:
        self._wakeup.close()
