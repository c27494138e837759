"""The page of the calendar: what schedules made and will make, by month and by day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, timedelta
from itertools import groupby, pairwise
from typing import Any
from zoneinfo import ZoneInfo

from flask import Response
from pydantic import Field

from dataloader.app.errors import ScheduleNotFound
from dataloader.app.features.schedules.calendar import Calendar, is_frequent, read_calendar
from dataloader.app.features.schedules.pages import shown_as
from dataloader.app.features.schedules.reader import ScheduleReader
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, PageRenderer
from dataloader.pipelines.schedule_times import FREQUENT_TIMES

_DAYS_OF_WEEK = 7
_SCHEDULES_LISTED = 500  # by the filter
_ENTRIES_SHOWN = 8  # of a day in the month
_TIMES_READ, _TIMES_LISTED = 100, 500  # of a day, in the month and in its own list
_WORST_FIRST = ("failed", "lost", "canceled", "skipped", "running", "ready", "succeeded", "scheduled")
_OUTCOMES = {"failed": ("failed", "lost"), "skipped": ("skipped",), "planned": ("scheduled",)}


class CalendarFields(FormModel):
    """What the calendar shows."""

    month: FormText = Field("", description="A month such as 2026-01; empty: this one.")
    day: FormText = Field("", description="A day such as 2026-01-31: its list.")
    schedule: FormText = Field("", description="Only this schedule.")
    outcome: FormText = Field("", description="Only what failed, was skipped, or is planned.")
    every: FormText = Field("", description="yes: each time, also of what fires hourly or more often.")


@dataclass(kw_only=True, slots=True)
class CalendarEntry:
    """Times of a schedule on a day: one, or several as one line. `state` is the worst of them."""

    at: datetime
    schedule: str
    state: str
    job_id: Any = None
    until: datetime | None = None
    note: str | None = None
    outcome: str = ""
    count: int = 1
    is_cut: bool = False  # there are more than `count`


@dataclass(frozen=True)
class CalendarDay:
    day: date
    is_outside: bool
    entries: list[CalendarEntry] = field(default_factory=list)
    more: int = 0


def create_calendar_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("calendar_page", site.options)
    reader = ScheduleReader(site.executor, site.pipelines, site.options)

    @pages.page("/calendar", query=CalendarFields)
    def show_calendar(query: CalendarFields) -> Response:
        """Show what schedules made and will make: a month as a grid, or a day as a list."""
        zone = ZoneInfo(pages.formatter.zone)
        today = datetime.now(zone).date()
        day = _parse_day(query.day, today) if query.day else None
        month = day.replace(day=1) if day else _parse_day(query.month and f"{query.month}-01", today.replace(day=1))
        first, last = (day, day + timedelta(days=1)) if day else (month, _next_month(month))
        limit = _TIMES_LISTED if day else _TIMES_READ
        schedules = reader.list_visible()
        chosen = [schedule for schedule in schedules if query.schedule in ("", schedule.name)]
        # What fires hourly or more often must not take the places of the others.
        frequent = [schedule for schedule in chosen if is_frequent(reader, schedule)]
        names = {schedule.name for schedule in frequent}
        others = [schedule for schedule in chosen if schedule.name not in names]
        ranges, is_folded = _ranges(first, last, zone), not day and query.every != "yes"
        rare = read_calendar(reader, others, ranges, limit=limit, is_filtered=bool(frequent))
        often = read_calendar(reader, frequent, ranges, limit=limit) if frequent else Calendar([], [], True)
        entries = [entry for entry in (*_entries(rare), *_entries(often)) if _is_chosen(entry, query.outcome)]
        entries.sort(key=lambda entry: (entry.at, entry.schedule))
        counts = Counter(entry.state for entry in entries)
        return pages.render(
            "calendar.html",
            query=query,
            problem=str(ScheduleNotFound(query.schedule)) if query.schedule and not chosen else None,
            is_complete=rare.complete and (often.complete or is_folded),
            limit=limit,
            day=day,
            month=month,
            previous=first - timedelta(days=1),
            following=last,
            entries=entries if day else [],
            weeks=[] if day else _weeks(month, entries, zone, frequent=names if is_folded else None),
            today=today,
            counts={state: counts[state] for state in _WORST_FIRST},
            schedules=schedules[:_SCHEDULES_LISTED],
        )

    return pages.blueprint


def _entries(calendar: Calendar) -> Iterator[CalendarEntry]:
    """All times, the past ones first; each by itself."""
    for firing in calendar.past:
        yield CalendarEntry(
            at=firing.fire_at, schedule=firing.schedule, state=shown_as(firing), job_id=firing.job_id,
            until=firing.until, outcome=firing.outcome.value.replace("_", " "),
        )  # fmt: skip
    for future in calendar.future:
        yield CalendarEntry(at=future.fire_at, schedule=future.schedule, state="scheduled", note=future.note)


def _is_chosen(entry: CalendarEntry, outcome: str) -> bool:
    return outcome not in _OUTCOMES or entry.state in _OUTCOMES[outcome]


def _weeks(
    month: date, entries: list[CalendarEntry], zone: ZoneInfo, *, frequent: Collection[str] | None
) -> list[list[CalendarDay]]:
    """The weeks of a month, with the days before and after it. `frequent`: the schedules to fold; None: none."""
    by_day: dict[date, list[CalendarEntry]] = {}
    for entry in entries:
        by_day.setdefault(entry.at.astimezone(zone).date(), []).append(entry)
    begin, weeks = month - timedelta(days=month.weekday()), []
    while begin < _next_month(month):
        days = [begin + timedelta(days=n) for n in range(_DAYS_OF_WEEK)]
        weeks.append([_day(day, month, by_day.get(day, []), frequent) for day in days])
        begin += timedelta(days=_DAYS_OF_WEEK)
    return weeks


def _day(day: date, month: date, entries: list[CalendarEntry], frequent: Collection[str] | None) -> CalendarDay:
    shown = entries if frequent is None else _folded(entries, frequent)
    return CalendarDay(day, day.month != month.month, shown[:_ENTRIES_SHOWN], len(shown[_ENTRIES_SHOWN:]))


def _folded(entries: list[CalendarEntry], frequent: Collection[str]) -> list[CalendarEntry]:
    """One line for each schedule with several times a day; one for all that fire hourly or more often."""
    lines, often = [], []
    ordered = sorted(entries, key=lambda entry: (entry.schedule, entry.at))
    for name, group in groupby(ordered, key=lambda entry: entry.schedule):
        times = list(group)
        if name in frequent or len(times) >= FREQUENT_TIMES:
            often += times
        elif len(times) == 1:
            lines += times
        else:
            lines.append(_line(name, times))
    lines.sort(key=lambda entry: (entry.count > 1, entry.at))
    return [*lines, *([_line("", often)] if often else [])]


def _line(name: str, times: list[CalendarEntry]) -> CalendarEntry:
    state = min((time.state for time in times), key=_WORST_FIRST.index)
    return CalendarEntry(
        at=times[0].at, schedule=name, state=state, count=len(times), is_cut=not name and len(times) >= _TIMES_READ
    )


def _parse_day(raw: str, default: date) -> date:
    """The day; also the default for one at the ends of what a date can be, where the days around it are none."""
    try:
        day = date.fromisoformat(raw) if raw else default
    except ValueError:
        return default
    return day if MINYEAR < day.year < MAXYEAR else default


def _next_month(month: date) -> date:
    return (month.replace(day=28) + timedelta(days=4)).replace(day=1)


def _ranges(first: date, last: date, zone: ZoneInfo) -> list[tuple[datetime, datetime]]:
    """The days from the first to before the last."""
    midnights = [_midnight(first + timedelta(days=n), zone) for n in range((last - first).days + 1)]
    return list(pairwise(midnights))


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
