"""The nominal times of a schedule: cron expressions in a time zone, and intervals.

Fixed hours run once a day, also on the days of a clock change; a wildcard hour runs by elapsed time. Times are compared
in UTC: two times of one zone would be compared by their wall clocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dataloader.pipelines.schedule_fields import Fold, Gap
from dataloader.pipelines.zone_clock import find_zone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_INTERVAL_SEC = 366 * 86_400
FREQUENT_TIMES = 20  # a day: hourly, also on the day of a clock change or from early to late
_ANY_MONDAY = datetime(2024, 1, 1, tzinfo=UTC)
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_MAX_EXPRESSION_LENGTH = 200
_NEAR = timedelta(hours=26)  # the widest clock change left out a day
# How far `previous` looks back, step by step, so that it passes few times.
_LOOKBACKS = [timedelta(minutes=10), timedelta(hours=3), *map(timedelta, (2, 40, 400, 3_300, 18_300))]


class NominalTime(NamedTuple):
    """A time at which a schedule fires, in its zone."""

    at: datetime
    note: Literal["moved", "repeated"] | None = None  # out of the gap of a clock change; within its fold


@dataclass(frozen=True, kw_only=True)
class Timing:
    """When a schedule fires. Raises ValueError, whose message begins with the field, for what makes no times. The types
    of its fields are checked before."""

    kind: Literal["cron", "interval"]
    expression: str  # five cron fields, or a number of seconds
    zone: str = "UTC"
    anchor: datetime | None = None  # an interval counts from here; None: from 1970
    gap: Gap = "after"  # what a clock change leaves out: run after it, or not at all
    fold: Fold = "first"  # what it repeats
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    excluded: frozenset[date] = frozenset()  # days of the zone

    def __post_init__(self) -> None:
        if self.starts_at is not None and self.ends_at is not None and self.ends_at <= self.starts_at:
            raise ValueError("ends_at: is not later than starts_at")
        _ = self._zone
        if self.kind == "interval":
            _ = self._every
        else:
            _check_cron(self.cron)
            now = datetime.now(UTC)
            if next(self._cron_times(now), None) is None:
                raise ValueError(f"expression: {self.expression!r} never fires")

    @property
    def cron(self) -> str:
        """The five fields, also of an alias such as @daily."""
        text = self.expression.strip()
        return _ALIASES.get(text.lower(), text)

    @cached_property
    def _zone(self) -> ZoneInfo:
        try:
            return find_zone(self.zone)
        except ValueError:
            raise ValueError(f"zone: {self.zone[:100]!r} is no IANA time zone, such as Europe/Moscow or UTC") from None

    @cached_property
    def _every(self) -> timedelta:
        if not self.expression.isascii() or not self.expression.isdigit():
            raise ValueError(f"expression: an interval is a number of seconds, not {self.expression[:100]!r}")
        if not 1 <= (seconds := int(self.expression[:12])) <= MAX_INTERVAL_SEC:
            raise ValueError(f"expression: an interval has 1 to {MAX_INTERVAL_SEC:,} seconds (366 days)")
        return timedelta(seconds=seconds)

    @cached_property
    def _is_wildcard(self) -> bool:
        """Whether it runs by elapsed time."""
        return any(field.startswith("*") for field in self.cron.split()[:2])

    @cached_property
    def is_frequent(self) -> bool:
        """Whether it fires hourly or more often on the days on which it fires."""
        days = replace(self, starts_at=None, ends_at=None, excluded=frozenset())
        first, *_, last = islice(days.after(_ANY_MONDAY), FREQUENT_TIMES)
        return last.at - first.at < timedelta(days=1)

    def after(self, moment: datetime) -> Iterator[NominalTime]:
        """The times strictly later than this moment, in their order."""
        moment = moment.astimezone(UTC)
        if self.starts_at is not None:
            moment = max(moment, self.starts_at.astimezone(UTC) - timedelta(microseconds=1))
        start: datetime | None = moment
        try:
            while start is not None:
                times, start = self._times_after(start), None
                for time in times:
                    if self.ends_at is not None and time.at.astimezone(UTC) > self.ends_at.astimezone(UTC):
                        return
                    if time.at.date() not in self.excluded:
                        yield time
                    elif (end := self._end_of_excluded(time.at.date())) > time.at.astimezone(UTC):
                        start = end - timedelta(microseconds=1)
                        break
        except (OverflowError, ValueError):  # the year 10000
            return

    def _times_after(self, moment: datetime) -> Iterator[NominalTime]:
        return self._interval_times(moment) if self.kind == "interval" else self._cron_times(moment)

    def _end_of_excluded(self, day: date) -> datetime:
        """When the days that are left out end. Where midnight is repeated, some of their times follow."""
        while day in self.excluded:
            day += timedelta(days=1)
        return datetime.combine(day, datetime.min.time(), self._zone).astimezone(UTC)

    def _before_excluded(self, moment: datetime) -> datetime:
        """This moment, or if it is in days that are left out, their beginning."""
        day = first = (moment - timedelta(microseconds=1)).astimezone(self._zone).date()
        while first in self.excluded:
            day, first = first, first - timedelta(days=1)
        if day not in self.excluded:
            return moment
        midnight = datetime.combine(day, datetime.min.time(), self._zone)
        return min(moment, max(midnight.replace(fold=fold).astimezone(UTC) for fold in (0, 1)))

    def next_after(self, moment: datetime) -> NominalTime | None:
        return next(self.after(moment), None)

    def previous(self, moment: datetime) -> datetime | None:
        """The latest time before this moment; it may lie before `starts_at`, which no firing does."""
        moment = moment.astimezone(UTC)
        if self.ends_at is not None:
            moment = min(moment, self.ends_at.astimezone(UTC) + timedelta(microseconds=1))
        moment = self._before_excluded(moment)
        unbounded = replace(self, starts_at=None) if self.starts_at is not None else self
        if self.kind == "interval" and not self.excluded:
            anchor = (self.anchor or EPOCH).astimezone(UTC)
            count = -((moment - anchor) // -self._every) - 1
            return (anchor + count * self._every).astimezone(self._zone)
        for lookback in _LOOKBACKS:
            latest = None
            try:
                begin = moment - lookback
            except OverflowError:
                return None
            for time in unbounded.after(begin):
                if time.at.astimezone(UTC) >= moment:
                    break
                latest = time.at
            if latest is not None:
                return latest
        return None

    def explain(self) -> str:
        """A sentence in English."""
        return self._explanation

    @cached_property
    def _explanation(self) -> str:
        if self.kind == "interval":
            return f"Every {_format_duration(self._every)}"
        text = CronSim(self.cron, datetime.now(UTC)).explain().rstrip(".")
        _, _, day_of_month, _, day_of_week = self.cron.split()
        if not day_of_month.startswith("*") and not day_of_week.startswith("*"):
            text += " (a day of either kind counts: day of month or day of week)"
        return f"{text}, {self.zone}"

    def _interval_times(self, moment: datetime) -> Iterator[NominalTime]:
        anchor = (self.anchor or EPOCH).astimezone(UTC)
        count = (moment - anchor) // self._every + 1
        while True:
            yield NominalTime((anchor + count * self._every).astimezone(self._zone))
            count += 1

    def _cron_times(self, moment: datetime) -> Iterator[NominalTime]:
        latest = moment
        for time in self._in_order(CronSim(self.cron, self._wall_clock_before(moment))):
            if time.at.astimezone(UTC) > latest:
                latest = time.at.astimezone(UTC)
                yield time

    def _wall_clock_before(self, moment: datetime) -> datetime:
        """Where to begin, so that no time after this moment is missed: near a clock change a day earlier."""
        offsets = {(moment + distance).astimezone(self._zone).utcoffset() for distance in (-_NEAR, timedelta(), _NEAR)}
        begin = moment if len(offsets) == 1 else moment - _NEAR
        return begin.astimezone(self._zone).replace(tzinfo=None)

    def _in_order(self, wall_clock_times: CronSim) -> Iterator[NominalTime]:
        """The times by elapsed time. cronsim is given no zone: it misses times where a clock changes by half an hour,
        or at another minute than 0."""
        waiting: list[tuple[datetime, NominalTime]] = []  # of the second pass of a fold
        gap_end = datetime.min  # noqa: DTZ901 - a wall clock time, as those of the loop
        for wall_clock in wall_clock_times:
            at = wall_clock.replace(tzinfo=self._zone)
            again = at.replace(fold=1)
            if again.utcoffset() == at.utcoffset():
                times = [NominalTime(at)]
            elif self._exists(at):
                times = [NominalTime(at, "repeated")] if self._is_wildcard or self.fold != "second" else []
                if self._is_wildcard or self.fold != "first":
                    heapq.heappush(waiting, (again.astimezone(UTC), NominalTime(again, "repeated")))
            elif self._is_wildcard or self.gap == "skip":
                times = []
            else:
                gap_end = max(gap_end, wall_clock)
                while not self._exists(gap_end.replace(tzinfo=self._zone)):
                    gap_end += timedelta(minutes=1)
                times = [NominalTime(gap_end.replace(tzinfo=self._zone), "moved")]
            while waiting and times and waiting[0][0] < times[0].at.astimezone(UTC):
                yield heapq.heappop(waiting)[1]
            yield from times
        yield from (time for _, time in sorted(waiting))

    def _exists(self, at: datetime) -> bool:
        """Whether a clock shows this time."""
        return at.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None) == at.replace(tzinfo=None)


def timing_fields(definition: Mapping[str, Any]) -> dict[str, Any]:
    """What a timing takes of the fields of a schedule."""
    names = {field.name for field in fields(Timing)}
    of_timing = {name: value for name, value in definition.items() if name in names}
    return of_timing | {"excluded": frozenset(definition.get("excluded", ()))}


def _check_cron(text: str) -> None:
    if len(text) > _MAX_EXPRESSION_LENGTH:
        raise ValueError(f"expression: has more than {_MAX_EXPRESSION_LENGTH} characters")
    parts = text.split()
    if text.startswith("@"):
        raise ValueError(f"expression: {text!r} is none of {', '.join(_ALIASES)}")
    if len(parts) != len(_FIELDS):
        raise ValueError(
            f"expression: a cron expression has five fields, {', '.join(_FIELDS)}, and {text!r} has {len(parts)}"
        )
    try:
        CronSim(text, EPOCH)
    except (CronSimError, AssertionError):
        _find_wrong_field(parts)
        raise ValueError(f"expression: {text!r} never fires: no month has such a day") from None


def _find_wrong_field(parts: list[str]) -> None:
    """Raises ValueError at the field that is wrong among fields that are right. Of the 30th of February none is."""
    for number, (name, part) in enumerate(zip(_FIELDS, parts, strict=True)):
        try:
            CronSim(" ".join(part if n == number else "*" for n in range(len(_FIELDS))), EPOCH)
        except (CronSimError, AssertionError):
            raise ValueError(f"expression: {part!r} is no valid {name}") from None


def _format_duration(duration: timedelta) -> str:
    seconds = int(duration.total_seconds())
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds % length == 0:
            count = seconds // length
            return unit if count == 1 else f"{count} {unit}s"
    return "second" if seconds == 1 else f"{seconds} seconds"
