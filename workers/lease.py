"""How long an attempt may trust that its job is still its own."""

from __future__ import annotations


class Lease:
    """Trusted until the last successful renewal *was sent*, plus the time to live, less a margin for the stop.

    Measured on the process's own clock, because the database's is out of reach during an outage.
    """

    __slots__ = ("_trusted_for", "renewed_at", "ttl_sec")

    def __init__(self, ttl_sec: float, renewed_at: float) -> None:
        self.ttl_sec = ttl_sec
        self.renewed_at = renewed_at  # replaced by the heartbeat, read by any thread
        self._trusted_for = ttl_sec - min(2.0, ttl_sec / 5)

    @property
    def trusted_until(self) -> float:
        return self.renewed_at + self._trusted_for

    def is_trusted(self, now: float) -> bool:
        return now < self.renewed_at + self._trusted_for
