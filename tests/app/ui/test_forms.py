from __future__ import annotations

import pytest

from dataloader.app.features.limits.acts import LimitSetting
from dataloader.app.ui.base import InvalidForm
from dataloader.app.ui.forms import format_duration, parse_duration, parse_number, validate_form


@pytest.mark.parametrize(
    ("raw", "value"),
    [("", None), (" 7 ", 7), ("-1", -1), ("0.5", 0.5), ("1e3", "1e3"), ("x", "x"), ("9" * 30, "9" * 30)],
)
def test_parse_number_leaves_other_texts_to_the_model(raw, value):
    assert parse_number(raw) == value


@pytest.mark.parametrize(("raw", "seconds"), [("", None), ("90", 90), ("1.5", 1.5), ("30m", 1800), ("1h 30m", 5400)])
def test_parse_duration_takes_units_and_seconds(raw, seconds):
    assert parse_duration("wait", raw) == seconds


@pytest.mark.parametrize("raw", ["soon", "1 month", "h", "-5", "1h " * 30])
def test_parse_duration_refuses_other_texts_at_the_field(raw):
    with pytest.raises(InvalidForm) as refused:
        parse_duration("wait", raw)
    assert [error.field for error in refused.value.errors] == ["wait"]


@pytest.mark.parametrize("seconds", [None, 0, 0.5, 45, 60, 90, 3600, 86_400, 604_800])
def test_format_duration_is_what_parse_duration_takes(seconds):
    assert parse_duration("wait", format_duration(seconds)) == seconds


def test_validate_form_names_the_fields_of_the_form():
    assert validate_form(LimitSetting, {"concurrency": 3, "rate": None}).concurrency == 3
    with pytest.raises(InvalidForm) as refused:
        validate_form(LimitSetting, {"concurrency": "x", "rate": 0}, names={"rate": "starts"})
    assert [error.field for error in refused.value.errors] == ["concurrency", "starts"]
