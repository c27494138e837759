"""When a dispatcher claims without a notification."""

from __future__ import annotations

from dataclasses import dataclass

from app.queue.job import ClaimHint

CONFLICT_RETRY_SEC = 0.005  # another transaction is changing the key of a ready job, or holds a due one
FALLBACK_POLL_SEC = 1.0  # the poll interval while LISTEN is lost or the database unavailable


@dataclass
class ClaimTimers:
    """The poll, and the time at which the next scheduled job falls due. Under the dispatcher's lock."""

    poll_interval_sec: float
    promote_due: bool = True  # the next claim makes ready what has fallen due
    next_due_at: float | None = None
    next_poll_at: float = 0.0
    _overdue_delay_sec: float = CONFLICT_RETRY_SEC

    def expire(self, now: float, *, is_listening: bool) -> bool:
        """Return whether it is time to claim for all queues, and restart the poll if so."""
        interval_sec = self.poll_interval_sec
        if not is_listening:
            interval_sec = min(FALLBACK_POLL_SEC, interval_sec)
            self.next_poll_at = min(self.next_poll_at, now + interval_sec)
        if now < self.next_poll_at and (self.next_due_at is None or now < self.next_due_at):
            return False
        self.next_due_at, self.next_poll_at, self.promote_due = None, now + interval_sec, True
        return True

    def poll_soon(self, now: float) -> None:
        self.next_poll_at = min(self.next_poll_at, now + FALLBACK_POLL_SEC)

    def record_claim(self, hint: ClaimHint, now: float, *, is_full: bool, promoted: bool) -> None:
        """Set the timer to the next due job. One that is due now is promoted by the next claim."""
        due_in_sec = hint.next_due_sec
        if due_in_sec is None or due_in_sec > 0:
            self._overdue_delay_sec = CONFLICT_RETRY_SEC
            self.next_due_at = None if due_in_sec is None else now + max(due_in_sec, CONFLICT_RETRY_SEC)
            return
        if not promoted or is_full:  # it fell due since, or there are more than one claim promotes
            self.promote_due = True
        if promoted and not is_full:  # another transaction holds it: look again, less and less often
            self._overdue_delay_sec = min(FALLBACK_POLL_SEC, 2 * self._overdue_delay_sec)
        self.next_due_at = None if is_full else now + self._overdue_delay_sec
