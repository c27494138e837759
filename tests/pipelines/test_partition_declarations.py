"""Partitions as tasks declare them, and lists of keys."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest

from dataloader.pipelines.partitions import (
    Daily,
    Hourly,
    Listed,
    Monthly,
    Partitions,
    Slice,
    Weekly,
    partitions_from_json,
)

CALENDARS: tuple[Any, ...] = (Hourly, Daily, Weekly, Monthly)


# ── declarations ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("declared", "same"),
    [
        (Daily(date(2024, 1, 1)), Daily("2024-01-01")),
        (Daily(datetime(2024, 1, 1)), Daily("2024-01-01")),  # noqa: DTZ001
        (Monthly(start="2024-01-01", end=date(2024, 3, 1)), Monthly("2024-01-01", end="2024-03-01")),
        (Hourly(datetime(2024, 1, 1, 5)), Hourly("2024-01-01T05")),  # noqa: DTZ001
        (Hourly(datetime(2024, 1, 1, 5, tzinfo=UTC)), Hourly("2024-01-01T05+00:00")),
    ],
)
def test_dates_are_the_same_as_texts(declared, same):
    assert declared == same
    assert hash(declared) == hash(same)


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (lambda: Daily(""), "start of Daily: '' names no time"),
        (lambda: Daily(7), "start of Daily: a text such as '2030-01-31' or a date"),  # type: ignore[arg-type]
        (lambda: Daily("2024-01-01", end="soon"), "end of Daily: 'soon' names no time"),
        (lambda: Daily("2024-01-01T05"), "is an hour; write it as 2030-01-31"),
        (lambda: Daily(datetime(2024, 1, 1, 5)), "has a time; give a date"),  # noqa: DTZ001
        (lambda: Daily(datetime(2024, 1, 1, tzinfo=UTC)), "has a time; give a date"),
        (lambda: Hourly(datetime(2024, 1, 1, 5, 30)), "not the beginning of an hour"),  # noqa: DTZ001
        (lambda: Hourly("2030-03-31T02", zone="Europe/Berlin"), "does not exist in Europe/Berlin"),
        (lambda: Daily("2024-01-01", zone="Moscow"), "no time zone 'Moscow'"),
        (lambda: Daily("2024-01-01", zone="Europe"), "no time zone 'Europe'"),
        (lambda: Daily("2024-01-01", zone="../etc/passwd"), "no time zone"),
        (lambda: Daily("2024-01-01", zone=""), "no time zone"),
        (lambda: Daily("2024-01-01", zone=3), "zone is a name"),  # type: ignore[arg-type]
        (lambda: Daily("2024-01-02", zone="UTC", end="2024-01-01"), "the end 2024-01-01 is before the start"),
        (lambda: Listed([]), "from 1 to 100,000 keys, not 0"),
        (lambda: Listed("north"), "is a list of texts"),
        (lambda: Listed({"north"}), "is a list of texts"),  # type: ignore[arg-type]
        (lambda: Listed(["north", "south", "north"]), "'north' is listed twice"),
        (lambda: Listed(["north", " "]), "neither empty"),
        (lambda: Listed(["a\nb"]), "control characters"),
        (lambda: Listed([7]), "a key is a text"),  # type: ignore[list-item]
        (lambda: Listed(["я" * 101]), "at most 200 bytes"),
    ],
)
def test_nonsense_is_refused_at_declaration(declare, why):
    with pytest.raises((TypeError, ValueError), match=why):
        declare()


def test_zone_is_filled_in_later_unless_there_is_one():
    assert Daily("2024-01-01").in_zone("Asia/Tokyo") == Daily("2024-01-01", zone="Asia/Tokyo")
    assert Daily("2024-01-01", zone="UTC").in_zone("Asia/Tokyo").zone == "UTC"
    assert Listed(["a"]).in_zone("Asia/Tokyo") == Listed(["a"])
    with pytest.raises(ValueError, match="does not exist"):
        Hourly("2030-03-31T02").in_zone("Europe/Berlin")


@pytest.mark.parametrize(
    ("partitions", "raw"),
    [
        (Daily("2024-01-01", zone="UTC"), {"unit": "day", "zone": "UTC", "start": "2024-01-01", "end": None}),
        (Hourly("2024-01-01T05"), {"unit": "hour", "zone": None, "start": "2024-01-01T05", "end": None}),
        (Weekly("2024-W01", end="2024-W09"), {"unit": "week", "zone": None, "start": "2024-W01", "end": "2024-W09"}),
        (Monthly("2024-01"), {"unit": "month", "zone": None, "start": "2024-01", "end": None}),
        (Listed(["north", "юг"]), {"list": ["north", "юг"]}),
    ],
)
def test_json_form_returns_the_same_partitions(partitions: Partitions, raw):
    assert partitions.to_json() == raw
    assert partitions_from_json(json.loads(json.dumps(raw))) == partitions


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ([], "an object such as"),
        ({}, "unit is one of hour, day, week, month, not None"),
        ({"unit": "year", "start": "2024"}, "unit is one of"),
        ({"unit": ["day"], "start": "2024-01-01"}, "unit is one of"),
        ({"unit": "day"}, "start of Daily"),
        ({"unit": "day", "start": 7}, "start of Daily"),
        ({"unit": "day", "start": "2024-01-01", "begin": 1}, "unknown field 'begin'; expected end, start, unit, zone"),
        ({"unit": "day", "start": "2024-01-01", "zone": 7}, "zone is a name"),
        ({"list": "north"}, "list of texts"),
        ({"list": {"north": 1}}, "list of texts"),
        ({"list": []}, "from 1 to"),
        ({"list": ["north"], "zone": "UTC"}, "unknown field 'zone'"),
    ],
)
def test_other_json_is_refused(raw, why):
    with pytest.raises(ValueError, match=why):
        partitions_from_json(raw)


# ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_listed_slices_keep_the_order_of_the_list():
    regions = Listed(["north", "east", "south", "west"])

    def keys(*args: Any, **options: Any) -> list[str]:
        return [found.key for found in regions.slices(*args, **options)]

    assert keys() == ["north", "east", "south", "west"]
    assert keys("east") == ["south", "west"]
    assert keys("west") == keys("north", newest_first=True) == []
    assert keys(newest_first=True) == ["west", "south", "east", "north"]
    assert keys("south", newest_first=True) == ["east", "north"]
    assert regions.count() == 4
    assert regions.slice("east") == Slice("east", None, None)
    assert regions.between("east", "south") == Listed(["east", "south"])
    assert regions.between(last="north") == Listed(["north"])
    assert (
        regions.slice_at(datetime(2024, 1, 1, tzinfo=UTC))
        is regions.last_ended(datetime(2024, 1, 1, tzinfo=UTC))
        is None
    )


def test_key_that_is_not_listed_is_refused():
    regions = Listed(["north", "south"])

    for ask in (lambda: regions.slice("up"), lambda: regions.between("up"), lambda: next(regions.slices("up"))):
        with pytest.raises(ValueError, match="'up' is none of the slices north, south"):
            ask()
    with pytest.raises(ValueError, match="'north' is listed before 'south'"):
        regions.between("south", "north")
