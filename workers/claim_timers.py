"""When a dispatcher claims without a notification: at the polls of each queue, and when a scheduled job falls due."""

from __future__ import annotations

from dataclasses import dataclass

from dataloader.app.queue.claims import ClaimHint
from dataloader.pipelines.retry import Exponential, Fixed, Policy

CONFLICT_RETRY_SEC = 0.005  # another transaction is changing the key of a ready job, or holds a due one
FALLBACK_POLL_SEC = 1.0  # the poll interval while LISTEN is lost or the database unavailable
_MIN_POLL_SEC = 0.05


def default_poll(interval_sec: float, *, is_spread: bool) -> Policy:
    """Poll at the interval; `is_spread`: at random up to half of it earlier, so that processes do not poll together."""
    if not is_spread:
        return Fixed(interval_sec)
    return Exponential(base=interval_sec, factor=1.0, cap=interval_sec, jitter=1 / 3)


@dataclass
class PollTimer:
    """When to claim for a queue without a notification. Under the dispatcher's lock.

    The policy's n-th pause follows the n-th poll in a row since a notification came or a job was found.
    """

    policy: Policy
    next_poll_at: float = 0.0
    interval_sec: float = FALLBACK_POLL_SEC  # to the next poll; read by any thread
    _poll_count: int = 0

    def expire(self, now: float, *, is_listening: bool) -> bool:
        """Return whether it is time to claim, and set the time of the next poll if so."""
        if not is_listening:
            self.poll_soon(now)
        if now < self.next_poll_at:
            return False
        self._poll_count += 1
        self.interval_sec = self._pause(self._poll_count)
        self.next_poll_at = now + (self.interval_sec if is_listening else min(FALLBACK_POLL_SEC, self.interval_sec))
        return True

    def postpone(self, asked_at: float) -> None:
        """Count the poll interval from `asked_at`, when a heartbeat found no job in the queue."""
        self.next_poll_at = max(self.next_poll_at, asked_at + self.interval_sec)

    def reset(self, now: float) -> None:
        """Start over with the first pause: a notification has come, or a job was found."""
        if self._poll_count > 1:
            self.interval_sec = min(self.interval_sec, self._pause(1))
            self.next_poll_at = min(self.next_poll_at, now + self.interval_sec)
        self._poll_count = 0

    def poll_soon(self, now: float) -> None:
        self.next_poll_at = min(self.next_poll_at, now + FALLBACK_POLL_SEC)

    def _pause(self, poll_count: int) -> float:
        return max(_MIN_POLL_SEC, self.policy.pause(poll_count))


@dataclass
class DueTimer:
    """When the next scheduled job of any queue falls due. Under the dispatcher's lock."""

    promote_due: bool = True  # the next claim makes ready what has fallen due
    next_due_at: float | None = None
    _overdue_delay_sec: float = CONFLICT_RETRY_SEC

    def expire(self, now: float) -> bool:
        """Return whether a job has fallen due, so that it is time to claim for all queues."""
        if self.next_due_at is None or now < self.next_due_at:
            return False
        self.next_due_at, self.promote_due = None, True
        return True

    def record_claim(self, hint: ClaimHint, now: float, *, may_have_more: bool, promoted: bool) -> None:
        """Set the timer to the next due job. One that is due now is promoted by the next claim.

        `may_have_more`: that claim follows at once.
        """
        due_in_sec = hint.next_due_sec
        if due_in_sec is None or due_in_sec > 0:
            self._overdue_delay_sec = CONFLICT_RETRY_SEC
            self.next_due_at = None if due_in_sec is None else now + max(due_in_sec, CONFLICT_RETRY_SEC)
            return
        if not promoted or may_have_more:  # it fell due since, or there are more than one claim promotes
            self.promote_due = True
        if promoted and not may_have_more:  # another transaction holds it: try again at growing intervals
            self._overdue_delay_sec = min(FALLBACK_POLL_SEC, 2 * self._overdue_delay_sec)
        self.next_due_at = None if may_have_more else now + self._overdue_delay_sec
