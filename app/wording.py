"""Counts, durations, times and misspelt names as people write and read them: pages, commands, reasons, alerts and
webhooks."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

_TIME_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_MIN_WHOLE_SEC = 10  # of a shorter duration the tenth counts
_SECONDS_PATTERN = re.compile(r"\b(\d+(?:\.\d+)?) s\b")
_NUMBER_PATTERN = re.compile(r"\d{1,9}(\.\d{1,9})?")
_DURATION_PATTERN = re.compile(r"(?:\d{1,9}\s*[smhdw]\s*){1,10}", re.IGNORECASE)
_UNIT_SEC = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_UTC_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
# To compare two names costs up to half a millisecond, and a caller who may trigger jobs chooses one of them.
_MAX_NAME_LENGTH = 100  # characters of a name for which a similar one is looked for, and of that one
_MAX_NEIGHBOURS = 10  # names compared on each side, in the order of their beginnings and in that of their ends
_MIN_SIMILARITY = 0.75
_MAX_AMOUNT = 1e15  # a larger float is no longer exact
_RATE_UNITS = ((1, "s"), (60, "min"), (3_600, "h"))
_MIN_WHOLE_RATE = 10  # of a slower one the tenth counts
_CALENDAR = (datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC) - timedelta(seconds=1))


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `2 jobs`, `12,000 jobs`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_duration(seconds: float | timedelta | None, *, gap: str = " ") -> str:
    """At most two units, such as `3 h 20 min`; empty for None, `unknown` for NaN and infinity.

    `gap` is the space in it.
    """
    if seconds is None:
        return ""
    exact = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
    if not math.isfinite(exact):
        return "unknown"
    if exact <= 0:
        return f"0{gap}s"
    if exact * 1000 < 999.5:  # noqa: PLR2004 - a second when rounded
        return f"{exact * 1000:.0f}{gap}ms"
    if exact < _MIN_WHOLE_SEC:
        return f"{exact:.1f}".removesuffix(".0") + f"{gap}s"
    whole_sec = round(exact)
    first = next(n for n, (unit_sec, _) in enumerate(_TIME_UNITS) if whole_sec >= unit_sec)
    parts = []
    for unit_sec, unit in _TIME_UNITS[first : first + 2]:
        count, whole_sec = divmod(whole_sec, unit_sec)
        if count:
            parts.append(f"{count}{gap}{unit}")
    return gap.join(parts)


def format_rate(per_second: float) -> str:
    """A rate by the second, or by the minute or hour when it is less than one."""
    unit_sec, unit = next((unit for unit in _RATE_UNITS if per_second * unit[0] >= 1), _RATE_UNITS[-1])
    rate = per_second * unit_sec
    return f"{rate:,.0f}/{unit}" if rate >= _MIN_WHOLE_RATE else f"{rate:.1f}/{unit}"


def parse_amount(progress: Any) -> tuple[float, float | None, str] | None:
    """How much of a job is done, of how much, and the unit; None for a progress without numbers: tasks and other
    services may report any value."""
    if not isinstance(progress, dict):
        return None
    done, unit = _parse_number(progress.get("processed", progress.get("done"))), progress.get("unit")
    if done is None:
        return None
    return done, _parse_number(progress.get("total")) or None, unit if isinstance(unit, str) else ""


def _parse_number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_AMOUNT
    return float(value) if usable else None


def format_attempt(attempt: int, run: int) -> str:
    """`1`, and for the next attempt of this number `1, run 2`."""
    return str(attempt) if run == 1 else f"{attempt}, run {run}"


def replace_seconds(sentence: str, *, gap: str = " ") -> str:
    """Write the seconds within a sentence, such as `5561 s`, as durations."""
    return _SECONDS_PATTERN.sub(lambda match: format_duration(float(match[1]), gap=gap), sentence)


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


@lru_cache(maxsize=256)
def suggestion(name: str, names: frozenset[str]) -> str:
    """A similar name as the end of a sentence; empty if there is none."""
    if len(name) > _MAX_NAME_LENGTH:
        return ""
    short = [other for other in names if len(other) <= _MAX_NAME_LENGTH]
    close = _neighbours(name, short) | {other[::-1] for other in _neighbours(name[::-1], [n[::-1] for n in short])}
    near = get_close_matches(name, sorted(close), n=1, cutoff=_MIN_SIMILARITY)
    return f"; did you mean {near[0]!r}?" if near else ""


def _neighbours(name: str, names: Sequence[str]) -> set[str]:
    """The names that sort next to this one. A misspelt name has the first, or the last, letters of the right one."""
    in_order = sorted(names)
    at = bisect_left(in_order, name)
    return set(in_order[max(0, at - _MAX_NEIGHBOURS) : at + _MAX_NEIGHBOURS])
