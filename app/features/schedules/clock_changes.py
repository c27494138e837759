"""Times of schedules that a near clock change moves or repeats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

from dataloader.pipelines.schedule_times import NominalTime, Timing
from dataloader.pipelines.zone_clock import find_zone, offset_changes

_BEFORE, _AHEAD = timedelta(days=7), timedelta(days=60)
_MAX_TIMES = 200  # of a schedule around a change
_AROUND = timedelta(hours=26)


@dataclass(frozen=True)
class AffectedSchedule:
    """A schedule with the times that a clock change moves or repeats, in its zone."""

    name: str
    times: Sequence[NominalTime]


def affected_schedules(schedules: Iterable[tuple[str, Timing]], now: datetime) -> list[AffectedSchedule]:
    """List the schedules with such times from a week ago to two months ahead."""
    begin = now.astimezone(UTC).replace(microsecond=0)
    affected = []
    for name, timing in schedules:
        changes = offset_changes(begin - _BEFORE, begin + _AHEAD, find_zone(timing.zone))
        if times := [time for change in changes for time in _times_around(change, timing) if time.note is not None]:
            affected.append(AffectedSchedule(name, times))
    return affected


def _times_around(change: datetime, timing: Timing) -> Iterator[NominalTime]:
    near = takewhile(lambda time: time.at <= change + _AROUND, timing.after(change - _AROUND))
    return islice(near, _MAX_TIMES)
