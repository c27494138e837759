"""Numbers and times in sentences for people."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

_UTC_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `2 jobs`, `12,000 jobs`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_utc(moment: datetime | None) -> str:
    """A time within a sentence, such as `2026-11-24 12:05:01 UTC`: pages and commands replace it by their zone's."""
    return "an unknown time" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def replace_utc_times(sentence: str, format_time: Callable[[datetime], str]) -> str:
    """Format again the times within a sentence that `format_utc` has put there."""
    return _UTC_TIME_PATTERN.sub(
        lambda match: format_time(datetime.fromisoformat(match[0].replace(" UTC", "+00:00"))), sentence
    )
