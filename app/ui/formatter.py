"""Formats times, durations, counts and sizes for people."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from dataloader.app.queue.labels import Labels, format_labels
from dataloader.app.wording import (
    format_count,
    format_duration,
    format_outside_calendar,
    format_rate,
    format_utc,
    is_outside_calendar,
    replace_seconds,
    replace_utc_times,
)

_UUID_PATTERN = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_GROUPED_PATTERN = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
# Characters that change the direction of the text after them; in JSON they are written as escapes.
_BIDI_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_GAP = "\u00a0"  # no line ends within a number or a duration, or before a unit
_MIN_SEC = 60
_NEARLY_NONE, _NEARLY_ALL = 0.1, 0.99  # shares
_MIN_SHORTENED, _MIN_MILLIONS = 100_000, 999_500  # numbers that are written with a unit
_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB")


class Formatter:
    """Formats times, durations and sizes for people."""

    def __init__(self, zone: str) -> None:
        self._zone = ZoneInfo(zone)
        self.zone = zone

    def now(self) -> datetime:
        return datetime.now(self._zone).replace(microsecond=0)

    def wall_clock(self) -> str:
        """The current time with its zone: `16:42:10 MSK`."""
        return f"{datetime.now(self._zone):%H:%M:%S %Z}"

    def utc_offset(self) -> str:
        """The current offset of the zone from UTC, such as `+03:00`."""
        return datetime.now(self._zone).isoformat()[-6:]

    def time(self, moment: datetime | None) -> str:
        if moment is None or is_outside_calendar(moment):
            return "" if moment is None else format_outside_calendar(moment)
        return moment.astimezone(self._zone).isoformat(" ", "seconds")[: len("2026-11-24 16:42:10")]

    def pattern(self, moment: datetime, pattern: str) -> str:
        if is_outside_calendar(moment):
            return format_outside_calendar(moment)
        return moment.astimezone(self._zone).strftime(pattern)

    @staticmethod
    def parse(moment: str) -> datetime:
        """A time of JSON."""
        return datetime.fromisoformat(moment)

    def clock(self, moment: datetime | None) -> str:
        """The time of day, with the date before it unless that is today."""
        if moment is None:
            return ""
        today = datetime.now(self._zone).date()
        is_today = moment.astimezone(self._zone).date() == today
        return self.pattern(moment, "%H:%M:%S" if is_today else "%d %b %H:%M:%S")

    def utc(self, moment: datetime | None) -> str:
        return "" if moment is None else format_utc(moment)

    def exact(self, moment: datetime | None) -> str:
        """The time with its date and zone: `2026-11-24 16:42:10 MSK`."""
        return "" if moment is None else self.pattern(moment, "%Y-%m-%d %H:%M:%S %Z")

    def time_of_day(self, moment: datetime) -> str:
        """Hours and minutes, with the date before them unless that is today."""
        is_today = moment.astimezone(self._zone).date() == datetime.now(self._zone).date()
        return self.pattern(moment, "%H:%M" if is_today else "%d %b %H:%M")

    def hour_of_day(self, moment: datetime) -> str:
        return self.pattern(moment, "%H:%M")

    def localize_times(self, sentence: str) -> str:
        """Replace times in UTC within a sentence by times in the zone of the pages."""
        return self.group_digits(replace_utc_times(sentence, self.clock))

    @staticmethod
    def group_digits(sentence: str) -> str:
        """Write the large numbers in a sentence as the pages do: `48 200` for `48,200`."""
        return _GROUPED_PATTERN.sub(lambda match: match[0].replace(",", _GAP), sentence)

    def time_ago(self, moment: datetime | None) -> str:
        if moment is None:
            return ""
        if is_outside_calendar(moment):
            return format_outside_calendar(moment)
        age_sec = round((datetime.now(UTC) - moment).total_seconds())
        if age_sec == 0:
            return "now"
        length = f"{abs(age_sec)}{_GAP}s" if abs(age_sec) < _MIN_SEC else self.duration(abs(age_sec))
        return f"{length} ago" if age_sec > 0 else f"in {length}"

    def time_until(self, moment: datetime | None) -> str:
        """How long it is until then; empty when it is over."""
        if moment is None:
            return ""
        if is_outside_calendar(moment):
            return format_outside_calendar(moment)
        left_sec = (moment - datetime.now(UTC)).total_seconds()
        return self.duration(left_sec) if left_sec >= 1 else "now"

    @classmethod
    def counting(cls, seconds: float | timedelta | None) -> str:
        """A duration that still grows, in whole seconds: with tenths every refresh of a page would change it."""
        if seconds is None:
            return ""
        exact = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        return f"{max(0, int(exact))}{_GAP}s" if exact < 10 else cls.duration(exact)  # noqa: PLR2004 - as in `duration`

    @staticmethod
    def duration(seconds: float | timedelta | None) -> str:
        return format_duration(seconds, gap=_GAP)

    @classmethod
    def retry_policy(cls, policy: Mapping[str, Any]) -> str:
        """How long the pauses between attempts are: `30 s more after each attempt, at most 7 d`."""

        match policy:
            case {"kind": "fixed", "seconds": seconds}:
                return f"{cls.duration(seconds)} after each attempt"
            case {"kind": "linear", "step": step, "cap": cap}:
                return f"{cls.duration(step)} more after each attempt, at most {cls.duration(cap)}"
            case {"kind": "exponential", "base": base, "factor": factor, "cap": cap, "jitter": jitter}:
                spread = f", ± {cls.percent(jitter)}" if jitter else ""
                return (
                    f"{cls.duration(base)}, then × {factor:g} after each attempt, at most {cls.duration(cap)}{spread}"
                )
            case {"kind": "table", "seconds": list(pauses)}:
                return f"{', '.join(map(cls.duration, pauses))}{', the last one repeated' if len(pauses) > 1 else ''}"
        return f"as {policy['kind']} in the code decides"

    @staticmethod
    def rate(per_second: float) -> str:
        """A rate by the second, or by the minute or hour when it is less than one."""
        return format_rate(per_second).replace(",", _GAP)

    def elapsed(self, start: datetime | None, end: datetime | None = None) -> str:
        """From the start to the end, or so far."""
        if start is None:
            return ""
        return self.counting(datetime.now(UTC) - start) if end is None else self.duration(end - start)

    @staticmethod
    def short_id(job_id: UUID | str) -> str:
        """The first and last digits of an id, as lists show it."""
        digits = str(job_id)
        return f"{digits[:4]}…{digits[-4:]}"

    @classmethod
    def shorten(cls, sentence: str) -> str:
        """Write the seconds and the ids in a sentence as the pages do."""
        return cls.group_digits(replace_seconds(cls.short_ids(sentence), gap=_GAP))

    @classmethod
    def short_ids(cls, sentence: str) -> str:
        return _UUID_PATTERN.sub(lambda match: cls.short_id(match[0]), sentence)

    @staticmethod
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:,.0f}".replace(",", _GAP)

    @classmethod
    def about(cls, value: float) -> str:
        """An estimate: `≈ 9 130`, `≈ 1.07 M`."""
        return f"≈{_GAP}{cls.short_number(value)}"

    @classmethod
    def short_number(cls, value: float) -> str:
        """Three digits of a large number: `9 130`, `1.07 M`."""
        if value < _MIN_SHORTENED:
            return cls.number(value)
        size, unit = (1e6, "M") if value >= _MIN_MILLIONS else (1e3, "k")
        return f"{value / size:.3g}{_GAP}{unit}"

    @staticmethod
    def counted(count: int, noun: str) -> str:
        return format_count(count, noun).replace(",", _GAP)

    @staticmethod
    def percent(value: float | None) -> str:
        """A share, with a decimal where it is nearly none or nearly all: what is not all is never `100 %`."""
        if value is None:
            return ""
        has_decimal = 0 < value < _NEARLY_NONE or _NEARLY_ALL < value < 1
        share = f"{min(value * 100, 99.9):.1f}" if has_decimal else f"{value * 100:.0f}"
        return f"{share}{_GAP}%"

    @staticmethod
    def labels(labels: Labels) -> str:
        return format_labels(labels)

    @staticmethod
    def byte_size(value: float | None) -> str:
        if value is None:
            return ""
        step = 0
        while value >= 1024 and step < len(_BYTE_UNITS) - 1:  # noqa: PLR2004
            value, step = value / 1024, step + 1
        size = f"{value:.0f}" if step == 0 or value >= 10 else f"{value:.1f}"  # noqa: PLR2004
        return f"{size}{_GAP}{_BYTE_UNITS[step]}"

    @staticmethod
    def json(value: Any) -> str:
        return json.dumps(value, indent=2, ensure_ascii=False, default=str).translate(_BIDI_CONTROLS)

    @staticmethod
    def first_line(text: str | None, max_length: int = 160) -> str:
        line = (text or "").strip().partition("\n")[0]
        return line if len(line) <= max_length else line[: max_length - 1] + "…"
