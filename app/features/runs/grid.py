"""Makes the grid of tasks and days, with the times of schedules that made no job."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from dataloader.app.features.runs.rows import DailyRuns, EndedJobs, SkippedFiring
from dataloader.app.features.schedules.reader import ScheduleReader
from dataloader.app.features.schedules.rows import Schedule
from dataloader.app.http.caches import RefreshingValues
from dataloader.app.http.problems import InvalidRequest
from dataloader.app.http.standby_reads import allowing_standby, record_data_age
from dataloader.pipelines.schedule_times import Timing

MAX_DAYS = 31
_GRACE = timedelta(minutes=2)  # a time that is younger may still be fired
_SETTLING = timedelta(hours=1)  # after its end a day's statistics may still grow
_MAX_TIMES = 1_000  # of one schedule that are counted as missed
_MAX_GRIDS = 16  # kept: each is of a zone and some days
_REFRESH_AFTER_SEC, _MAX_AGE_SEC, _TIMEOUT_SEC = 10.0, 300.0, 3.0
_PAST_MAX_AGE_SEC = 60.0  # of days that are over, and of skipped times

STATES = ("failed", "missed", "open", "canceled", "succeeded", "none")  # the worst first


@dataclass(frozen=True, kw_only=True)
class DayRuns:
    """What a task did on a day. `missed`: times of its schedules that made no job; `open`: jobs of times of that day
    that have not ended."""

    day: date
    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    canceled: int = 0
    missed: int = 0
    open: int = 0

    @property
    def state(self) -> str:
        """The worst of it."""
        found = {
            "failed": self.failed + self.lost,
            "missed": self.missed,
            "open": self.open,
            "canceled": self.canceled,
            "succeeded": self.succeeded,
        }
        return next((name for name, count in found.items() if count), "none")

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.lost + self.canceled


@dataclass(frozen=True)
class TaskRuns:
    task: str
    schedules: list[str]
    days: list[DayRuns]

    @property
    def rank(self) -> tuple[int, str]:
        """What failed or was missed comes first."""
        return min(STATES.index(day.state) for day in self.days) > 1, self.task


@dataclass(frozen=True)
class DayGrid:
    """Tasks that ran, or should have, by day. `counted_at`: when it was read."""

    zone: str
    days: list[date]
    tasks: list[TaskRuns]
    counted_at: datetime
    data_age_sec: float | None = None  # of what a standby has answered


@dataclass
class _Missed:
    counts: Counter[tuple[str, date]] = field(default_factory=Counter)
    schedules: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class _Past:
    """What changes rarely of a grid: days that are over, and skipped times."""

    until: datetime
    read_at: float
    ended: dict[tuple[str, date], EndedJobs]
    skipped: list[SkippedFiring]


class DayGrids:
    """Keeps the grids that were shown last; each is read in the background, once for all requests."""

    def __init__(self, daily_runs: DailyRuns, reader: ScheduleReader) -> None:
        self._daily_runs, self._reader = daily_runs, reader
        self._kept = RefreshingValues(
            self._make_read, name="read-daily-runs", timeout_sec=_TIMEOUT_SEC, max_count=_MAX_GRIDS
        )

    def get(self, zone: str, last_day: date, day_count: int) -> DayGrid | None:
        """Return a recent grid; None: the database does not answer in time."""
        times = {"refresh_after_sec": _REFRESH_AFTER_SEC, "max_age_sec": _MAX_AGE_SEC}
        grid = self._kept.get_recent((zone, last_day, day_count), **times)
        if grid is not None and grid.data_age_sec is not None:
            record_data_age(grid.data_age_sec + (datetime.now(UTC) - grid.counted_at).total_seconds())
        return grid

    def _make_read(self, key: tuple[str, date, int]) -> Callable[[], DayGrid]:
        pasts: list[_Past] = []
        return lambda: self._read(*key, pasts)

    def _read(self, zone: str, last_day: date, day_count: int, pasts: list[_Past]) -> DayGrid:
        """`pasts`: the past that was read last, if any; only the thread that reads uses it."""
        days = [last_day - timedelta(days=n) for n in reversed(range(day_count))]
        first, last = _midnight(days[0], zone), _midnight(last_day + timedelta(days=1), zone)
        with allowing_standby() as reads:
            now = datetime.now(UTC)
            today = _midnight((now - _SETTLING).astimezone(ZoneInfo(zone)).date(), zone)
            past = self._read_past(first, max(first, min(today, last)), last, zone, pasts)
            ended = dict(past.ended)
            if past.until < last:
                ended |= self._daily_runs.ended(past.until, last, zone)
            open_jobs = self._daily_runs.open(first, last, zone)
            missed = self._missed(first, min(last, now - _GRACE), zone, past.skipped)
        names = {task for task, _ in (*ended, *open_jobs)} | missed.schedules.keys()
        tasks = [
            TaskRuns(
                name,
                missed.schedules.get(name, []),
                [
                    DayRuns(
                        day=day,
                        missed=missed.counts[name, day],
                        open=open_jobs.get((name, day), 0),
                        **vars(ended.get((name, day), EndedJobs())),
                    )
                    for day in days
                ],
            )
            for name in names
        ]
        return DayGrid(zone, days, sorted(tasks, key=lambda task: task.rank), now, reads.age_sec)

    def _read_past(self, first: datetime, until: datetime, last: datetime, zone: str, pasts: list[_Past]) -> _Past:
        if pasts and pasts[0].until == until and time.monotonic() - pasts[0].read_at < _PAST_MAX_AGE_SEC:
            return pasts[0]
        read_at = time.monotonic()
        ended = self._daily_runs.ended(first, until, zone)
        pasts[:] = [_Past(until, read_at, ended, self._daily_runs.skipped(first, last))]
        return pasts[0]

    def _missed(self, first: datetime, last: datetime, zone: str, firings: Sequence[SkippedFiring]) -> _Missed:
        skipped = defaultdict(list)
        for firing in firings:
            skipped[firing.schedule_id].append(firing)
        found = _Missed()
        for schedule in self._reader.schedules.list_by_name():
            timing = self._timing(schedule)
            ranges = [(firing.fire_at, firing.until) for firing in skipped[schedule.schedule_id]]
            if timing is not None:
                found.schedules[schedule.task].append(schedule.name)
                ranges.append((max(schedule.last_at or schedule.created_at, first) + _MOMENT, last))
            for begin, end in ranges:
                for at in _times_between(timing, max(begin, first), min(end, last)):
                    found.counts[schedule.task, at.astimezone(ZoneInfo(zone)).date()] += 1
        return found

    def _timing(self, schedule: Schedule) -> Timing | None:
        try:
            return self._reader.definition(schedule).timing
        except InvalidRequest:
            return None


_MOMENT = timedelta(microseconds=1)


def _times_between(timing: Timing | None, first: datetime, last: datetime) -> Iterator[datetime]:
    """The times of a schedule, both ends included. The one time of a row counts, whatever the timing is now."""
    if first == last or timing is None:
        yield from (first,) if first <= last else ()
        return
    for nominal in islice(timing.after(first - _MOMENT), _MAX_TIMES):
        if nominal.at > last:
            return
        yield nominal.at


def _midnight(day: date, zone: str) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)


def totals(tasks: Sequence[TaskRuns], days: Sequence[date]) -> list[DayRuns]:
    """All tasks together, by day."""
    names = ("succeeded", "failed", "lost", "canceled", "missed", "open")
    return [
        DayRuns(day=day, **{name: sum(getattr(task.days[n], name) for task in tasks) for name in names})
        for n, day in enumerate(days)
    ]
