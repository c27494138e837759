"""Partitions of a task: the hours, days, weeks or months of a zone, or a list of keys. Each slice has a key.

Days of a clock change have 23 or 25 hours, and an hour that occurs twice has two keys, each with its UTC offset.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self, TypeGuard
from zoneinfo import ZoneInfo

from dataloader.pipelines import zone_clock
from dataloader.pipelines.periods import KEY_EXAMPLES, PERIOD_TEXT, Unit, check_moment, parse_period, with_article
from dataloader.pipelines.zone_clock import DAY, HOUR, SECOND, find_zone

MAX_KEY_BYTES = 200
_MAX_LISTED, _MAX_SHOWN = 100_000, 20


@dataclass(frozen=True)
class Slice:
    """One slice; slices of a list have no times. The end is the start of the next slice. Times are in UTC."""

    key: str
    start: datetime | None = None
    end: datetime | None = None


class _TimeSlice(NamedTuple):
    key: str
    start: datetime
    end: datetime


@dataclass(frozen=True)
class _Calendar:
    """Slices of a calendar, from `start` to `end` (None: no end). Both are texts that name a month (`2030-01`), a week
    (`2030-W05`), a day (`2030-01-31`) or, of hourly slices, an hour (`2030-01-31T05`, with its offset where the hour
    occurs twice), or dates. The first slice is the one with the beginning of `start`, the last the one with the last
    moment of `end`. Without a zone, `in_zone` must be called before slices are asked for. Raises ValueError or
    TypeError."""

    start: str | date
    _: KW_ONLY
    zone: str | None = None
    end: str | date | None = None

    unit: ClassVar[Unit]

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", self._parse_bound("start", self.start))
        if self.end is not None:
            object.__setattr__(self, "end", self._parse_bound("end", self.end))
        if self.zone is not None:
            _ = self._first, self._last

    def _parse_bound(self, name: str, value: object) -> str:
        try:
            text = self._format_bound(value)
            if parse_period(text).hour is not None and self.unit != "hour":
                raise ValueError(f"{text!r} is an hour; write it as {KEY_EXAMPLES[self.unit]}")
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name} of {type(self).__name__}: {error}") from None
        return text

    def _format_bound(self, value: object) -> str:
        if isinstance(value, datetime):
            if self.unit == "hour":
                if value.replace(minute=0, second=0, microsecond=0) != value:
                    raise ValueError(f"{value.isoformat()} is not the beginning of an hour")
                return value.isoformat(timespec="hours")
            if value.tzinfo is not None or value.time() != time():
                raise ValueError(f"{value.isoformat()} has a time; give a date")
            value = value.date()
        if isinstance(value, date):
            return value.isoformat()
        if not isinstance(value, str):
            raise TypeError(f"a text such as {KEY_EXAMPLES[self.unit]!r} or a date is expected, not {value!r}")
        return value

    # ── slices ──────────────────────────────────────────────────────────────────────────────────────────────────

    def slice(self, key: str) -> Slice:
        """Return the slice of a key. Raises ValueError."""
        return Slice(*self._in_bounds(self._slice_of(key)))

    def slice_at(self, moment: datetime) -> Slice | None:
        """Return the slice that contains a moment, None before the first and after the last one."""
        found = self._slice_at(check_moment(moment))
        return Slice(*found) if self._is_in_bounds(found) else None

    def last_ended(self, moment: datetime) -> Slice | None:
        """Return the last slice that has ended at a moment, None before the end of the first one."""
        found = self._before(self._slice_at(check_moment(moment)))
        if self._last is not None and found.start > self._last.start:
            found = self._last
        return Slice(*found) if self._is_in_bounds(found) else None

    def slices(self, after: str | None = None, *, newest_first: bool = False) -> Iterator[Slice]:
        """Yield the slices in order, or those that follow a key in that order. Raises ValueError without an end."""
        current, edge, step = self._first, self._require_last(), self._after
        if newest_first:
            current, edge, step = edge, current, self._before
        if after is not None:
            current = self._in_bounds(self._slice_of(after))
            if current.start == edge.start:
                return
            current = step(current)
        yield Slice(*current)
        while current.start != edge.start:
            current = step(current)
            yield Slice(*current)

    def count(self) -> int:
        """Return the number of slices, without a walk over them. Raises ValueError without an end."""
        return self._count(self._first, self._require_last())

    def between(self, first: str | None = None, last: str | None = None) -> Self:
        """Return the slices from the first slice in what one text names to the last slice in what the other names;
        None leaves the bound as it is. Raises ValueError for a text that names none or is outside the bounds."""
        start = self.start if first is None else self._in_bounds(self._slices_in(first)[0]).key
        end = self.end if last is None else self._in_bounds(self._slices_in(last)[1]).key
        return type(self)(start, zone=self.zone, end=end)

    def in_zone(self, zone: str) -> Self:
        """Fill in the zone if there is none."""
        return self if self.zone is not None else type(self)(self.start, zone=zone, end=self.end)

    def to_json(self) -> dict[str, Any]:
        return {"unit": self.unit, "zone": self.zone, "start": self.start, "end": self.end}

    # ── bounds ──────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _zone(self) -> ZoneInfo:
        if self.zone is None:
            raise ValueError(f"this {type(self).__name__} has no zone yet")
        if not isinstance(self.zone, str):
            raise TypeError(f"zone is a name such as Europe/Moscow, not {self.zone!r}")
        try:
            return find_zone(self.zone)
        except ValueError:
            raise ValueError(f"there is no time zone {self.zone!r}; use a name such as Europe/Moscow") from None

    @cached_property
    def _first(self) -> _TimeSlice:
        return self._slices_in(str(self.start))[0]

    @cached_property
    def _last(self) -> _TimeSlice | None:
        if self.end is None:
            return None
        last = self._slices_in(str(self.end))[1]
        if last.start < self._first.start:
            raise ValueError(f"the end {self.end} is before the start {self.start}")
        return last

    def _require_last(self) -> _TimeSlice:
        if self._last is None:
            raise ValueError("these slices have no end; name one with between(last=…)")
        return self._last

    def _is_in_bounds(self, found: _TimeSlice) -> bool:
        return self._first.start <= found.start and (self._last is None or found.start <= self._last.start)

    def _in_bounds(self, found: _TimeSlice) -> _TimeSlice:
        if found.start < self._first.start:
            raise ValueError(f"{found.key} is before the first slice, {self._first.key}")
        if self._last is not None and found.start > self._last.start:
            raise ValueError(f"{found.key} is after the last slice, {self._last.key}")
        return found

    # ── the calendar ────────────────────────────────────────────────────────────────────────────────────────────

    def _slice_at(self, moment: datetime) -> _TimeSlice:
        raise NotImplementedError

    def _slice_of(self, key: str) -> _TimeSlice:
        """Return the slice of a key, which may be out of bounds. Raises ValueError."""
        match = PERIOD_TEXT.fullmatch(key)
        if match is None or match[self.unit] is None:
            raise ValueError(f"{key!r} is not the key of {with_article(self.unit)}, such as {KEY_EXAMPLES[self.unit]}")
        found = self._slices_in(key)[0]
        if found.key != key:
            raise ValueError(f"{key!r} is not the key of this slice; write {found.key}")
        return found

    def _slices_in(self, text: str) -> tuple[_TimeSlice, _TimeSlice]:
        """Return the first and the last slice in what a text names. Raises ValueError."""
        period = parse_period(text)
        if period.hour is not None:
            raise ValueError(f"{text!r} is an hour; write {with_article(self.unit)} as {KEY_EXAMPLES[self.unit]}")
        begin, end = zone_clock.day_start(period.first, self._zone), zone_clock.day_start(period.last + DAY, self._zone)
        if begin == end:
            raise ValueError(f"{text} does not exist in {self.zone}, where the calendar skips it")
        return self._slice_at(begin), self._slice_at(end - SECOND)

    def _after(self, current: _TimeSlice) -> _TimeSlice:
        return self._slice_at(current.end)

    def _before(self, current: _TimeSlice) -> _TimeSlice:
        return self._slice_at(current.start - SECOND)

    def _count(self, first: _TimeSlice, last: _TimeSlice) -> int:
        raise NotImplementedError


class Hourly(_Calendar):
    """Hours of a zone, from `start` to `end`: an hour of the wall clock at one UTC offset."""

    unit = "hour"

    def _slice_at(self, moment: datetime) -> _TimeSlice:
        moment = moment.replace(microsecond=0)
        local = moment.astimezone(self._zone)
        begin = moment - timedelta(minutes=local.minute, seconds=local.second)
        end = begin + HOUR
        offset = local.utcoffset()
        # A zone may change its offset within an hour, as Lord Howe does by half an hour.
        if zone_clock.offset_at(begin, self._zone) != offset:
            begin = zone_clock.offset_change(begin, moment, self._zone)
        if zone_clock.offset_at(end - SECOND, self._zone) != offset:
            end = zone_clock.offset_change(moment, end - SECOND, self._zone)
        return _TimeSlice(local.isoformat(timespec="hours"), begin, end)

    def _slices_in(self, text: str) -> tuple[_TimeSlice, _TimeSlice]:
        hour = parse_period(text).hour
        if hour is None:
            return super()._slices_in(text)
        found = self._slice_with_offset(hour) if hour.tzinfo else self._slice_by_wall_clock(hour)
        return found, found

    def _slice_with_offset(self, hour: datetime) -> _TimeSlice:
        begin, text = hour.astimezone(UTC), hour.isoformat(timespec="hours")
        # The hour may begin at a change of the clock, so its last moment is tried too.
        candidates = [self._slice_at(begin), self._slice_at(begin + HOUR - SECOND)]
        found = next((s for s in candidates if s.key == text), candidates[0])
        if found.key != text and found.start != begin:
            offset = begin.astimezone(self._zone).isoformat()[19:]
            raise ValueError(f"no hour begins at {text} in {self.zone}, where the offset is {offset} then")
        return found

    def _slice_by_wall_clock(self, hour: datetime) -> _TimeSlice:
        walls = [w.replace(tzinfo=self._zone, fold=fold) for w in (hour, hour + HOUR - SECOND) for fold in (0, 1)]
        text = hour.isoformat(timespec="hours")
        candidates = {found.key: found for found in (self._slice_at(wall.astimezone(UTC)) for wall in walls)}
        slices = sorted((s for s in candidates.values() if s.key.startswith(text)), key=lambda s: s.start)
        if not slices:
            raise ValueError(f"the hour {text} does not exist in {self.zone}, where the clock is set forward over it")
        if len(slices) > 1:
            keys = " or ".join(found.key for found in slices)
            raise ValueError(f"the hour {text} occurs twice in {self.zone}; write {keys}")
        return slices[0]

    def _count(self, first: _TimeSlice, last: _TimeSlice) -> int:
        moments = [first.start, *zone_clock.offset_changes(first.start, last.end, self._zone), last.end]
        count = 0
        for begin, end in pairwise(moments):
            offset = zone_clock.offset_at(begin, self._zone)
            count += math.ceil(zone_clock.epoch_hours(end + offset)) - math.floor(
                zone_clock.epoch_hours(begin + offset)
            )
        return count


class _Days(_Calendar):
    """Slices of whole days, which are numbered."""

    def _number(self, day: date) -> int:
        raise NotImplementedError

    def _first_day(self, number: int) -> date:
        raise NotImplementedError

    def _key(self, first_day: date) -> str:
        raise NotImplementedError

    def _slice_at(self, moment: datetime) -> _TimeSlice:
        number = self._number(moment.astimezone(self._zone).date())
        begin, end = self._start(number), self._start(number + 1)
        while end <= moment:  # the clock was set back over midnight, or the calendar skips a day
            number, begin, end = number + 1, end, self._start(number + 2)
        return _TimeSlice(self._key(self._first_day(number)), begin, end)

    def _start(self, number: int) -> datetime:
        return zone_clock.day_start(self._first_day(number), self._zone)

    def _count(self, first: _TimeSlice, last: _TimeSlice) -> int:
        numbers = [self._number(parse_period(found.key).first) for found in (first, last)]
        return numbers[1] - numbers[0] + 1


class Daily(_Days):
    """Days of a zone, from `start` to `end`. A day whose midnight does not exist begins when its first hour does."""

    unit = "day"

    def _number(self, day: date) -> int:
        return day.toordinal()

    def _first_day(self, number: int) -> date:
        return date.fromordinal(number)

    def _key(self, first_day: date) -> str:
        return first_day.isoformat()

    def _count(self, first: _TimeSlice, last: _TimeSlice) -> int:
        return super()._count(first, last) - zone_clock.skipped_day_count(first.start, last.end, self._zone)


class Weekly(_Days):
    """ISO weeks of a zone, from `start` to `end`."""

    unit = "week"

    def _number(self, day: date) -> int:
        return (day.toordinal() - 1) // 7

    def _first_day(self, number: int) -> date:
        return date.fromordinal(number * 7 + 1)

    def _key(self, first_day: date) -> str:
        year, week, _ = first_day.isocalendar()
        return f"{year}-W{week:02}"


class Monthly(_Days):
    """Months of a zone, from `start` to `end`."""

    unit = "month"

    def _number(self, day: date) -> int:
        return day.year * 12 + day.month - 1

    def _first_day(self, number: int) -> date:
        return date(number // 12, number % 12 + 1, 1)

    def _key(self, first_day: date) -> str:
        return first_day.isoformat()[:7]


@dataclass(frozen=True)
class Listed:
    """Slices by their keys, in the order of the list. Raises ValueError or TypeError."""

    keys: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or not isinstance(self.keys, Sequence):
            raise TypeError('keys of Listed is a list of texts, such as ["north", "south"]')
        object.__setattr__(self, "keys", tuple(self.keys))
        if not 1 <= len(self.keys) <= _MAX_LISTED:
            raise ValueError(f"Listed has from 1 to {_MAX_LISTED:,} keys, not {len(self.keys):,}")
        for key in self.keys:
            _check_listed_key(key)
        if len(self._positions) < len(self.keys):
            twice = next(key for place, key in enumerate(self.keys) if self._positions[key] != place)
            raise ValueError(f"the key {twice!r} is listed twice")

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {key: position for position, key in enumerate(self.keys)}

    def _position(self, key: str) -> int:
        if key not in self._positions:
            listed = ", ".join(self.keys[:_MAX_SHOWN]) + (", …" if len(self.keys) > _MAX_SHOWN else "")
            raise ValueError(f"{key!r} is none of the slices {listed}")
        return self._positions[key]

    def slice(self, key: str) -> Slice:
        """Return the slice of a key. Raises ValueError."""
        return Slice(self.keys[self._position(key)])

    def slice_at(self, moment: datetime) -> Slice | None:
        """None: slices of a list have no times."""
        return None

    def last_ended(self, moment: datetime) -> Slice | None:
        """None: slices of a list have no times."""
        return None

    def slices(self, after: str | None = None, *, newest_first: bool = False) -> Iterator[Slice]:
        """Yield the slices in the order of the list, or backwards, or those that follow a key in that order."""
        step = -1 if newest_first else 1
        first = (len(self.keys) - 1 if newest_first else 0) if after is None else self._position(after) + step
        for position in range(first, -1 if newest_first else len(self.keys), step):
            yield Slice(self.keys[position])

    def count(self) -> int:
        return len(self.keys)

    def between(self, first: str | None = None, last: str | None = None) -> Listed:
        """Return the slices from one key to another, both included. Raises ValueError."""
        begin = 0 if first is None else self._position(first)
        end = len(self.keys) if last is None else self._position(last) + 1
        if begin >= end:
            raise ValueError(f"{last!r} is listed before {first!r}")
        return Listed(self.keys[begin:end])

    def in_zone(self, zone: str) -> Listed:
        """Return it unchanged: a list has no zone."""
        return self

    def to_json(self) -> dict[str, Any]:
        return {"list": [*self.keys]}


Partitions = Hourly | Daily | Weekly | Monthly | Listed

_CALENDARS: dict[str, type[Hourly | Daily | Weekly | Monthly]] = {
    kind.unit: kind for kind in (Hourly, Daily, Weekly, Monthly)
}


def partitions_from_json(raw: Any) -> Partitions:
    """Parse partitions such as {"unit": "day", "start": "2024-01-01"} or {"list": ["north"]}. Raises ValueError."""
    if not isinstance(raw, Mapping):
        raise ValueError('partitions are an object such as {"unit": "day", "start": "2024-01-01"}')
    try:
        if "list" in raw:
            _check_fields(raw, {"list"})
            return Listed(raw["list"])
        _check_fields(raw, {"unit", "zone", "start", "end"})
        unit = raw.get("unit")
        if not isinstance(unit, str) or unit not in _CALENDARS:
            raise ValueError(f"unit is one of {', '.join(_CALENDARS)}, not {unit!r}")
        return _CALENDARS[unit](raw.get("start"), zone=raw.get("zone"), end=raw.get("end"))  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(str(error)) from None


def _check_fields(raw: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(map(str, raw.keys() - known)):
        raise ValueError(f"unknown field {unknown[0]!r}; expected {', '.join(sorted(known))}")


def is_listed_key(key: object) -> TypeGuard[str]:
    return isinstance(key, str) and bool(key.strip()) and key.isprintable()


def _check_listed_key(key: object) -> None:
    if not is_listed_key(key):
        raise ValueError(f"a key is a text that is neither empty nor has control characters, not {key!r}")
    if len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise ValueError(f"a key has at most {MAX_KEY_BYTES} bytes in UTF-8; this one begins {key[:40]!r}")
