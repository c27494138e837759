"""Texts that name a period: a month, a week, a day or an hour."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Literal, NamedTuple

from dataloader.pipelines.zone_clock import DAY

Unit = Literal["hour", "day", "week", "month"]

MIN_YEAR, MAX_YEAR = 1900, 9998
KEY_EXAMPLES = {"hour": "2030-01-31T05+03:00", "day": "2030-01-31", "week": "2030-W05", "month": "2030-01"}
PERIOD_TEXT = re.compile(
    r"(?P<month>\d{4}-\d\d)|(?P<week>\d{4}-W\d\d)|(?P<day>\d{4}-\d\d-\d\d)"
    r"|(?P<hour>\d{4}-\d\d-\d\dT\d\d)(?::00){0,2}(?P<offset>Z|[+-]\d\d:\d\d(?::\d\d)?)?",
    re.ASCII,
)


class Period(NamedTuple):
    """What a text names: whole days, or an hour of one."""

    unit: Unit
    first: date
    last: date
    hour: datetime | None = None  # of the wall clock, or with its offset


def parse_period(text: str) -> Period:
    """Parse a month, a week, a day or an hour. Raises ValueError."""
    match = PERIOD_TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} names no time; write one such as {', '.join(KEY_EXAMPLES.values())}")
    try:
        period = _period_of(match)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if not MIN_YEAR <= period.first.year <= MAX_YEAR:
        raise ValueError(f"{text!r} is not in the years from {MIN_YEAR} to {MAX_YEAR}")
    return period


def _period_of(match: re.Match[str]) -> Period:
    if text := match["month"]:
        first = date.fromisoformat(f"{text}-01")
        return Period("month", first, (first.replace(day=28) + 4 * DAY).replace(day=1) - DAY)
    if text := match["week"]:
        first = date.fromisocalendar(int(text[:4]), int(text[-2:]), 1)
        return Period("week", first, first + 6 * DAY)
    if text := match["day"]:
        first = date.fromisoformat(text)
        return Period("day", first, first)
    hour = datetime.fromisoformat(match["hour"] + (match["offset"] or ""))
    return Period("hour", hour.date(), hour.date(), hour)


def check_moment(moment: datetime) -> datetime:
    """Return the moment in UTC. Raises ValueError without an offset, or outside the years that a calendar has."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no UTC offset")
    if not MIN_YEAR <= moment.year <= MAX_YEAR:
        raise ValueError(f"{moment.isoformat()} is not in the years from {MIN_YEAR} to {MAX_YEAR}")
    return moment.astimezone(UTC)


def with_article(unit: Unit) -> str:
    return f"{'an' if unit == 'hour' else 'a'} {unit}"
