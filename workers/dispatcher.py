"""Dispatches claimed jobs to worker threads. One idle thread leads: it waits for notifications and claims for all.

The leader blocks in `poll()` on the process's one LISTEN connection. When a queue is notified, a scheduled job falls
due or the poll interval is over, it claims as many jobs as threads of that queue are idle, hands them out, passes the
lead on, and runs a job of its own. While every thread is busy the heartbeat thread listens, so that cancels arrive and
the server need not keep notifications for this process.

Short jobs are prefetched: they wait in the queue's buffer, from which any thread takes the next one without a lock. A
thread that finds the buffer low claims more while the others go on. One claim at a time is in progress.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.job import ReleaseReason
from dataloader.app.queue.workers import HeartbeatResult
from dataloader.pipelines.portable import clock
from dataloader.pipelines.retry import Policy
from dataloader.workers.attempt import Attempt
from dataloader.workers.claim_timers import CONFLICT_RETRY_SEC, DueTimer, PollTimer
from dataloader.workers.claimer import Claimer
from dataloader.workers.listener import ListenerLike, Notifications
from dataloader.workers.notify_state import NotifyState, UnwantedNotifications
from dataloader.workers.outcome import Released
from dataloader.workers.queue_buffer import PREFETCH_BELOW_SEC, QueueBuffer, QueueLimits
from dataloader.workers.threads import WakeupPipe

_log = log.get(__name__)
_UNKNOWN_TASK_INTERVAL_SEC = 1.0
_LIMIT_POLL_SEC = 0.25  # a run of another process may make room in a limited queue without a notification
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
        release: Callable[[Attempt, Released], None],
    ) -> None:
        self._lock = threading.Lock()
        self.queues = {
            name: QueueBuffer(name, threads, threading.Condition(self._lock), PollTimer(poll_policies[name]))
            for name, threads in queue_threads.items()
        }
        self._claimer, self._listener, self._notify_state = claimer, listener, notify_state
        self._on_control, self._release = on_control, release
        self._due = DueTimer()
        self._wakeup = WakeupPipe()
        self._has_leader = self._heartbeat_listening = False  # the heartbeat as leader only listens
        self._is_claiming = False  # read by any thread, as the next two
        self._stopping = False
        self.jobs_left: int | None = None  # that may start; None: any number; under the lock
        self._database_down = False  # the last claim failed
        self._memory_high = False
        self._outage_logged = False  # written by the claiming thread
        self._listening_until = 0.0  # written by the leader
        self.last_claim_at = clock()  # when a claim or poll last returned; read by any thread, as the next
        self.last_cycle_at = clock()  # when a claim last returned, or a wait on a working LISTEN connection ended

    # ── called by worker threads ────────────────────────────────────────────────────────────────────────────────

    def next_attempt(self, buffer: QueueBuffer) -> Attempt | None:
        """Return the next attempt for this queue, or None when the pool is stopping, or has started all its jobs."""
        attempt = None if self._stopping else self._next_attempt(buffer)
        if attempt is not None and self.jobs_left is not None and not self._count_start():
            self._release(attempt, Released(ReleaseReason.SHUTDOWN))
            return None
        return attempt

    def _count_start(self) -> bool:
        """Whether one more job may start."""
        with self._lock:
            may_start = bool(self.jobs_left)
            self.jobs_left = max(0, (self.jobs_left or 0) - 1)
            return may_start

    def _next_attempt(self, buffer: QueueBuffer) -> Attempt | None:
        if buffer.may_have_work and buffer.is_low and self._may_claim:
            self._refill(buffer)
        try:
            return buffer.attempts.popleft()[0]
        except IndexError:
            return self._wait_for_attempt(buffer)

    @property
    def _may_claim(self) -> bool:
        return not self._is_claiming and not self._database_down

    def _needs_claim(self, buffer: QueueBuffer) -> bool:
        return buffer.needs_claim and self._may_claim and self._has_memory

    @property
    def _has_memory(self) -> bool:
        """Whether to claim at all: while memory is high the process runs one job, of whichever queue."""
        return not self._memory_high or not any(b.idle_count < b.threads or b.attempts for b in self.queues.values())

    def _refill(self, buffer: QueueBuffer) -> None:
        """Claim as a thread that has just ended an attempt, while the others take what is left in the buffer."""
        with self._lock:
            if self._is_claiming or self._stopping:
                return
            self._become_idle(buffer)
            try:
                self._claim_alone(buffer)
            finally:
                buffer.become_busy()

    def _become_idle(self, buffer: QueueBuffer) -> None:
        if not any(other.idle_count for other in self.queues.values()):
            self.last_cycle_at = clock()  # no thread had to claim until now
        buffer.idle_count += 1

    def _wait_for_attempt(self, buffer: QueueBuffer) -> Attempt | None:
        with self._lock:
            self._become_idle(buffer)
            if buffer.limits.has_global_limit or buffer.limits.max_in_process is not None:
                buffer.may_have_work = True  # the attempt that has ended made room
            if self._memory_high:
                self._wake_next()  # the next job may be of another queue
            try:
                while not self._stopping:
                    if buffer.attempts:
                        with suppress(IndexError):  # another thread took it a moment ago
                            return buffer.attempts.popleft()[0]
                    elif self._needs_claim(buffer):
                        self._claim_alone(buffer)
                    elif not self._has_leader:
                        self._lead(buffer)
                    else:
                        self._wait_for_leader(buffer)
                return None
            finally:
                buffer.become_busy()
                self._wake_next()

    def _wait_for_leader(self, buffer: QueueBuffer) -> None:
        if self._heartbeat_listening:
            self._wakeup.set()
        buffer.waiting_count += 1
        try:
            buffer.available.wait()
        finally:
            buffer.waiting_count -= 1

    def _lead(self, buffer: QueueBuffer) -> None:
        """Wait and claim until there is an attempt for a thread of this queue, then leave the lead to another."""
        self._has_leader = True
        try:
            while not self._stopping and not buffer.attempts:
                self._without_lock(lambda: self._lead_once(buffer))
        finally:
            self._has_leader = False

    def _wake_next(self, kept_count: int = 0, own_buffer: QueueBuffer | None = None) -> None:
        """Wake one thread for each queue with work: it wakes the next one. The caller keeps `kept_count` attempts.

        Waking a thread for each attempt would make them wait for the GIL and find the buffer empty.
        """
        for buffer in self.queues.values():
            has_attempts = len(buffer.attempts) > (kept_count if buffer is own_buffer else 0)
            if buffer.idle_count and (has_attempts or self._needs_claim(buffer)):
                if buffer.waiting_count:
                    buffer.available.notify()
                elif self._has_leader:
                    self._wakeup.set()  # the leader may be the only idle thread
        if not self._has_leader:
            for buffer in self.queues.values():
                if buffer.waiting_count:
                    buffer.available.notify()
                    return

    def _claim_alone(self, buffer: QueueBuffer, kept_count: int = 1) -> None:
        """Claim for this queue. Under the lock, which is released meanwhile; no other thread claims until then."""
        self._is_claiming = True
        try:
            self._without_lock(lambda: self._claim(buffer, kept_count))
        finally:
            self._is_claiming = False
            self._wake_next(kept_count, buffer)

    def _without_lock(self, call: Callable[[], object]) -> None:
        self._lock.release()
        try:
            call()
        finally:
            self._lock.acquire()

    # ── the leader, without the lock ────────────────────────────────────────────────────────────────────────────

    def _lead_once(self, own_buffer: QueueBuffer) -> None:
        """Claim for the queues that may have work; if there is none, wait."""
        has_claimed = False
        now = clock()
        with self._lock:
            self._apply_timers(now)
            for buffer in self.queues.values():
                if self._needs_claim(buffer):
                    self._claim_alone(buffer, kept_count=1 if buffer is own_buffer else 0)
                    has_claimed = True
            if has_claimed and not self._database_down:
                return
            self._listening_until = self._listen_deadline()
        notifications = self._listener.listen(max(0.0, self._listening_until - now), self._wakeup)
        self._listening_until = 0.0
        self._apply_notifications(notifications)
        if self._listener.state.is_fine and not self._database_down:
            self.last_cycle_at = clock()
        self._database_down = False

    def _listen_deadline(self) -> float:
        buffers = self.queues.values()
        times = [self._due.next_due_at, *(b.poll.next_poll_at for b in buffers), *(b.retry_at for b in buffers)]
        return min(at for at in times if at is not None)

    def _apply_timers(self, now: float) -> None:
        is_due, is_listening = self._due.expire(now), self._listener.state.is_fine
        for buffer in self.queues.values():
            has_expired = buffer.poll.expire(now, is_listening=is_listening)
            self._due.promote_due = self._due.promote_due or has_expired
            if is_due or has_expired or (buffer.retry_at is not None and now >= buffer.retry_at):
                buffer.may_have_work, buffer.retry_at = True, None

    def _apply_notifications(self, notifications: Notifications) -> None:
        if notifications.reconnected:
            self._notify_state.clear()
        now = clock()
        with self._lock:
            self._due.promote_due = self._due.promote_due or notifications.reconnected
            for name, buffer in self.queues.items():
                if notifications.reconnected or name in notifications.queues:
                    buffer.may_have_work = True
                    buffer.cursor.start_soon()
                    buffer.poll.reset(now)
        for command in notifications.commands:
            self._on_control(command)

    def _claim(self, buffer: QueueBuffer, kept_count: int) -> None:
        """Decide what to claim, claim it, hand it out, and record when to claim again."""
        began = clock()
        with self._lock:
            count = min(buffer.claim_size, 1) if self._memory_high else buffer.claim_size
            if count <= 0 or not self._has_memory:
                return
            request = buffer.claim_request(count, began, promote_due=self._due.promote_due)
            promoted = request is not None and request.promote_due
            buffer.may_have_work, self._due.promote_due = False, self._due.promote_due and not promoted
        try:
            if (recovered := self._claimer.recover()) is not None:
                self._hand_out(self.queues[recovered[0]], recovered[1], kept_count=0)
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
            self._due.record_claim(hint, now, may_have_more=may_have_more, promoted=promoted)
            if may_have_more or self._due.promote_due:
                buffer.may_have_work = True
            if not may_have_more and (buffer.limits.has_global_limit or hint.skipped):
                buffer.retry_at = now + (_LIMIT_POLL_SEC if buffer.limits.has_global_limit else CONFLICT_RETRY_SEC)
            self._database_down = False
            self._wake_leader_if_due()
        if request.is_from_front and not is_full:
            self._defer_unknown_tasks(buffer)
        if is_full or not may_have_more:
            self._update_notify_state(buffer, claimed_count, is_full=is_full)

    def _hand_out(self, buffer: QueueBuffer, attempts: list[Attempt], kept_count: int) -> None:
        """Put attempts where the threads of the queue find them."""
        if not attempts:
            return
        with self._lock:
            if not self._stopping:
                buffer.add(attempts, clock())
                if len(attempts) > kept_count:
                    buffer.available.notify()  # it wakes the next: short jobs end before many threads are awake
                return
        self._release_all(attempts, ReleaseReason.SHUTDOWN)  # the claim was in progress when the stop came

    def _update_notify_state(self, buffer: QueueBuffer, claimed_count: int, *, is_full: bool) -> None:
        recheck_sec = self._notify_state.update_after_claim(buffer.queue, jobs=claimed_count, is_full=is_full)
        with self._lock:
            if recheck_sec == 0:
                buffer.may_have_work = True
            elif recheck_sec is not None:
                buffer.retry_at = min(buffer.retry_at or math.inf, clock() + recheck_sec)
                self._wake_leader_if_due()

    def _wake_leader_if_due(self) -> None:
        """Wake the leader if it listens for longer than it should now."""
        if self._has_leader and self._listen_deadline() < self._listening_until:
            self._wakeup.set()

    def _on_outage(self, buffer: QueueBuffer, error: DatabaseUnavailable, *, promoted: bool) -> None:
        now = clock()
        with self._lock:
            buffer.may_have_work = self._database_down = True
            self._due.promote_due = self._due.promote_due or promoted
            for each in self.queues.values():
                each.poll.poll_soon(now)
        if not self._outage_logged:
            _log.warning("database.unavailable", error=str(error))
        self._outage_logged = True

    def _defer_unknown_tasks(self, buffer: QueueBuffer) -> None:
        now, check_at = clock(), buffer.next_unknown_task_check_at
        if now < check_at:
            with self._lock:  # a job that comes a moment after a check would wait until the next poll
                buffer.retry_at = min(buffer.retry_at or check_at, check_at)
            return
        buffer.next_unknown_task_check_at = now + _UNKNOWN_TASK_INTERVAL_SEC
        with suppress(DatabaseUnavailable):  # the next claim reports it
            self._claimer.defer_unknown_tasks(buffer.queue)

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
        """Listen in place of a leader; return False if a worker thread leads, or waits to."""
        with self._lock:
            if self._has_leader or self._stopping or any(b.waiting_count for b in self.queues.values()):
                return False
            self._has_leader = self._heartbeat_listening = True
        try:
            self._apply_notifications(self._listener.listen(timeout, self._wakeup))
        finally:
            with self._lock:
                self._has_leader = self._heartbeat_listening = False
                self._wake_next()
        return True

    def poll_by_heartbeat(self, send_heartbeat: Callable[[Sequence[str]], HeartbeatResult]) -> HeartbeatResult:
        """Send a heartbeat that checks whether queues with idle threads have jobs. If none has, it counts as a poll."""
        with self._lock:
            idle = [b for b in self.queues.values() if self._listener.state.is_receiving and b.awaits_jobs]
        sent_at = clock()
        heartbeat = send_heartbeat([buffer.queue for buffer in idle])
        if idle and not heartbeat.has_ready_jobs:
            self.last_claim_at = clock()
            with self._lock:
                for buffer in idle:
                    buffer.poll.postpone(sent_at)
        return heartbeat

    @property
    def poll_interval_sec(self) -> float:
        """How long an idle leader waits for a notification at most, before it claims."""
        return min((buffer.poll.interval_sec for buffer in self.queues.values()), default=0.0)

    @property
    def all_busy(self) -> bool:
        """Whether every thread has an attempt, so that no thread has to claim."""
        with self._lock:
            return not any(buffer.idle_count for buffer in self.queues.values())

    def apply_limits(self, limits: Mapping[str, QueueLimits]) -> None:
        """Apply what operators have set for the queues; a queue without settings has no limits."""
        with self._lock:
            for name, buffer in self.queues.items():
                queue_limits = limits.get(name, QueueLimits())
                if queue_limits != buffer.limits:
                    buffer.limits, buffer.may_have_work = queue_limits, True
        self._wakeup.set()

    def set_memory_high(self, is_high: bool) -> None:
        """While memory is high, claim one job at a time. Afterwards look for jobs without a notification."""
        with self._lock:
            self._memory_high = is_high
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
        self._release_all(stale, ReleaseReason.NOT_STARTED)

    def stop(self) -> None:
        """Claim nothing more, release what has not started, and let idle threads end."""
        with self._lock:
            self._stopping = True
            unstarted = [attempt for buffer in self.queues.values() for attempt in buffer.pop_unstarted()]
            for buffer in self.queues.values():
                buffer.available.notify_all()
        self._wakeup.set()
        self._release_all(unstarted, ReleaseReason.SHUTDOWN)

    def _release_all(self, attempts: Sequence[Attempt], reason: ReleaseReason) -> None:
        for attempt in attempts:
            self._release(attempt, Released(reason))

    def wake(self) -> None:
        self._wakeup.set()

    def close(self) -> None:
        self._wakeup.close()
