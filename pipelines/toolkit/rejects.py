"""Collects bad records, counted and limited."""

from __future__ import annotations

from dataclasses import dataclass

from dataloader.pipelines.toolkit.errors import TooManyRejects

_MAX_TEXT_LENGTH = 500  # characters of a place or a reason: what is bad may be bad by its length


@dataclass(frozen=True)
class Rejected:
    place: str  # such as "line 17"
    reason: str


class Rejects:
    """Collects bad records, so that the good ones still load.

    Pass it to the functions that read and load; without it, the first bad record ends the load.
    """

    def __init__(self, limit: int, *, max_kept: int = 20) -> None:
        self.limit = limit
        self.count = 0
        self.first: list[Rejected] = []  # the first `max_kept`, for messages
        self._max_kept = max_kept

    def add(self, place: str, reason: str) -> None:
        """Count one; `TooManyRejects` once there are more than `limit`."""
        self.count += 1
        if len(self.first) < self._max_kept:
            self.first.append(Rejected(_truncate(place), _truncate(reason)))
        if self.count > self.limit:
            raise TooManyRejects(f"more than {self.limit} bad records; the first are {self}")

    def __str__(self) -> str:
        reasons = "; ".join(f"{bad.place}: {bad.reason}" for bad in self.first)
        hidden = self.count - len(self.first)
        return f"{reasons}; and {hidden} more" if hidden else reasons or "none"


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[: _MAX_TEXT_LENGTH - 1]}…"
