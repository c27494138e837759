"""Which nominal times are fired, and which are skipped: each catch_up rule after an outage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader.pipelines.schedule_plan import MAX_FIRINGS, FiringPlan, plan_firings
from dataloader.pipelines.schedule_times import Timing

HOURLY = Timing(kind="cron", expression="0 * * * *")
START = datetime(2030, 1, 1, tzinfo=UTC)
RULES: dict[str, Any] = {"grace_sec": 60, "catch_up": "last", "catch_up_max": 100, "catch_up_window_sec": 7 * 86_400}


def hours(*numbers: int) -> list[datetime]:
    return [START + timedelta(hours=n) for n in numbers]


def span(first: int, last: int) -> tuple[datetime, datetime]:
    return hours(first)[0], hours(last)[0]


def plan(timing: Timing = HOURLY, *, hours_later: float, **rules) -> FiringPlan:
    return plan_firings(timing, last_at=START, now=START + timedelta(hours=hours_later), **{**RULES, **rules})


def test_nothing_is_due_before_the_next_time():
    assert plan(hours_later=0.99) == FiringPlan([], None, START, hours(1)[0])


@pytest.mark.parametrize("catch_up", ["last", "all", "skip"])
def test_a_time_within_grace_is_fired_whatever_the_rule(catch_up):
    assert plan(hours_later=1.01, catch_up=catch_up) == FiringPlan(hours(1), None, *hours(1, 2))


def test_after_an_outage_the_latest_missed_time_is_fired_and_the_others_are_one_range():
    assert plan(hours_later=5.5) == FiringPlan(hours(5), span(1, 4), *hours(5, 6))


def test_after_an_outage_all_missed_times_may_be_fired():
    assert plan(hours_later=3.5, catch_up="all") == FiringPlan(hours(1, 2, 3), None, *hours(3, 4))


def test_catch_up_leaves_out_the_oldest_above_its_number():
    found = plan(hours_later=5.5, catch_up="all", catch_up_max=2)

    assert found == FiringPlan(hours(4, 5), span(1, 3), *hours(5, 6))


def test_catch_up_leaves_out_what_is_older_than_its_window():
    found = plan(hours_later=5.5, catch_up="all", catch_up_window_sec=2 * 3_600)

    assert found == FiringPlan(hours(4, 5), span(1, 3), *hours(5, 6))


def test_missed_times_may_be_skipped():
    assert plan(hours_later=5.5, catch_up="skip") == FiringPlan([], span(1, 5), *hours(5, 6))
    assert plan(hours_later=6.01, catch_up="skip") == FiringPlan(hours(6), span(1, 5), *hours(6, 7))


def test_no_time_before_the_start_is_fired():
    timing = Timing(kind="cron", expression="0 * * * *", starts_at=START + timedelta(hours=3))

    assert plan(timing, hours_later=5.5, catch_up="all") == FiringPlan(hours(3, 4, 5), None, *hours(5, 6))


def test_a_short_interval_after_a_long_outage_takes_several_steps():
    timing = Timing(kind="interval", expression="1")
    now = START + timedelta(days=3)
    last_at, fired = START, 0
    while True:
        found = plan_firings(timing, last_at=last_at, now=now, **{**RULES, "catch_up": "all", "catch_up_max": 250})
        assert len(found.fire_at) <= MAX_FIRINGS
        fired += len(found.fire_at)
        last_at = found.last_at
        if found.next_at is not None and found.next_at > now:
            break

    assert fired == 250 + 60


@settings(max_examples=200)
@given(
    st.sampled_from(["0 * * * *", "*/15 * * * *", "30 2 * * *"]),
    st.lists(st.integers(1, 200_000), min_size=1, max_size=8),
    st.sampled_from(["last", "all", "skip"]),
    st.integers(1, 40),
)
def test_each_time_is_accounted_for_once_however_often_it_is_looked(expression, pauses, catch_up, catch_up_max):
    timing = Timing(kind="cron", expression=expression, zone="Europe/Berlin")
    last_at = now = datetime(2030, 3, 29, tzinfo=UTC)
    fired: list[datetime] = []
    ranges: list[tuple[datetime, datetime]] = []
    for pause in pauses:
        now += timedelta(seconds=pause)
        while True:
            found = plan_firings(
                timing, last_at=last_at, now=now, **{**RULES, "catch_up": catch_up, "catch_up_max": catch_up_max}
            )
            fired += found.fire_at
            ranges += [found.skipped] if found.skipped else []
            last_at = found.last_at
            if found.next_at is None or found.next_at.astimezone(UTC) > now:
                break

    due = []
    for time in timing.after(datetime(2030, 3, 29, tzinfo=UTC)):
        if time.at.astimezone(UTC) > now:
            break
        due.append(time.at.astimezone(UTC))
    skipped = [at for at in due if any(a.astimezone(UTC) <= at <= b.astimezone(UTC) for a, b in ranges)]
    assert sorted([at.astimezone(UTC) for at in fired] + skipped) == due
