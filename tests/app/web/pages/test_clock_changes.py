"""Changes of the clock, and the schedules that they move."""

from __future__ import annotations

from datetime import UTC, datetime

from app.web.pages.clock_changes import affected_schedules, find_clock_change
from pipelines.schedule_times import Timing


def cron(expression):
    return Timing(kind="cron", expression=expression, zone="Europe/Berlin")


def test_change_is_found_with_its_wall_times():
    change = find_clock_change("Europe/Berlin", datetime(2026, 10, 1, tzinfo=UTC))

    assert change is not None
    assert change.at == datetime(2026, 10, 25, 1, tzinfo=UTC)
    assert (f"{change.wall_before:%d %b %H:%M}", f"{change.wall_after:%H:%M}") == ("25 Oct 03:00", "02:00")
    assert not change.is_gap
    assert find_clock_change("Europe/Moscow", datetime(2026, 10, 1, tzinfo=UTC)) is None


def test_only_schedules_with_a_moved_time_are_affected():
    change = find_clock_change("Europe/Berlin", datetime(2027, 3, 20, tzinfo=UTC))
    assert change is not None
    assert change.is_gap

    affected = affected_schedules(change, [("night", cron("30 2 * * *")), ("morning", cron("0 6 * * *"))])

    assert [schedule.name for schedule in affected] == ["night"]
    assert [at.isoformat() for at in affected[0].times] == ["2027-03-28T03:00:00+02:00"]
