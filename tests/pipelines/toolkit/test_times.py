from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader.pipelines.toolkit.errors import BadTime
from dataloader.pipelines.toolkit.times import OffsetConflict, TimeReader, Unit

MOSCOW = ZoneInfo("Europe/Moscow")
BERLIN = ZoneInfo("Europe/Berlin")
NOON_UTC = datetime(2024, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "written",
    [
        "2024-01-31T12:00:00Z",
        "2024-01-31 15:00:00",  # no zone: Moscow
        " 2024-01-31T15:00:00.000+03:00 ",
        "20240131T150000",
        1706702400,
        1706702400.0,
        "1706702400",
        "1706702400.000",
        1706702400000,
        "1706702400000",
        Decimal("1706702400000"),
        NOON_UTC,
        datetime(2024, 1, 31, 15),  # noqa: DTZ001
    ],
)
def test_every_way_to_write_a_moment_gives_that_moment_in_moscow(written):
    instant = TimeReader().read(written)

    assert instant == NOON_UTC
    assert instant.tzinfo == MOSCOW


@pytest.mark.parametrize("written", ["2024-01-31", "20240131", date(2024, 1, 31)])
def test_a_date_is_its_midnight(written):
    assert TimeReader().read(written) == datetime(2024, 1, 31, tzinfo=MOSCOW)


def test_source_zone_and_result_zone_may_differ():
    reader = TimeReader(zone=UTC, written_in=BERLIN)

    assert reader.read("2024-07-01 12:00").isoformat() == "2024-07-01T10:00:00+00:00"


def test_formats_of_the_source_come_first():
    reader = TimeReader(formats=("%d.%m.%Y %H:%M", "%d.%m.%Y"), zone=UTC)

    assert reader.read("01.02.2024").date() == date(2024, 2, 1)
    assert reader.read("01.02.2024 10:30").hour == 10
    with pytest.raises(BadTime, match=r"1/2/2024.*'%d.%m.%Y'"):
        reader.read("1/2/2024")


def test_a_source_that_always_counts_milliseconds_can_say_so():
    assert TimeReader(unit=Unit.MILLISECONDS, zone=UTC).read(86_400_000) == datetime(1970, 1, 2, tzinfo=UTC)
    assert TimeReader(unit=Unit.SECONDS, zone=UTC).read(86_400) == datetime(1970, 1, 2, tzinfo=UTC)


@given(st.datetimes(datetime(1973, 3, 4), datetime(2099, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001
def test_seconds_and_milliseconds_differ_by_size(moment):
    whole = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    milliseconds = (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)

    assert TimeReader().read(milliseconds) == whole
    assert TimeReader().read(Decimal(milliseconds) / 1000) == whole


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("yesterday", "'yesterday'"),
        ("", "''"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (Decimal("sNaN"), "sNaN"),
        (True, "bool"),
        (None, "NoneType"),
        ([1], "list"),
        (17067024000000000, "17067024000000000"),  # microseconds
        (10**30, "1" + "0" * 30),
        (99_999_999_999, "expected one from 1900"),  # milliseconds of 1973, or seconds of 5138
        ("1706702400123456", "'1706702400123456'"),
        ("1815-06-18", "expected one from 1900"),
        ("0001-01-01T00:00:00+14:00", "outside the calendar"),
        ("9999-12-31T23:00:00-14:00", "outside the calendar"),
    ],
)
def test_what_is_no_time_is_named(written, named):
    with pytest.raises(BadTime) as bad:
        TimeReader().read(written)

    assert named in str(bad.value)


def test_an_hour_that_happened_twice_is_not_guessed():
    with pytest.raises(BadTime, match="happened twice in Europe/Berlin"):
        TimeReader(written_in=BERLIN).read("2024-10-27 02:30")


def test_an_hour_that_never_happened_is_not_guessed():
    with pytest.raises(BadTime, match="never happened in Europe/Berlin"):
        TimeReader(written_in=BERLIN).read("2024-03-31 02:30")


@pytest.mark.parametrize(
    ("clash", "twice", "skipped"),
    [(OffsetConflict.EARLIER, "00:30", "00:30"), (OffsetConflict.LATER, "01:30", "01:30")],
)
def test_either_side_of_a_clock_change_can_be_chosen(clash, twice, skipped):
    reader = TimeReader(zone=UTC, written_in=BERLIN, offset_conflict=clash)

    assert reader.read("2024-10-27 02:30").strftime("%H:%M") == twice
    assert reader.read("2024-03-31 02:30").strftime("%H:%M") == skipped


def test_an_offset_settles_what_a_zone_cannot():
    instant = TimeReader(written_in=BERLIN).read("2024-10-27T02:30:00+01:00")

    assert instant == datetime(2024, 10, 27, 2, 30, tzinfo=timezone(timedelta(hours=1)))
