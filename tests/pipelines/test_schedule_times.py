"""Nominal times: the days of a clock change against a reference that counts minutes, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from random import Random
from time import perf_counter
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader.pipelines.schedule_times import NominalTime, Timing

BERLIN = "Europe/Berlin"
SPRING, AUTUMN = date(2030, 3, 31), date(2030, 10, 27)  # in Berlin: 02:00 → 03:00, 03:00 → 02:00


def cron(expression: str, zone: str = BERLIN, **options) -> Timing:
    return Timing(kind="cron", expression=expression, zone=zone, **options)


def times_between(timing: Timing, begin: datetime, end: datetime) -> list[NominalTime]:
    return list(takewhile(lambda found: found.at.astimezone(UTC) < end, timing.after(begin)))


def times_of_day(timing: Timing, day: date) -> list[str]:
    zone = ZoneInfo(timing.zone)
    begin = datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
    end = (datetime(day.year, day.month, day.day, tzinfo=zone) + timedelta(days=1)).astimezone(UTC)
    found: list[str] = []
    for time in timing.after(begin - timedelta(microseconds=1)):
        if time.at.astimezone(UTC) >= end:
            return found
        found.append(f"{time.at:%H:%M%z}"[:8] + (f" {time.note}" if time.note else ""))
    return found


# ── the table that the documentation shows ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("expression", "spring", "autumn"),
    [
        ("30 2 * * *", ["03:00+02 moved"], ["02:30+02 repeated"]),
        ("0 2 * * *", ["03:00+02 moved"], ["02:00+02 repeated"]),
        ("15,45 2 * * *", ["03:00+02 moved"], ["02:15+02 repeated", "02:45+02 repeated"]),
        (
            "30 1-3 * * *",
            ["01:30+01", "03:00+02 moved", "03:30+02"],
            ["01:30+02", "02:30+02 repeated", "03:30+01"],
        ),
    ],
)
def test_fixed_hours_run_once_on_days_of_a_clock_change(expression, spring, autumn):
    assert times_of_day(cron(expression), SPRING) == spring
    assert times_of_day(cron(expression), AUTUMN) == autumn


@pytest.mark.parametrize(
    ("expression", "spring", "autumn"),
    [
        (
            "30 * * * *",
            ["00:30+01", "01:30+01", "03:30+02", "04:30+02"],
            ["00:30+02", "01:30+02", "02:30+02 repeated", "02:30+01 repeated"],
        ),
        (
            "30 */2 * * *",
            ["00:30+01", "04:30+02", "06:30+02", "08:30+02"],
            ["00:30+02", "02:30+02 repeated", "02:30+01 repeated", "04:30+01"],
        ),
    ],
)
def test_wildcard_hours_run_by_elapsed_time(expression, spring, autumn):
    assert times_of_day(cron(expression), SPRING)[:4] == spring
    assert times_of_day(cron(expression), AUTUMN)[:4] == autumn


@pytest.mark.parametrize(
    ("expression", "zone", "day", "expected"),
    [
        ("0 0 * * *", "Africa/Cairo", date(2024, 4, 26), ["01:00+03 moved"]),
        ("0 0 * * *", "America/Sao_Paulo", date(2018, 11, 4), ["01:00-02 moved"]),
        ("15 2 * * *", "Australia/Lord_Howe", date(2030, 10, 6), ["02:30+11 moved"]),
        ("15 2 * * *", "Australia/Lord_Howe", date(2030, 4, 7), ["02:15+10"]),
    ],
)
def test_other_gaps(expression, zone, day, expected):
    begin = datetime(day.year, day.month, day.day, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC) - timedelta(hours=2)
    zone_times = [time for time in islice(cron(expression, zone).after(begin), 2) if time.at.date() == day]

    assert [f"{t.at:%H:%M%z}"[:8] + (f" {t.note}" if t.note else "") for t in zone_times] == expected


def test_what_a_clock_change_leaves_out_may_be_skipped():
    assert times_of_day(cron("30 2 * * *", gap="skip"), SPRING) == []
    assert times_of_day(cron("30 1-3 * * *", gap="skip"), SPRING) == ["01:30+01", "03:30+02"]
    assert times_of_day(cron("0 2,3 * * *", gap="skip"), SPRING) == ["03:00+02"]


def test_what_a_clock_change_repeats_may_run_in_the_second_pass_or_in_both():
    second = cron("15,45 2 * * *", fold="second")
    both = cron("15,45 2 * * *", fold="both")

    assert times_of_day(second, AUTUMN) == ["02:15+01 repeated", "02:45+01 repeated"]
    assert times_of_day(both, AUTUMN) == [f"{t} repeated" for t in ("02:15+02", "02:45+02", "02:15+01", "02:45+01")]
    assert times_of_day(both, date(2030, 10, 28)) == ["02:15+01", "02:45+01"]


def test_a_time_asked_for_in_the_second_pass_does_not_fire_again():
    second_pass = datetime(2030, 10, 27, 2, 0, tzinfo=ZoneInfo(BERLIN), fold=1)

    following = cron("30 2 * * *").next_after(second_pass)

    assert following is not None
    assert following.at.isoformat() == "2030-10-28T02:30:00+01:00"
    previous = cron("30 2 * * *").previous(second_pass)
    assert previous is not None
    assert previous.astimezone(UTC) == datetime(2030, 10, 27, 0, 30, tzinfo=UTC)


# ── a reference that counts minutes ─────────────────────────────────────────────────────────────────────────────────

RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
ZONES = {
    BERLIN: 2030,
    "America/New_York": 2030,
    "Africa/Cairo": 2024,
    "America/Sao_Paulo": 2018,
    "Australia/Lord_Howe": 2030,
    "Europe/Moscow": 2011,  # the last change to permanent summer time
    "Asia/Kolkata": 2030,  # none
    "Pacific/Apia": 2011,  # left out a whole day
    "Asia/Tehran": 2021,
    "America/St_Johns": 2006,  # changed at one minute past midnight
}
EXPRESSIONS = (
    "* * * * *", "*/7 * * * *", "30 * * * *", "0 */2 * * *", "30 2 * * *", "0 0 * * *", "0,30 0-3 * * *",
    "15,45 1,2,3 * * *", "59 23 * * *", "1 0 * * 1-5", "0 0-23 * * *", "5-10 2 * * 0",
)  # fmt: skip


def parse_field(text: str, low: int, high: int) -> set[int]:
    values: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, last = (low, high) if span == "*" else (int(span.split("-")[0]), int(span.split("-")[-1]))
        values |= set(range(first, last + 1, int(step or 1)))
    return values


def matches(fields: list[set[int]], wall: datetime) -> bool:
    """None of the expressions restricts both kinds of day."""
    weekday = wall.isoweekday()
    return (
        wall.minute in fields[0]
        and wall.hour in fields[1]
        and wall.day in fields[2]
        and wall.month in fields[3]
        and bool({weekday, weekday % 7} & fields[4])
    )


def reference_times(expression: str, zone: ZoneInfo, begin: datetime, end: datetime) -> list[datetime]:
    """Each minute of the wall clock, or with wildcard hours each minute of elapsed time."""
    parts = expression.split()
    fields = [parse_field(part, *span) for part, span in zip(parts, RANGES, strict=True)]
    minute = timedelta(minutes=1)
    found: set[datetime] = set()
    if parts[0].startswith("*") or parts[1].startswith("*"):
        moment = begin
        while moment < end:
            if matches(fields, moment.astimezone(zone)):
                found.add(moment)
            moment += minute
        return sorted(found)
    wall = begin.astimezone(zone).replace(tzinfo=None) - timedelta(days=2)
    while wall < end.astimezone(zone).replace(tzinfo=None) + timedelta(days=2):
        if matches(fields, wall):
            exists = wall
            while exists.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) != exists:
                exists += minute  # in a gap: the first minute after it
            found.add(exists.replace(tzinfo=zone).astimezone(UTC))
        wall += minute
    return sorted(moment for moment in found if begin <= moment < end)


def clock_changes(zone: ZoneInfo, year: int) -> Iterator[datetime]:
    moment = datetime(year, 1, 1, tzinfo=UTC)
    while moment.year == year:
        following = moment + timedelta(minutes=30)
        if moment.astimezone(zone).utcoffset() != following.astimezone(zone).utcoffset():
            yield following
        moment = following


def test_ten_zones_have_the_changes_that_are_compared():
    changes = {zone: len(list(clock_changes(ZoneInfo(zone), year))) for zone, year in ZONES.items()}

    assert changes == {**dict.fromkeys(ZONES, 2), "Europe/Moscow": 1, "Asia/Kolkata": 0, "Pacific/Apia": 3}


@pytest.mark.parametrize("zone", ZONES)
def test_each_minute_of_both_change_days_is_as_the_reference_says(zone):
    place = ZoneInfo(zone)
    changes = list(clock_changes(place, ZONES[zone])) or [datetime(ZONES[zone], 6, 1, tzinfo=UTC)]
    for change in changes:
        begin, end = change - timedelta(hours=26), change + timedelta(hours=26)
        for expression in EXPRESSIONS:
            timing = cron(expression, zone)
            expected = reference_times(expression, place, begin, end)

            found = []
            for time in timing.after(begin - timedelta(microseconds=1)):
                if time.at.astimezone(UTC) >= end:
                    break
                found.append(time.at.astimezone(UTC))

            assert found == expected, (expression, change)


# ── whatever the expression ─────────────────────────────────────────────────────────────────────────────────────────

TIMINGS = st.builds(
    lambda expression, zone, gap, fold: cron(expression, zone, gap=gap, fold=fold),
    st.sampled_from([*EXPRESSIONS, "0 6 13 * 5", "0 0 L * *", "30 2 * * 1#2"]),
    st.sampled_from(sorted(ZONES)),
    st.sampled_from(["after", "skip"]),
    st.sampled_from(["first", "second", "both"]),
)
MOMENTS = st.one_of(
    st.integers(1_140_000_000, 1_920_000_000),
    st.sampled_from(["2030-03-31T01:00Z", "2030-10-27T01:00Z", "2011-12-30T10:00Z"]).flatmap(
        lambda change: st.integers(-7_200, 7_200).map(lambda sec: int(datetime.fromisoformat(change).timestamp()) + sec)
    ),
).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


def times_until(timing: Timing, begin: datetime, end: datetime) -> list[datetime]:
    found = []
    for time in timing.after(begin):
        if time.at.astimezone(UTC) > end:
            break
        found.append(time.at.astimezone(UTC))
    return found


@settings(max_examples=150)
@given(TIMINGS, MOMENTS, st.integers(0, 90_000), st.integers(0, 90_000))
def test_no_time_is_lost_or_repeated_between_two_computations(timing, begin, first_sec, second_sec):
    middle = begin + timedelta(seconds=first_sec)
    end = middle + timedelta(seconds=second_sec)

    whole = times_until(timing, begin, end)

    assert whole == sorted(set(whole)), "times grow"
    assert times_until(timing, begin, middle) + times_until(timing, middle, end) == whole


@settings(max_examples=100)
@given(TIMINGS, MOMENTS)
def test_previous_is_the_time_before(timing, moment):
    first, second = islice(timing.after(moment), 2)

    assert timing.previous(second.at) == first.at
    earlier = timing.previous(first.at)
    assert earlier is not None
    assert earlier.astimezone(UTC) <= moment
    following = timing.next_after(earlier)
    assert following is not None
    assert following.at == first.at


def test_an_interval_counts_elapsed_seconds_from_its_anchor():
    anchor = datetime(2030, 3, 31, 0, 30, tzinfo=ZoneInfo(BERLIN))
    timing = Timing(kind="interval", expression="5400", anchor=anchor, zone=BERLIN)

    found = [f"{time.at:%H:%M%z}" for time in islice(timing.after(anchor), 3)]

    assert found == ["03:00+0200", "04:30+0200", "06:00+0200"]
    assert timing.previous(anchor) == anchor - timedelta(seconds=5400)
    assert timing.previous(anchor + timedelta(seconds=1)) == anchor
    assert timing.explain() == "Every 90 minutes"


def test_previous_of_an_interval_is_by_elapsed_time_from_its_anchor():
    anchor = datetime(2030, 1, 1, 6, tzinfo=ZoneInfo(BERLIN))  # winter time
    timing = Timing(kind="interval", expression="86400", anchor=anchor, zone=BERLIN)

    first, second = islice(timing.after(datetime(2030, 7, 1, 12, tzinfo=UTC)), 2)

    assert timing.previous(second.at) == first.at


@pytest.mark.parametrize(("kind", "expression"), [("interval", "3600"), ("cron", "0 * * * *")])
def test_previous_after_the_end_is_the_last_time(kind, expression):
    end = datetime(2030, 1, 1, tzinfo=UTC)
    timing = Timing(kind=kind, expression=expression, ends_at=end)

    assert timing.previous(end) == end - timedelta(hours=1)
    assert timing.previous(end + timedelta(hours=2, minutes=30)) == end
    assert timing.previous(end + timedelta(days=4_000)) == end


def test_excluded_days_and_bounds_have_no_times():
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    timing = cron(
        "0 6 * * *",
        excluded=frozenset({date(2030, 1, 3)}),
        starts_at=datetime(2030, 1, 2, 5, tzinfo=UTC),
        ends_at=datetime(2030, 1, 5, 5, tzinfo=UTC),
    )

    assert [time.at.day for time in timing.after(begin)] == [2, 4, 5]
    assert timing.previous(datetime(2030, 1, 4, 5, tzinfo=UTC)) == datetime(2030, 1, 2, 5, tzinfo=UTC)
    assert timing.previous(datetime(2030, 1, 2, 5, tzinfo=UTC)) == datetime(2030, 1, 1, 5, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Africa/Cairo"])
@pytest.mark.parametrize("expression", ["*/7 * * * *", "30 0 * * *", "0 0 * * *", "30 23 * * *"])
def test_excluded_days_leave_out_their_times_and_no_other(zone, expression):
    random = Random(f"{zone} {expression}")
    days = [date(2017, 1, 1) + timedelta(days) for days in range(366)]
    excluded = frozenset(random.sample(days, 250))
    for start in random.sample(days, 20):
        begin = datetime(start.year, start.month, start.day, random.randrange(24), tzinfo=UTC)
        end = begin + timedelta(days=10)
        every = times_between(cron(expression, zone=zone, fold="both"), begin, end)
        some = cron(expression, zone=zone, fold="both", excluded=excluded)
        wanted = [found for found in every if found.at.date() not in excluded]
        assert times_between(some, begin, end) == wanted
        if wanted:
            assert some.previous(end) == wanted[-1].at


def test_a_thousand_excluded_days_are_passed_over_by_day():
    excluded = frozenset(date(2026, 1, 1) + timedelta(days) for days in range(1_000))
    timing, timing_zone = cron("* * * * *", excluded=excluded), ZoneInfo(BERLIN)
    begin, end = datetime(2026, 1, 1, tzinfo=timing_zone), datetime(2028, 9, 27, tzinfo=timing_zone)

    since = perf_counter()
    following = timing.next_after(begin)
    assert following is not None
    assert (following.at, timing.previous(end)) == (end, begin - timedelta(minutes=1))
    assert perf_counter() - since < 5.0, "minute by minute it takes half a minute"


@pytest.mark.parametrize(
    ("alias", "expression"),
    [("@hourly", "0 * * * *"), ("@daily", "0 0 * * *"), ("@weekly", "0 0 * * 0"), ("@Monthly", "0 0 1 * *")],
)
def test_an_alias_equals_its_expression(alias, expression):
    begin = datetime(2030, 1, 1, tzinfo=UTC)

    assert list(islice(cron(alias).after(begin), 5)) == list(islice(cron(expression).after(begin), 5))


def test_explanation_says_that_either_day_counts():
    assert "day of month or day of week" in cron("0 6 13 * 5").explain()
    assert "either" not in cron("0 6 * * 5").explain()


def test_the_end_of_time_ends_the_times():
    assert list(cron("0 0 1 1 *").after(datetime(9999, 6, 1, tzinfo=UTC))) == []
    assert list(Timing(kind="interval", expression="86400").after(datetime(9999, 12, 30, 12, tzinfo=UTC)))[1:] == []


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("61 * * * *", "expression: '61' is no valid minute"),
        ("* 24 * * *", "expression: '24' is no valid hour"),
        ("* * 32 * *", "expression: '32' is no valid day of month"),
        ("* * * 13 *", "expression: '13' is no valid month"),
        ("* * * * MON-XXX", "expression: 'MON-XXX' is no valid day of week"),
        ("*/0 * * * *", "expression: '*/0' is no valid minute"),
        ("0 0 30 2 *", "expression: '0 0 30 2 *' never fires"),
        ("0 * * * * *", "five fields"),
        ("", "five fields"),
        ("@reboot", "'@reboot' is none of @hourly"),
        ("*," * 200 + "* * * * *", "more than 200 characters"),
    ],
)
def test_a_wrong_expression_is_refused_by_field(expression, message):
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        cron(expression)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zone": "Mars/Olympus"}, "zone: 'Mars/Olympus' is no IANA time zone"),
        ({"zone": "../../etc/passwd"}, "zone: "),
        ({"zone": ""}, "zone: "),
        ({"kind": "interval", "expression": "0"}, "expression: an interval has 1 to"),
        ({"kind": "interval", "expression": "1.5"}, "expression: an interval is a number of seconds"),
        ({"kind": "interval", "expression": "9" * 30}, "expression: an interval has 1 to"),
        (
            {"starts_at": datetime(2030, 1, 2, tzinfo=UTC), "ends_at": datetime(2030, 1, 1, tzinfo=UTC)},
            "ends_at: is not later",
        ),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        Timing(**{"kind": "cron", "expression": "0 6 * * *", "zone": BERLIN, **options})
