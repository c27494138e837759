"""Numbers, durations and times as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_NUMBER_PATTERN = re.compile(r"\d{1,9}(\.\d{1,9})?")
_DURATION_PATTERN = re.compile(r"(?:\d{1,9}\s*[smhdw]\s*){1,10}", re.IGNORECASE)
_UNIT_SEC = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_UTC_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
_CALENDAR = (datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC) - timedelta(seconds=1))


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `2 jobs`, `12,000 jobs`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def parse_duration(text: str) -> float:
    """Return the seconds of a text such as `90`, `90s`, `5m` or `1h 30m`. Raises ValueError."""
    text = text.strip()
    if _NUMBER_PATTERN.fullmatch(text):
        return float(text)
    if not _DURATION_PATTERN.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 90s, 1h 30m or 90d, or a number of seconds")
    parts = re.findall(r"(\d+)\s*([smhdw])", text.lower())
    return float(sum(int(count) * _UNIT_SEC[unit] for count, unit in parts))


def is_outside_calendar(moment: datetime) -> bool:
    """Whether the database has `infinity` there, or a time beyond the years 1 to 9999: what is read then is an end of
    Python's calendar."""
    return not _CALENDAR[0] < moment < _CALENDAR[1]


def format_outside_calendar(moment: datetime) -> str:
    return "never" if moment >= _CALENDAR[1] else "long ago"


def format_utc(moment: datetime | None) -> str:
    """A time within a sentence, such as `2026-11-24 12:05:01 UTC`: pages and commands replace it by their zone's."""
    if moment is None:
        return "an unknown time"
    if is_outside_calendar(moment):
        return format_outside_calendar(moment)
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def replace_utc_times(sentence: str, format_time: Callable[[datetime], str]) -> str:
    """Format again the times within a sentence that `format_utc` has put there."""
    return _UTC_TIME_PATTERN.sub(
        lambda match: format_time(datetime.fromisoformat(match[0].replace(" UTC", "+00:00"))), sentence
    )
