"""Which schedules a clock change affects, and the note of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dataloader.app.features.schedules.clock_changes import affected_schedules
from dataloader.pipelines.schedule_times import Timing


def cron(expression: str, zone: str = "Europe/Berlin") -> Timing:
    return Timing(kind="cron", expression=expression, zone=zone)


@pytest.mark.parametrize(
    ("now", "at", "note"),
    [
        (datetime(2027, 3, 20, tzinfo=UTC), "2027-03-28T03:00:00+02:00", "moved"),
        (datetime(2026, 10, 1, 12, 30, 5, 7, tzinfo=UTC), "2026-10-25T02:30:00+02:00", "repeated"),
    ],
)
def test_only_schedules_with_a_moved_or_repeated_time_are_affected(now, at, note):
    timings = [("night", cron("30 2 * * *")), ("morning", cron("0 6 * * *")), ("far", cron("30 2 * * *", "UTC"))]

    (affected,) = affected_schedules(timings, now)

    assert affected.name == "night"
    assert [(time.at.isoformat(), time.note) for time in affected.times] == [(at, note)]


def test_no_schedule_is_affected_far_from_a_change():
    assert affected_schedules([("night", cron("30 2 * * *"))], datetime(2026, 7, 1, tzinfo=UTC)) == []
