"""Changes of the clock in time zones, and what they do to schedules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

from pipelines.schedule_times import Timing

_DAYS_BEFORE, _DAYS_AHEAD = 7, 60
_MAX_TIMES = 200  # of a schedule around a change
_AROUND = timedelta(hours=26)


@dataclass(frozen=True)
class ClockChange:
    """A change of the clock: at `at` it is set from one wall time to another."""

    zone: str
    at: datetime
    wall_before: datetime
    wall_after: datetime

    @property
    def is_gap(self) -> bool:
        return self.wall_after > self.wall_before


@dataclass(frozen=True)
class AffectedSchedule:
    """A schedule whose time the change moves or repeats: its name, and these times."""

    name: str
    times: list[datetime]


def find_clock_change(zone: str, now: datetime) -> ClockChange | None:
    """The change of the last week or of the next two months; None: there is none."""
    place = ZoneInfo(zone)
    start = now.astimezone(UTC) - timedelta(days=_DAYS_BEFORE)
    for day in range(_DAYS_BEFORE + _DAYS_AHEAD):
        low, high = start + timedelta(days=day), start + timedelta(days=day + 1)
        if _offset(low, place) != _offset(high, place):
            return _narrow(zone, place, low, high)
    return None


def affected_schedules(change: ClockChange, schedules: Iterable[tuple[str, Timing]]) -> list[AffectedSchedule]:
    """Those of the schedules with this zone that a change moves or repeats."""
    found = []
    for name, timing in schedules:
        near = takewhile(lambda time: time.at <= change.at + _AROUND, timing.after(change.at - _AROUND))
        moved = [time.at for _, time in zip(range(_MAX_TIMES), near, strict=False) if time.note is not None]
        if moved:
            found.append(AffectedSchedule(name, moved))
    return found


def _narrow(zone: str, place: ZoneInfo, low: datetime, high: datetime) -> ClockChange:
    """The minute of the change between two moments with different offsets."""
    before = _offset(low, place)
    while high - low > timedelta(minutes=1):
        middle = low + (high - low) / 2
        low, high = (middle, high) if _offset(middle, place) == before else (low, middle)
    at = (high + timedelta(seconds=30)).replace(second=0, microsecond=0)
    return ClockChange(zone, at, (at + before).replace(tzinfo=None), at.astimezone(place).replace(tzinfo=None))


def _offset(moment: datetime, place: ZoneInfo) -> timedelta:
    return moment.astimezone(place).utcoffset() or timedelta()
