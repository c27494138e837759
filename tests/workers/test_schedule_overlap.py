"""What a nominal time of a schedule does to the jobs of earlier times that have not ended."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.app.features.schedules.rows import Schedules
from tests.support.schedule_fixture import ScheduleFixture

A_MINUTE_BEFORE_THE_HOUR = "date_trunc('hour', now()) - interval '1 minute'"


def move_back_an_hour(schedule_db: ScheduleFixture) -> None:
    """What the schedule has fired was of the hour before, so that the time of this hour has come again."""
    schedule_db.queue.sql("UPDATE dl_schedules SET last_at = last_at - interval '1 hour', next_at = now()")
    schedule_db.queue.sql("UPDATE dl_firings SET fire_at = fire_at - interval '1 hour'")
    schedule_db.queue.sql("UPDATE dl_jobs SET logical_at = logical_at - interval '1 hour', idempotency_key = 'earlier'")


def create_running(schedule_db: ScheduleFixture, **definition: Any) -> None:
    """A schedule with overlap = cancel, whose time has come while the job of the time before runs."""
    schedule_db.create(last=A_MINUTE_BEFORE_THE_HOUR, overlap="cancel", catch_up="all", **definition)
    schedule_db.fire()
    assert len(schedule_db.queue.claim()) == 1
    move_back_an_hour(schedule_db)


def jobs(schedule_db: ScheduleFixture) -> list[tuple[str, bool]]:
    return schedule_db.queue.sql("SELECT status::text, cancel_requested FROM dl_jobs ORDER BY logical_at")


@pytest.mark.parametrize(
    ("overlap", "outcomes", "statuses"),
    [
        ("queue", ["made", "made"], ["queued", "queued"]),
        ("allow", ["made", "made"], ["queued", "queued"]),
        ("skip", ["made", "overlap_skipped"], ["queued"]),
        ("cancel", ["made", "made"], ["canceled", "queued"]),
    ],
)
def test_overlap_rules(schedule_db, overlap, outcomes, statuses):
    schedule_db.create(last=A_MINUTE_BEFORE_THE_HOUR, overlap=overlap, catch_up="all")
    schedule_db.fire()
    move_back_an_hour(schedule_db)
    schedule_db.fire()

    assert [outcome for (outcome,) in schedule_db.rows("outcome")] == outcomes
    made = schedule_db.queue.sql("SELECT status::text, lock_key FROM dl_jobs ORDER BY logical_at")
    assert [status for status, _ in made] == statuses
    assert {key == "schedule:s" for _, key in made} == {overlap != "allow"}


def test_run_is_canceled_when_the_job_of_a_later_time_is_made(schedule_db):
    create_running(schedule_db)

    schedule_db.fire()

    assert jobs(schedule_db) == [("running", True), ("queued", False)]


def test_run_continues_when_the_later_time_is_refused(schedule_db):
    create_running(schedule_db)

    @schedule_db.tasks.register("t", args={"type": "object", "required": ["day"]})
    def typed(args: dict[str, Any]) -> None: ...

    schedule_db.fire()

    assert [outcome for (outcome,) in schedule_db.rows("outcome")] == ["made", "refused"]
    assert jobs(schedule_db) == [("running", False)]


def test_run_continues_when_the_schedule_is_paused_meanwhile(schedule_db, monkeypatch):
    create_running(schedule_db)
    fire = Schedules.fire

    def fire_after_pause(schedules: Schedules, batch: Any) -> Any:
        schedules.pause("s", reason=None, changed_by="ann")
        return fire(schedules, batch)

    monkeypatch.setattr(Schedules, "fire", fire_after_pause)
    schedule_db.fire()

    assert [outcome for (outcome,) in schedule_db.rows("outcome")] == ["made"]
    assert jobs(schedule_db) == [("running", False)]


def test_run_that_loads_the_slice_of_the_later_time_continues(schedule_db):
    create_running(schedule_db, partitions={"unit": "day", "start": "2020-01-01"})

    schedule_db.fire()

    assert [outcome for (outcome,) in schedule_db.rows("outcome")] == ["made", "exists"]
    assert jobs(schedule_db) == [("running", False)]


def test_jobs_of_times_that_are_fired_together_are_kept(schedule_db):
    schedule_db.create(last="date_trunc('hour', now()) - interval '150 minutes'", overlap="cancel", catch_up="all")
    schedule_db.fire()

    assert jobs(schedule_db) == [("queued", False)] * 3
