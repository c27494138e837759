"""`@schedule`: what the code of a task declares, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dataloader.pipelines.contract import Daily, Pipelines, load_tasks, schedule
from dataloader.pipelines.retry import Fixed
from dataloader.pipelines.schedule_definition import definition_from
from dataloader.pipelines.schedule_times import Timing
from dataloader.pipelines.schedules import schedules_of


@pytest.fixture
def known() -> Pipelines:
    return Pipelines()


def definitions(known: Pipelines) -> dict[str, dict]:
    declared = known.declared_schedules()
    assert json.loads(json.dumps(declared)) == declared
    return {item["name"]: item["definition"] for item in declared}


# ── what is declared ────────────────────────────────────────────────────────────────────────────────────────────────


def test_schedule_may_be_above_or_below_register(known):
    @known.register("below")
    @schedule("0 6 * * *")
    def below(args): ...

    @schedule("0 7 * * *")
    @known.register("above")
    def above(args): ...

    assert known.declared_schedules() == [
        {"name": "above", "task": "above", "definition": {"kind": "cron", "expression": "0 7 * * *", "task": "above"}},
        {"name": "below", "task": "below", "definition": {"kind": "cron", "expression": "0 6 * * *", "task": "below"}},
    ]
    assert below.__name__ == "below"


def test_declaration_has_the_fields_that_are_set(known):
    @known.register("load.sales", partitions=Daily("2024-01-01", zone="Europe/Moscow"))
    @schedule(
        "30 2 * * *", name="nightly", zone="Europe/Moscow", args={"day": "{interval_start:%Y-%m-%d}"},
        lock_key="sales", queue="etl", priority=50, max_attempts=3, time_limit=600, retry=Fixed(5),
        limits={"warehouse": 2}, gap="skip", fold="both", jitter=30, starts="2026-01-01T00:00:00+03:00",
        ends=datetime(2027, 1, 1, tzinfo=UTC), excluded=["2026-05-09", date(2026, 1, 7)], catch_up="all",
        catch_up_max=10, catch_up_window=timedelta(days=1), overlap="skip", grace=120,
    )  # fmt: skip
    def load_sales(args): ...

    assert definitions(known) == {
        "nightly": {
            "task": "load.sales", "kind": "cron", "expression": "30 2 * * *", "zone": "Europe/Moscow",
            "args": {"day": "{interval_start:%Y-%m-%d}"}, "lock_key": "sales", "queue": "etl", "priority": 50,
            "max_attempts": 3, "time_limit_sec": 600, "retry": {"kind": "fixed", "seconds": 5},
            "limits": {"warehouse": 2}, "gap": "skip", "fold": "both", "jitter_sec": 30,
            "starts_at": "2026-01-01T00:00:00+03:00", "ends_at": "2027-01-01T00:00:00+00:00",
            "excluded": ["2026-01-07", "2026-05-09"], "catch_up": "all", "catch_up_max": 10,
            "catch_up_window_sec": 86_400, "overlap": "skip", "grace_sec": 120,
            "partitions": {"unit": "day", "zone": "Europe/Moscow", "start": "2024-01-01", "end": None},
        }
    }  # fmt: skip


def test_declaration_is_a_definition_of_a_schedule(known):
    @known.register("t", partitions=Daily("2024-01-01"))
    @schedule("@daily", args={"day": "{partition}"}, starts="2026-01-01T00:00+03:00", excluded=["2026-05-09"])
    @schedule(every=60, name="interval", retry=Fixed(5), limits={"warehouse": 2}, jitter=5)
    @schedule(after=["warehouse.sales"], name="dataset", need="any", zone="UTC")
    def load(args): ...

    defined = {name: definition_from(values, zone="Asia/Tokyo") for name, values in definitions(known).items()}

    assert {name: one.zone for name, one in defined.items()} == {
        "t": "Asia/Tokyo", "interval": "Asia/Tokyo", "dataset": "UTC",
    }  # fmt: skip
    assert {one.task for one in defined.values()} == {"t"}
    assert defined["interval"].timing == Timing(kind="interval", expression="60", zone="Asia/Tokyo")


def test_option_at_its_default_is_not_declared(known):
    known.register("t")(schedule(every=60, gap="after", jitter=0, excluded=[], catch_up_max=100)(lambda args: None))

    assert definitions(known)["t"] == {"task": "t", "kind": "interval", "expression": "60"}


def test_schedule_that_is_off_says_so(known):
    known.register("t")(schedule(every=60, off=True)(lambda args: None))

    assert definitions(known)["t"]["off"] is True


@pytest.mark.parametrize("every", [90, 90.0, timedelta(seconds=90)])
def test_interval_is_seconds_or_a_timedelta(known, every):
    known.register("t")(schedule(every=every)(lambda args: None))

    assert definitions(known)["t"] == {"task": "t", "kind": "interval", "expression": "90"}


def test_updates_of_datasets_are_a_schedule(known):
    known.register("t")(schedule(after=["warehouse.sales", "warehouse.shops"], need="any")(lambda args: None))

    assert definitions(known)["t"] == {
        "task": "t", "kind": "dataset", "after": ["warehouse.sales", "warehouse.shops"], "need": "any",
    }  # fmt: skip


def test_several_schedules_keep_their_order_and_all_but_one_are_named(known):
    @known.register("t")
    @schedule("0 6 * * *")
    @schedule("0 7 * * *", name="second")
    @schedule(every=60, name="third")
    def load(args): ...

    assert [declared.name for declared in schedules_of(load)] == [None, "second", "third"]
    assert [*definitions(known)] == ["t", "second", "third"]


def test_command_has_a_schedule(known):
    schedule("0 6 * * *", args={"day": "x"})(known.command("legacy", ["python", "legacy.py", "{day}"]))

    assert definitions(known)["legacy"]["args"] == {"day": "x"}


def test_partial_has_a_schedule_and_a_subclass_has_not_that_of_its_base(known):
    class Load:
        def __init__(self, args): ...

    class Other(Load): ...

    known.register("base")(schedule(every=60)(Load))
    known.register("other")(Other)
    known.register("partial")(schedule(every=60)(partial(print, "x")))

    assert [*definitions(known)] == ["base", "partial"]


def test_a_task_whose_name_no_schedule_can_have_needs_one_of_its_own(known):
    known.register("a/b")(schedule(every=60)(lambda args: None))

    with pytest.raises(ValueError, match="without a slash, not 'a/b'"):
        known.declared_schedules()

    named = Pipelines()
    named.register("a/b")(schedule(every=60, name="a b")(lambda args: None))
    assert list(definitions(named)) == ["a b"]


def test_args_are_a_copy(known):
    args = {"days": ["x"]}
    known.register("t")(schedule(every=60, args=args)(lambda args: None))
    args["days"].append("y")

    assert definitions(known)["t"]["args"] == {"days": ["x"]}


def test_task_without_schedule_declares_none(known):
    known.register("t")(print)

    assert known.declared_schedules() == []


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({}, "one of cron, every and after"),
        ({"cron": "0 6 * * *", "every": 60}, "one of cron, every and after"),
        ({"cron": "0 6 * * *", "after": []}, "one of cron, every and after"),
        ({"cron": print}, r'cron is a text, as in @schedule\("0 6'),
        ({"every": 0}, "every is a whole number of seconds"),
        ({"every": 0.5}, "every is a whole number of seconds"),
        ({"every": float("nan")}, "every is a whole number of seconds"),
        ({"every": float("inf")}, "every is a whole number of seconds"),
        ({"every": timedelta(0)}, "every is a whole number of seconds"),
        ({"every": "60"}, "every is a number of seconds or a timedelta"),
        ({"every": True}, "every is a number of seconds or a timedelta"),
        ({"after": []}, "from 1 to 20 datasets, each once"),
        ({"after": ["a", "a"]}, "from 1 to 20 datasets, each once"),
        ({"after": "warehouse.sales"}, "after is a list of datasets"),
        ({"after": [7]}, "a dataset in after is a text"),
        ({"after": ["x" * 501]}, "at most 500 bytes"),
        ({"name": ""}, "name is a text"),
        ({"name": "x" * 201}, "name is a text of 1 to 200 bytes without a slash"),
        ({"name": "a/b"}, "without a slash, not 'a/b'"),
        ({"zone": 3}, "zone is a text"),
        ({"gap": "before"}, "gap is one of after, skip, not 'before'"),
        ({"fold": "last"}, "fold is one of first, second, both"),
        ({"catch_up": "none"}, "catch_up is one of last, all, skip"),
        ({"overlap": "buffer"}, "overlap is one of queue, skip, cancel, allow"),
        ({"need": "some"}, "need is one of all, any"),
        ({"jitter": -1}, "jitter is a whole number of seconds from 0 to 86,400, not -1"),
        ({"jitter": True}, "jitter is a number of seconds"),
        ({"jitter": 86_401}, "jitter is a whole number of seconds from 0 to 86,400, not 86401"),
        ({"catch_up_max": 0}, "catch_up_max is a whole number from 1"),
        ({"catch_up_window": 0}, "catch_up_window is a whole number of seconds"),
        ({"grace": "x"}, "grace is a number of seconds"),
        ({"priority": -1}, "priority is a whole number from 0"),
        ({"max_attempts": 0}, "max_attempts is a whole number from 1"),
        ({"time_limit": 1.5}, "time_limit is a whole number of seconds"),
        ({"queue": " "}, "queue is a text"),
        ({"lock_key": "a\nb"}, "lock_key is a text"),
        ({"starts": "2026-01-01"}, "starts is a time with its UTC offset"),
        ({"starts": datetime(2026, 1, 1)}, "starts is a time with its UTC offset"),  # noqa: DTZ001
        ({"starts": 7}, "starts is a time with its UTC offset"),
        ({"ends": "soon"}, "ends is a time with its UTC offset"),
        ({"excluded": "2026-05-09"}, "excluded is a list of days"),
        ({"excluded": ["9 May"]}, "excluded has days such as 2030-01-31, not '9 May'"),
        ({"excluded": [datetime(2026, 5, 9, tzinfo=UTC)]}, "excluded has days"),
        ({"excluded": [date(2026, 1, 1) + timedelta(n) for n in range(1_001)]}, "at most 1,000 days"),
        ({"args": ["x"]}, "args is an object"),
        ({"args": {"day": date(2026, 1, 1)}}, "args are no JSON"),
        ({"args": {"rate": float("nan")}}, "args are no JSON"),
        ({"limits": {"a*": 1}}, "limits: "),
        ({"limits": {"a": 0}}, "limits: the weight of 'a'"),
        ({"retry": 5}, "retry: kind must be one of"),
        ({"color": "red"}, "'color' is no option of a schedule; it has zone, "),
        ({"off": 1}, "off is True or False, not 1"),
        ({"cron": "0 6 * *"}, "expression: a cron expression has five fields"),
        ({"cron": "0 25 * * *"}, "expression: '25' is no valid hour"),
        ({"cron": "0 0 30 2 *"}, "never fires"),
        ({"every": 367 * 86_400}, "expression: an interval has 1 to"),
        ({"every": 60, "zone": "Moscow"}, "zone: 'Moscow' is no IANA time zone"),
        ({"every": 60, "zone": "localtime"}, "zone: 'localtime' is no IANA time zone"),
        ({"after": ["a"], "zone": "Moscow"}, "zone: 'Moscow' is no IANA time zone"),
        ({"starts": "2026-01-02T00:00Z", "ends": "2026-01-01T00:00Z"}, "ends_at: is not later than starts_at"),
        ({"args": {"days": ["{yesterday}"]}}, "args.days.0: {yesterday} is none of the placeholders"),
        ({"args": {"day": "{interval_start:%Q}"}}, "args.day: .* no strftime format"),
        ({"lock_key": "sales:{"}, "lock_key: the braces"),
    ],
)
def test_schedule_that_makes_no_sense_is_refused(wrong, why):
    times: dict[str, Any] = {} if not wrong or wrong.keys() & {"cron", "every", "after"} else {"cron": "0 6 * * *"}

    with pytest.raises((TypeError, ValueError), match=why):
        schedule(**times, **wrong)


def test_second_schedule_without_a_name_is_refused():
    with pytest.raises(ValueError, match="several schedules: all but one need a name"):
        schedule(every=60)(schedule(every=90)(lambda args: None))
    with pytest.raises(ValueError, match="two schedules with the name 'x'"):
        schedule(every=60, name="x")(schedule(every=90, name="x")(lambda args: None))


def test_callable_that_holds_no_attributes_is_refused():
    with pytest.raises(TypeError, match="decorate a function that calls it"):
        schedule(every=60)([].append)


def test_one_name_for_schedules_of_two_tasks_is_an_error_of_the_load(known):
    known.register("a")(schedule(every=60, name="nightly")(lambda args: None))
    assert load_tasks([], known_tasks=known) == {}

    known.register("nightly")(schedule(every=60)(lambda args: None))
    with pytest.raises(ValueError, match="the name 'nightly': of task 'a' and of task 'nightly'"):
        known.declared_schedules()
    assert "of task 'a' and of task 'nightly'" in load_tasks([], known_tasks=known)["schedules"]


def test_slices_have_one_zone_whatever_the_zone_of_a_schedule():
    values = {"task": "t", "expression": "0 6 * * *", "zone": "America/New_York"}
    noon = datetime(2030, 1, 2, 12, tzinfo=UTC)
    for named, zone in ((None, "Asia/Tokyo"), ("Europe/Moscow", "Europe/Moscow")):
        partitions = {"unit": "day", "start": "2024-01-01", "zone": named}
        definition = definition_from({**values, "partitions": partitions}, zone="Asia/Tokyo")
        interval = definition.times_of_job(noon).interval
        assert interval is not None
        assert interval.start.astimezone(ZoneInfo(zone)).hour == 0
