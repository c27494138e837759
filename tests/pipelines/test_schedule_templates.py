"""Templates of scheduled jobs: what is filled in, what stays, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dataloader.pipelines.schedule_templates import check_template, fill_template

VALUES = {
    "logical_at": datetime(2030, 1, 2, tzinfo=UTC),
    "interval_start": datetime(2030, 1, 1, tzinfo=UTC),
    "interval_end": datetime(2030, 1, 2, tzinfo=UTC),
    "partition": "2030-01-01",
}


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{logical_at}", "2030-01-02T03:00:00+03:00"),
        ("{interval_start:%Y-%m-%d}/{interval_end:%H}", "2030-01-01/03"),
        ("{interval_start:%-d.%-m, 100%%}", "1.1, 100%"),
        ("day={partition}", "day=2030-01-01"),
        ("{{partition}} {partition}", "{partition} 2030-01-01"),
        ({"a": ["{partition}", {"b": "{logical_at:%Y}"}], "n": 1}, {"a": ["2030-01-01", {"b": "2030"}], "n": 1}),
        ({"{partition}": None}, {"{partition}": None}),
        ({"$secret": "{name}"}, {"$secret": "{name}"}),
        ([{"$result": "extract.{x}"}], [{"$result": "extract.{x}"}]),
    ],
)
def test_a_template_is_filled_in_the_schedules_zone(template, filled):
    check_template(template)

    assert fill_template(template, VALUES, "Europe/Moscow") == filled


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{day}", "{day} is none of the placeholders {logical_at}, {interval_start}, {interval_end}, {partition}"),
        ({"args": ["{}"]}, "args.0: {} is none of the placeholders"),
        ("{logical_at.year}", "{logical_at.year} is none of the placeholders"),
        ("{logical_at!r}", "is none of the placeholders"),
        ("{partition", "the braces of '{partition' do not match"),
        ("{partition:%Y}", "is no strftime format"),
        ("{logical_at:%Q}", "is no strftime format"),
        ("{logical_at:%-Q}", "is no strftime format"),
        ("{logical_at:%-}", "is no strftime format"),
        ("{logical_at:%:q}", "is no strftime format"),
        ("{logical_at:%:z}", "is no strftime format"),
        ("{logical_at:100%}", "is no strftime format"),
        ("{logical_at:{partition}}", "is no strftime format"),
    ],
)
def test_a_template_that_no_job_can_fill_is_refused_early(template, message):
    for refused in (lambda: check_template(template), lambda: fill_template(template, VALUES, "UTC")):
        with pytest.raises(ValueError) as error:
            refused()
        assert message in str(error.value)


def test_a_placeholder_without_value_is_refused_when_filled():
    check_template("{partition}")

    with pytest.raises(ValueError, match="this job has no partition"):
        fill_template("{partition}", {**VALUES, "partition": None}, "UTC")
