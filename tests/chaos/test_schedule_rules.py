"""Schedules, backfills and updates that contradict the rules are found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.chaos.history import BackfillRow, Pause
from tests.chaos.history_builder import NOON


def test_a_schedule_whose_times_are_all_accounted_for_is_lawful(tale):
    schedule = tale.schedule(last_at=NOON + timedelta(seconds=60), stopped_at=NOON + timedelta(seconds=62))
    tale.fire(schedule, 10)
    tale.fire(schedule, 20, "late_skipped", until=40)
    job = tale.fire(schedule, 50)
    tale.fire(schedule, 60, "exists", job=job)

    assert tale.violated_rules() == set()


@pytest.mark.parametrize(
    ("rows", "rules"),
    [
        pytest.param([(10, None), (30, None)], {"time not fired"}, id="one is left out"),
        pytest.param([(10, 20), (20, None), (30, None)], {"time not fired"}, id="one is in two rows"),
    ],
)
def test_times_without_a_row_or_with_two_are_found(tale, rows, rules):
    schedule = tale.schedule()
    for sec, until in rows:
        tale.fire(schedule, sec, "made" if until is None else "late_skipped", until=until)

    assert tale.violated_rules() == rules


def test_a_schedule_that_has_stopped_is_found(tale):
    tale.schedule(last_at=NOON, stopped_at=NOON + timedelta(seconds=60))
    assert tale.violated_rules() == {"schedule left behind"}

    tale.schedules[:] = [replace(tale.schedules[0], stopped_at=None, pending_updates=1)]
    assert tale.violated_rules() == {"schedule left behind"}


@pytest.mark.parametrize("case", ["no job", "before its time", "unnamed job", "two jobs"])
def test_firings_and_jobs_that_do_not_match_are_found(tale, case):
    schedule = tale.schedule(last_at=NOON + timedelta(seconds=10))
    job = tale.fire(schedule, 10)
    rules = {"job without firing"}
    if case == "no job":
        tale.firings[0] = replace(tale.firings[0], job_id=uuid4())
        rules |= {"firing without job"}
    elif case == "before its time":
        tale.firings[0] = replace(tale.firings[0], made_at=NOON)
        rules = {"firing without job"}
    elif case == "unnamed job":
        other = tale.job(key="other", schedule_id=schedule.schedule_id, logical_at=NOON)
        tale.succeed(other, tale.claim(other))
    else:
        other = tale.job(key="other", schedule_id=schedule.schedule_id, logical_at=tale.rows[job].logical_at)
        tale.succeed(other, tale.claim(other))
        tale.firings.append(replace(tale.firings[0], job_id=other, fire_at=NOON))

    assert tale.violated_rules() == rules


@pytest.mark.parametrize(
    ("since", "until", "rules"),
    [
        pytest.param(5, 15, {"made while paused"}, id="within"),
        pytest.param(11, 15, set(), id="before"),
        pytest.param(5, 9, set(), id="after"),
    ],
)
def test_a_time_that_was_fired_during_a_pause_is_found(tale, since, until, rules):
    schedule = tale.schedule(last_at=NOON + timedelta(seconds=10))
    tale.fire(schedule, 10)
    pause = Pause("s", NOON + timedelta(seconds=since), NOON + timedelta(seconds=until))

    assert tale.violated_rules(pauses=[pause]) == rules


def test_a_job_of_a_canceled_backfill_is_found(tale):
    backfill_id = uuid4()
    tale.load_slice("a", backfill_id=backfill_id)
    canceled_at = tale.moment
    backfill = BackfillRow(backfill_id=backfill_id, task="t", state="canceled", total=2, made=1, skipped=0)
    pause = Pause(str(backfill_id), canceled_at, datetime.max.replace(tzinfo=UTC))
    assert tale.violated_rules(pauses=[pause], backfills=[backfill]) == set()

    tale.load_slice("b", backfill_id=backfill_id)
    assert tale.violated_rules(pauses=[pause], backfills=[backfill]) == {"made while paused"}


@pytest.mark.parametrize(("overlap", "rules"), [("skip", {"overlapping scheduled jobs"}), ("allow", set())])
def test_two_live_jobs_of_a_schedule_that_skips_are_found(tale, overlap, rules):
    schedule = tale.schedule(overlap=overlap, last_at=NOON + timedelta(seconds=20))
    jobs = [
        tale.job(key=f"k{sec}", schedule_id=schedule.schedule_id, logical_at=NOON + timedelta(seconds=sec))
        for sec in (10, 20)
    ]
    for sec, job in zip((10, 20), jobs, strict=True):
        tale.fire(schedule, sec, job=job)
    for job in jobs:
        tale.succeed(job, tale.claim(job))

    assert tale.violated_rules() == rules


def test_two_live_jobs_of_a_slice_are_found(tale):
    tale.load_slice("a")
    tale.load_slice("a", run=False)
    tale.slices.clear()
    assert "two live jobs of a slice" not in tale.violated_rules()

    tale.load_slice("a", run=False)
    assert "two live jobs of a slice" in tale.violated_rules()


@pytest.mark.parametrize("lie", [{"state": "failed"}, {"runs": 2}, {"job_id": uuid4()}])
def test_a_slice_that_is_not_as_its_job_is_found(tale, lie):
    tale.load_slice("a")
    tale.slices["a"] = replace(tale.slices["a"], **lie)

    assert tale.violated_rules() == {"slice state differs"}


@pytest.mark.parametrize(
    ("backfill", "rules"),
    [
        pytest.param({}, set(), id="all is there"),
        pytest.param({"state": "open"}, {"incomplete backfill"}, id="open"),
        pytest.param({"state": "canceled", "made": 0}, set(), id="canceled"),
        pytest.param({"made": 2}, {"incomplete backfill"}, id="counted twice"),
        pytest.param({"keys": ("a", "b")}, {"incomplete backfill"}, id="a slice without a job"),
    ],
)
def test_a_backfill_that_is_not_complete_is_found(tale, backfill, rules):
    tale.load_slice("a")
    values = {"state": "done", "total": 1, "made": 1, "skipped": 0, "keys": ("a",)} | backfill
    row = BackfillRow(backfill_id=uuid4(), task="t", **values)

    assert tale.violated_rules(backfills=[row]) == rules


def test_an_update_after_the_last_job_began_is_found(tale):
    schedule = tale.schedule(interval_sec=None, datasets=("sales",))
    producer = tale.job(key="producer")
    run = tale.claim(producer)
    job = tale.fire(schedule, 10)
    assert tale.rows[job].status == "succeeded"
    tale.succeed(producer, run)
    producers = [(producer, "sales")]
    assert tale.violated_rules(producers=producers) == {"update not answered"}
    assert tale.violated_rules(producers=[(producer, "costs")]) == set()

    tale.fire(schedule, 20)
    assert tale.violated_rules(producers=producers) == set()
