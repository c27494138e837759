"""How long a run may trust that its job is still its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Lease:
    """Trusted until the last renewal that succeeded *was sent*, plus the time to live, less a margin for the stop.

    Measured on the process's own clock: the database's may be asked no more when it matters.
    """

    ttl: float
    renewed: float  # replaced by the heartbeat, read by anyone

    @property
    def until(self) -> float:
        return self.renewed + self.ttl - min(2.0, self.ttl / 5)

    def trusted(self, now: float) -> bool:
        return now < self.until
