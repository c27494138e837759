"""Slices of a task: keys, boundaries at clock changes, ranges."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dataloader.pipelines.partitions import (
    Daily,
    Hourly,
    Monthly,
    Slice,
    Weekly,
)

CALENDARS: tuple[Any, ...] = (Hourly, Daily, Weekly, Monthly)
ZONES = [
    "UTC", "Europe/Moscow", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Asia/Kathmandu", "Africa/Cairo",
    "America/Sao_Paulo", "America/St_Johns", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia",
    "Africa/Casablanca", "Pacific/Kwajalein", "America/Toronto",
]  # fmt: skip
HOUR = timedelta(hours=1)


def hours(day: str, zone: str) -> list[Slice]:
    return [*Hourly(day, zone=zone, end=day).slices()]


def day_of(day: str, zone: str) -> Slice:
    return Daily(day, zone=zone).slice(day)


def local(moment: datetime | None, zone: str) -> str:
    assert moment is not None
    return moment.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes")


def length(found: Slice) -> float:
    assert found.start is not None
    assert found.end is not None
    return (found.end - found.start) / HOUR


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("partitions", "key", "start", "end"),
    [
        (Hourly("2030-01-01", zone="Europe/Moscow"), "2030-01-31T05+03:00", "2030-01-31T05:00", "2030-01-31T06:00"),
        (Hourly("2030-01-01", zone="Asia/Kolkata"), "2030-01-31T05+05:30", "2030-01-31T05:00", "2030-01-31T06:00"),
        (Hourly("2030-01-01", zone="UTC"), "2030-01-31T23+00:00", "2030-01-31T23:00", "2030-02-01T00:00"),
        (Daily("2030-01-01", zone="Europe/Moscow"), "2030-01-31", "2030-01-31T00:00", "2030-02-01T00:00"),
        (Weekly("2030-01-01", zone="Europe/Moscow"), "2030-W05", "2030-01-28T00:00", "2030-02-04T00:00"),
        (Weekly("2026-01-01", zone="Europe/Moscow"), "2026-W53", "2026-12-28T00:00", "2027-01-04T00:00"),
        (Monthly("2030-01", zone="Europe/Moscow"), "2030-01", "2030-01-01T00:00", "2030-02-01T00:00"),
        (Monthly("2030-01", zone="Europe/Moscow"), "2030-12", "2030-12-01T00:00", "2031-01-01T00:00"),
    ],
)
def test_slice_of_a_key_has_its_interval_in_the_zone(partitions, key, start, end):
    found = partitions.slice(key)

    assert found.key == key
    assert local(found.start, partitions.zone)[:16] == start
    assert local(found.end, partitions.zone)[:16] == end
    assert found.start.tzinfo is UTC


@pytest.mark.parametrize(
    ("partitions", "key", "why"),
    [
        (Daily("2030-01-01", zone="UTC"), "2030-02-30", "day is out of range"),
        (Daily("2030-01-01", zone="UTC"), "2030-01", "not the key of a day, such as 2030-01-31"),
        (Daily("2030-01-01", zone="UTC"), "2030-1-5", "not the key of a day"),
        (Daily("2030-01-01", zone="UTC"), "２030-01-05", "not the key of a day"),
        (Daily("2030-01-01", zone="UTC"), "2030-01-05\n", "not the key of a day"),
        (Daily("2030-01-01", zone="UTC"), "", "not the key of a day"),
        (Daily("2030-01-01", zone="UTC"), "2029-12-31", "2029-12-31 is before the first slice, 2030-01-01"),
        (Daily("2030-01-01", zone="UTC", end="2030-01-31"), "2030-02-01", "after the last slice, 2030-01-31"),
        (Daily("2011-01-01", zone="Pacific/Apia"), "2011-12-30", "2011-12-30 does not exist in Pacific/Apia"),
        (Weekly("2030-01-01", zone="UTC"), "2030-W54", "Invalid week"),
        (Weekly("2030-01-01", zone="UTC"), "2030-W53", "Invalid week"),
        (Weekly("2030-01-01", zone="UTC"), "2030-01-07", "not the key of a week, such as 2030-W05"),
        (Monthly("2030-01", zone="UTC"), "2030-13", "month must be in 1..12"),
        (Monthly("2030-01", zone="UTC"), "2030-W05", "not the key of a month"),
        (Hourly("2030-01-01", zone="UTC"), "2030-01-31", "not the key of an hour, such as 2030-01-31T05"),
        (Hourly("2030-01-01", zone="UTC"), "2030-01-31T05", "write 2030-01-31T05.00:00"),
        (Hourly("2030-01-01", zone="UTC"), "2030-01-31T05Z", "write 2030-01-31T05.00:00"),
        (Hourly("2030-01-01", zone="UTC"), "2030-01-31T05:00+00:00", "write 2030-01-31T05.00:00"),
        (Hourly("2030-01-01", zone="UTC"), "2030-01-31T05+03:00", "write 2030-01-31T02.00:00"),
        (Hourly("2030-01-01", zone="Asia/Kolkata"), "2030-01-31T05+03:00", r"the offset is \+05:30 then"),
        (Hourly("2030-01-01", zone="UTC"), "2030-01-31T24+00:00", "hour must be in"),
        (Hourly("2030-03-01", zone="Europe/Berlin"), "2030-03-31T02+01:00", r"write 2030-03-31T03\+02:00"),
        (Hourly("2030-03-01", zone="Europe/Berlin"), "2030-03-31T02", "does not exist in Europe/Berlin"),
        (Hourly("2030-03-01", zone="Europe/Berlin"), "2030-10-27T02", r"T02\+02:00 or 2030-10-27T02\+01:00"),
    ],
)  # fmt: skip
def test_other_keys_are_refused_with_the_reason(partitions, key, why):
    with pytest.raises(ValueError, match=why):
        partitions.slice(key)


@pytest.mark.parametrize("kind", CALENDARS)
@pytest.mark.parametrize("zone", ZONES)
@settings(max_examples=10)
@given(seconds=st.integers(-2_000_000_000, 4_000_000_000))
def test_any_moment_is_in_one_slice_whose_key_returns_it(kind, zone, seconds):
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    partitions = kind("1900-01-02", zone=zone)
    found = partitions.slice_at(moment)

    assert found.start <= moment < found.end
    assert partitions.slice(found.key) == found
    assert partitions.slice_at(found.end).start == found.end
    assert partitions.slice_at(found.end).key > found.key or kind is Hourly
    assert partitions.slice_at(found.start - timedelta(microseconds=1)).end == found.start
    assert partitions.last_ended(found.end) == found
    assert partitions.last_ended(moment).end == found.start


# ── clock changes ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("zone", "day", "day_hours"),
    [
        ("Europe/Berlin", "2030-03-31", 23),
        ("Europe/Berlin", "2030-10-27", 25),
        ("America/New_York", "2030-03-10", 23),
        ("America/New_York", "2030-11-03", 25),
        ("Africa/Cairo", "2026-04-24", 23),
        ("America/Sao_Paulo", "2018-11-04", 23),
        ("America/Sao_Paulo", "2018-02-17", 25),
        ("Australia/Lord_Howe", "2030-10-06", 23.5),
        ("Australia/Lord_Howe", "2030-04-07", 24.5),
        ("Europe/Moscow", "2011-03-27", 23),
        ("Europe/Moscow", "2014-10-26", 25),
        ("Europe/Moscow", "2030-03-31", 24),
        ("America/Havana", "2030-11-03", 25),
        ("Pacific/Kwajalein", "1969-09-30", 47),
    ],
)
def test_day_of_a_clock_change_has_its_own_length(zone, day, day_hours):
    assert length(day_of(day, zone)) == day_hours
    assert sum(length(hour) for hour in hours(day, zone)) == day_hours


@pytest.mark.parametrize(
    ("zone", "day", "start"),
    [
        ("Africa/Cairo", "2026-04-24", "2026-04-24T01:00+03:00"),
        ("America/Sao_Paulo", "2018-11-04", "2018-11-04T01:00-02:00"),
        ("America/Toronto", "1919-03-31", "1919-03-31T00:30-04:00"),  # 23:30 → 00:30
        ("America/Havana", "2030-11-03", "2030-11-03T00:00-04:00"),  # midnight occurs twice
        ("America/St_Johns", "2006-10-29", "2006-10-29T00:00-02:30"),  # 00:01 → 23:01
        ("Pacific/Apia", "2011-12-31", "2011-12-31T00:00+14:00"),
    ],
)
def test_day_begins_at_its_first_moment(zone, day, start):
    assert local(day_of(day, zone).start, zone) == start


def test_hour_that_does_not_exist_has_no_slice():
    keys = [hour.key for hour in hours("2030-03-31", "Europe/Berlin")]

    assert len(keys) == 23
    assert keys[1:3] == ["2030-03-31T01+01:00", "2030-03-31T03+02:00"]


def test_hour_that_occurs_twice_has_two_slices():
    keys = [hour.key for hour in hours("2030-10-27", "Europe/Berlin")]

    assert len(keys) == len(set(keys)) == 25
    assert keys[1:5] == ["2030-10-27T01+02:00", "2030-10-27T02+02:00", "2030-10-27T02+01:00", "2030-10-27T03+01:00"]


def test_hour_within_which_the_clock_changes_is_cut():
    autumn = [(hour.key[10:], length(hour)) for hour in hours("2030-04-07", "Australia/Lord_Howe")][:4]
    spring = [(hour.key[10:], length(hour)) for hour in hours("2030-10-06", "Australia/Lord_Howe")][1:4]

    assert autumn == [("T00+11:00", 1), ("T01+11:00", 1), ("T01+10:30", 0.5), ("T02+10:30", 1)]
    assert spring == [("T01+10:30", 1), ("T02+11:00", 0.5), ("T03+11:00", 1)]


@pytest.mark.parametrize("kind", CALENDARS)
@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/Berlin", "2030-03-31"), ("Europe/Berlin", "2030-10-27"), ("Africa/Cairo", "2026-04-24"),
        ("America/Sao_Paulo", "2018-02-17"), ("America/Sao_Paulo", "2018-11-04"), ("America/St_Johns", "2006-10-29"),
        ("America/St_Johns", "2006-04-02"), ("Australia/Lord_Howe", "2030-04-07"), ("America/Toronto", "1919-03-31"),
        ("Pacific/Kwajalein", "1969-09-30"), ("Pacific/Apia", "2011-12-31"), ("America/Havana", "2030-11-03"),
    ],
)  # fmt: skip
def test_each_minute_around_a_clock_change_is_in_one_slice(kind, zone, day):
    partitions = kind("1900-02-01", zone=zone)
    noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
    moments = [noon + timedelta(minutes=minute) for minute in range(-2_000, 2_000)]
    offsets = [moment.astimezone(ZoneInfo(zone)).utcoffset() for moment in moments]
    (change,) = [place for place, (old, new) in enumerate(pairwise(offsets)) if old != new]
    before = None
    for moment in moments[change - 150 : change + 150]:
        found = partitions.slice_at(moment)
        assert found.start <= moment < found.end
        assert found == before or partitions.slice(found.key) == found
        assert found == before or before is None or found.start == before.end
        if kind is Hourly:
            assert found.key == moment.astimezone(ZoneInfo(zone)).isoformat(timespec="hours")
        before = found


def test_hour_may_be_cut_to_a_minute():
    keys = [(hour.key[8:], round(length(hour) * 60)) for hour in hours("2006-10-29", "America/St_Johns")][:3]

    assert keys == [("29T00-02:30", 1), ("28T23-03:30", 59), ("29T00-03:30", 60)]
    assert Hourly("2006-10-28", zone="America/St_Johns", end="2006-10-29").count() == 24 + 26


def test_skipped_day_has_no_slice():
    days = Daily("2011-12-28", zone="Pacific/Apia", end="2012-01-01")

    assert [found.key for found in days.slices()] == ["2011-12-28", "2011-12-29", "2011-12-31", "2012-01-01"]
    assert days.count() == 4


@pytest.mark.parametrize(
    ("start", "end"), [("2010-12-30", "2012-12-29"), ("2011-12-31", "2012-12-29"), ("2011-12-29",) * 2]
)
def test_skipped_day_at_the_edge_of_a_range_is_counted_right(start, end):
    days = Daily(start, zone="Pacific/Apia", end=end)

    assert days.count() == sum(1 for _ in days.slices())


# ── ranges ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def ranges(draw: st.DrawFn) -> Hourly | Daily | Weekly | Monthly:
    kind, zone = draw(st.sampled_from(CALENDARS)), draw(st.sampled_from(ZONES))
    first, days = draw(st.dates(date(1960, 1, 1), date(2045, 1, 1))), draw(st.integers(0, 200))
    bounds = (first, first + timedelta(days=days))
    assume(not {date(2011, 12, 30), date(1993, 8, 21)} & {*bounds})  # some zones skipped these days
    found: Hourly | Daily | Weekly | Monthly = kind(bounds[0], zone=zone, end=bounds[1])
    return found


@settings(max_examples=40)
@given(ranges())
def test_count_is_the_number_of_slices_and_they_adjoin(partitions):
    found = [*partitions.slices()]

    assert partitions.count() == len(found) == len({one.key for one in found})
    assert all(before.end == after.start for before, after in pairwise(found))
    assert all(one.start < one.end for one in found)
    assert [*partitions.slices(newest_first=True)] == found[::-1]


@settings(max_examples=40)
@given(ranges(), st.data())
def test_slices_continue_after_any_key_in_both_directions(partitions, data):
    found = [*partitions.slices()]
    position = data.draw(st.integers(0, len(found) - 1))
    key = found[position].key

    assert [*partitions.slices(key)] == found[position + 1 :]
    assert [*partitions.slices(key, newest_first=True)] == found[:position][::-1]
    assert partitions.between(key, key).count() == 1
    assert partitions.between(last=key).count() == position + 1
    assert [*partitions.between(first=key).slices()] == found[position:]


def test_millions_of_slices_are_not_walked():
    partitions = Hourly("1900-01-01", zone="Europe/Berlin", end="3100-01-01")
    years = Monthly("1900-01", zone="Europe/Berlin", end="9998-12")

    assert partitions.count() == 24 * ((date(3100, 1, 1) - date(1900, 1, 1)).days + 1) > 10_000_000
    assert years.count() == (9998 - 1899) * 12
    assert [found.key for found in islice(partitions.slices("2500-01-01T00+01:00"), 2)] == [
        "2500-01-01T01+01:00", "2500-01-01T02+01:00",
    ]  # fmt: skip
    assert next(partitions.slices("2500-01-01T00+01:00", newest_first=True)).key == "2499-12-31T23+01:00"


@pytest.mark.parametrize(
    ("partitions", "first", "last", "keys"),
    [
        (Daily("2024-01-01", zone="UTC"), "2026-01-01", "2026-01-31", ("2026-01-01", "2026-01-31", 31)),
        (Daily("2024-01-01", zone="UTC"), "2026-01", "2026-02", ("2026-01-01", "2026-02-28", 59)),
        (Daily("2024-01-01", zone="UTC"), "2026-W05", "2026-W05", ("2026-01-26", "2026-02-01", 7)),
        (Daily("2024-01-01", zone="UTC", end="2024-01-05"), None, None, ("2024-01-01", "2024-01-05", 5)),
        (Monthly("2024-01", zone="UTC"), "2026-01", "2026-03", ("2026-01", "2026-03", 3)),
        (Monthly("2024-01", zone="UTC"), "2026-01-15", "2026-03-01", ("2026-01", "2026-03", 3)),
        (Weekly("2024-01-01", zone="UTC"), "2026-W05", "2026-W06", ("2026-W05", "2026-W06", 2)),
        (Weekly("2024-01-01", zone="UTC"), "2026-01-01", "2026-01-31", ("2026-W01", "2026-W05", 5)),
        (
            Hourly("2024-01-01", zone="Europe/Berlin"),
            "2026-01-31T05", "2026-01-31T06:00", ("2026-01-31T05+01:00", "2026-01-31T06+01:00", 2),
        ),
        (
            Hourly("2024-01-01", zone="Europe/Berlin"),
            "2026-10-25", "2026-10-25", ("2026-10-25T00+02:00", "2026-10-25T23+01:00", 25),
        ),
        (
            Hourly("2024-01-01", zone="Europe/Berlin"),
            "2026-10-25T02+01:00", "2026-10-25T01:00Z", ("2026-10-25T02+01:00", "2026-10-25T02+01:00", 1),
        ),
    ],
)  # fmt: skip
def test_range_is_from_the_first_to_the_last_slice_named(partitions, first, last, keys):
    found = partitions.between(first, last)
    slices = [*found.slices()]

    assert (slices[0].key, slices[-1].key, found.count()) == keys


@pytest.mark.parametrize(
    ("partitions", "first", "last", "why"),
    [
        (Daily("2024-01-01", zone="UTC"), "2023-12-31", None, "2023-12-31 is before the first slice, 2024-01-01"),
        (Daily("2024-01-01", zone="UTC", end="2024-01-31"), None, "2024-02-01", "is after the last slice"),
        (Daily("2024-01-01", zone="UTC"), "2024-02-02", "2024-02-01", "the end 2024-02-01 is before the start"),
        (Daily("2024-01-01", zone="UTC"), "2024-02-02T05", None, "is an hour; write a day as 2030-01-31"),
        (Daily("2024-01-01", zone="UTC"), "yesterday", None, "'yesterday' names no time; write one such as"),
        (Daily("2024-01-01", zone="UTC"), "2026-02-29", None, "'2026-02-29': day is out of range"),
        (Daily("2024-01-01", zone="UTC"), "9999-01-01", None, "years from 1900 to 9998"),
        (Daily("1900-01-01", zone="UTC"), "0001-01-01", None, "years from 1900 to 9998"),
        (Daily("2011-01-01", zone="Pacific/Apia"), "2011-12-30", None, "where the calendar skips it"),
        (Hourly("2024-01-01", zone="Europe/Berlin"), "2026-03-29T02", None, "where the clock is set forward over it"),
        (Hourly("2024-01-01", zone="Europe/Berlin"), "2026-10-25T02", None, r"twice .* 2026-10-25T02\+02:00 or 2026"),
        (Hourly("2024-01-01", zone="Europe/Berlin"), "2026-10-25T02:30", None, "names no time"),
        (Daily("2024-01-01"), "2024-01-01", None, "has no zone yet"),
    ],
)  # fmt: skip
def test_range_that_makes_no_sense_is_refused(partitions, first, last, why):
    with pytest.raises(ValueError, match=why):
        partitions.between(first, last)


def test_slices_without_an_end_are_not_counted_or_walked():
    days = Daily("2024-01-01", zone="UTC")

    for ask in (days.count, lambda: next(days.slices()), lambda: next(days.slices(newest_first=True))):
        with pytest.raises(ValueError, match="have no end"):
            ask()


def test_slices_out_of_bounds_are_none_at_a_moment():
    days = Daily("2024-01-10", zone="Europe/Moscow", end="2024-01-11")

    def moment(text: str) -> datetime:
        return datetime.fromisoformat(text + ":00+03:00")

    assert days.slice_at(moment("2024-01-09T23:59")) is None
    assert days.slice_at(moment("2024-01-10T00:00")) == days.slice("2024-01-10")
    assert days.slice_at(moment("2024-01-12T00:00")) is None
    assert days.last_ended(moment("2024-01-10T23:59")) is None
    assert days.last_ended(moment("2024-01-11T00:00")) == days.slice("2024-01-10")
    assert days.last_ended(moment("2025-01-11T00:00")) == days.slice("2024-01-11")


@pytest.mark.parametrize(
    "moment",
    [datetime(2024, 1, 1), datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)],  # noqa: DTZ001
)
def test_moment_without_offset_or_far_away_is_refused(moment):
    days = Daily("2024-01-01", zone="Europe/Moscow")

    for ask in (days.slice_at, days.last_ended):
        with pytest.raises(ValueError):
            ask(moment)
