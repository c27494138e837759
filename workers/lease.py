"""How long a run may trust that its job is still its own."""

from __future__ import annotations


class Lease:
    """Trusted until the last renewal that succeeded *was sent*, plus the time to live, less a margin for the stop.

    Measured on the process's own clock: the database's may be asked no more when it matters.
    """

    __slots__ = ("_lasts", "renewed", "ttl")

    def __init__(self, ttl: float, renewed: float) -> None:
        self.ttl = ttl
        self.renewed = renewed  # replaced by the heartbeat, read by anyone
        self._lasts = ttl - min(2.0, ttl / 5)

    @property
    def until(self) -> float:
        return self.renewed + self._lasts

    def trusted(self, now: float) -> bool:
        return now < self.renewed + self._lasts
