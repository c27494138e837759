from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest

from dataloader.app.cli import text
from dataloader.app.cli.parsing import parse_time


@pytest.mark.parametrize(
    ("progress", "shown"),
    [
        ({}, ""),
        ({"processed": 500, "total": 1000}, "500 of 1000 (50%)"),
        ({"done": 7, "unit": "rows"}, "7 rows"),
        ({"done": 1.25, "total": 2.5}, "1.25 of 2.50 (50%)"),
        ({"processed": 5, "total": 0}, "5"),
        ({"processed": 5, "total": "many"}, "5"),
        ({"processed": True}, '{"processed": true}'),
        ({"processed": -1}, '{"processed": -1}'),
        ({"processed": 10**400}, '{"processed": 1' + "0" * 400 + "}"),
        ({"done": float("nan")}, '{"done": NaN}'),
        ({"step": "Банк", "of": [1]}, '{"step": "Банк", "of": [1]}'),
        ({"done": 1, "unit": 5}, "1"),
    ],
    ids=str,
)
def test_progress_has_numbers_if_known(progress, shown):
    assert text.format_progress(progress) == shown


def test_a_time_is_shown_on_the_clock_of_this_machine():
    at = datetime(2026, 11, 21, 10, tzinfo=UTC)

    shown = text.format_time(at)

    assert shown == at.astimezone().isoformat(sep=" ", timespec="seconds")
    assert parse_time(shown) == at, "what is shown can be given to an option"
    assert text.format_time("2026-11-21T10:00:00Z") == shown


def test_times_of_zone_of_terminal_are_shown_and_read(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        message = text.format_message("Paused since 2026-11-21 10:00:00 UTC by ann.")
        parsed = [parse_time(raw) for raw in ("2026-11-21 19:00", "2026-11-21T19:00:00", "2026-11-21T10:00:00Z")]
        day = parse_time("2026-11-21")
    finally:
        monkeypatch.undo()
        time.tzset()

    assert message == "Paused since 2026-11-21 19:00:00+09:00 by ann."
    assert parsed == [datetime(2026, 11, 21, 10, tzinfo=UTC)] * 3
    assert day == datetime(2026, 11, 20, 15, tzinfo=UTC)


def test_columns_are_as_wide_as_their_widest_cell():
    assert text.align_columns(("a", "b"), [("long", ""), ("", "x")]) == ["a     b", "long", "      x"]


@pytest.mark.parametrize("evil", ["\x9b2J", "\u202eabc", "\x7f", "\u2028", "\ufeff", "\U000e0001"])
def test_json_for_a_terminal_means_the_same_and_acts_on_nothing(evil):
    for written in (text.json_text({"a": [f"x{evil}y"]}), text.json_line({"a": [f"x{evil}y"]})):
        assert json.loads(written) == {"a": [f"x{evil}y"]}
        assert evil[0] not in written
