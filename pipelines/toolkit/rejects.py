"""Where bad records go: named, counted, and never too many."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.toolkit.errors import TooManyRejects

_LONGEST = 500  # characters of a place or a reason: what is bad may be bad by its length


@dataclass(frozen=True)
class Rejected:
    place: str  # such as "line 17"
    reason: str


class Rejects:
    """Collects bad records, so that the good ones still load.

    Hand it to what reads and what loads; where none is given, the first bad record ends the load.
    """

    def __init__(self, limit: int, *, keep: int = 20) -> None:
        self.limit = limit
        self.count = 0
        self.first: list[Rejected] = []  # the first `keep` of them, to be shown to people
        self._keep = keep

    def add(self, place: str, reason: str) -> None:
        """Count one; `TooManyRejects` once there are more than `limit`."""
        self.count += 1
        if len(self.first) < self._keep:
            self.first.append(Rejected(_cut(place), _cut(reason)))
        if self.count > self.limit:
            raise TooManyRejects(f"more than {self.limit} bad records; the first are {self}")

    def __str__(self) -> str:
        told = "; ".join(f"{bad.place}: {bad.reason}" for bad in self.first)
        hidden = self.count - len(self.first)
        return f"{told}; and {hidden} more" if hidden else told or "none"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
