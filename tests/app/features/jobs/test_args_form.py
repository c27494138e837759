"""The inputs of args, made from a JSON Schema, and the args of what they hold."""

from __future__ import annotations

from datetime import date, datetime
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from dataloader.app.features.jobs.args_form import ArgsForm, input_of
from dataloader.app.http.json_io import FieldError


class Source(BaseModel):
    host: str


class Load(BaseModel):
    day: date
    since: datetime | None = None
    mode: Literal["full", "delta"] = "full"
    shard: Literal[1, 2] | None = None
    dry: bool = False
    strict: bool | None = None
    batch: int = Field(500, ge=1, lt=1_000)
    share: float | None = None
    currencies: list[str] = ["USD", "EUR"]
    ids: list[int] = []
    title: str = "daily"
    source: Source | None = None


@pytest.fixture
def form() -> ArgsForm:
    return ArgsForm(Load.model_json_schema(), "Europe/Moscow")


def sent(form, **values):
    """What a browser sends of the form: all inputs but check boxes that are not ticked."""
    texts = {made.name: made.value for made in form.inputs() if made.kind != "checkbox" or made.value}
    return texts | {f"arg_{name}": text for name, text in values.items()}


def test_kinds_of_inputs_follow_the_schema(form):
    inputs = {made.arg: made for made in form.inputs()}

    assert {name: made.kind for name, made in inputs.items()} == {
        "day": "date", "since": "datetime-local", "mode": "choice", "shard": "choice", "dry": "checkbox",
        "strict": "choice", "batch": "number", "share": "number", "currencies": "lines", "ids": "lines",
        "title": "text", "source": "json",
    }  # fmt: skip
    assert [name for name, made in inputs.items() if made.is_required] == ["day"]
    assert inputs["batch"].attributes == {"step": 1, "min": 1, "max": 999}
    assert inputs["share"].attributes == {"step": "any"}
    assert inputs["shard"].options == [("", ""), ("1", "1"), ("2", "2")]
    assert inputs["currencies"].value == "USD\nEUR"
    assert (inputs["batch"].value, inputs["mode"].value, inputs["title"].value) == ("500", "full", "daily")


def test_form_as_it_is_makes_valid_args(form):
    args, errors = form.parse(sent(form, day="2026-11-22"))

    assert errors == []
    assert Load.model_validate(args) == Load(day=date(2026, 11, 22))


def test_texts_become_values_of_their_type(form):
    args, errors = form.parse(
        sent(form, day="2026-11-22", since="2026-11-22T06:00", shard="2", dry="true", strict="false", batch="7",
             share="0.5", currencies="USD\r\n\r\n CNY ", ids="1\n22", title="", source='{"host": "x"}')
    )  # fmt: skip

    assert errors == []
    assert args == {
        "day": "2026-11-22", "since": "2026-11-22T06:00:00+03:00", "mode": "full", "shard": 2, "dry": True,
        "strict": False, "batch": 7, "share": 0.5, "currencies": ["USD", "CNY"], "ids": [1, 22], "title": "",
        "source": {"host": "x"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("batch", "many", "is not JSON"),
        ("mode", "half", "is none of: full, delta"),
        ("ids", "1\nx", "is not JSON"),
        ("source", "{", "is not JSON"),
    ],
)
def test_texts_without_a_value_are_errors_of_their_arg(form, field, text, message):
    _, errors = form.parse(sent(form, day="2026-11-22", **{field: text}))

    assert [error.field for error in errors] == [f"args.{field}"]
    assert message in errors[0].message


def test_reference_to_a_secret_fits_any_input(form):
    reference = {"$secret": "title"}

    args, errors = form.parse(sent(form, day="2026-11-22", title='{"$secret": "title"}'))
    shown = {made.arg: made for made in form.inputs({"day": "2026-11-22", "title": reference})}

    assert (args["title"], errors) == (reference, [])
    assert shown["title"].kind == "json"


def test_values_of_a_job_are_shown_and_read_back(form):
    args = {
        "day": "2026-11-22", "since": "2026-11-22T03:00:00+00:00", "mode": "delta", "dry": True, "strict": True,
        "batch": 3, "currencies": ["a b", "c"], "source": {"host": "x"},
    }  # fmt: skip
    values = {made.name: made.value for made in form.inputs(args)}

    assert values["arg_since"] == "2026-11-22T06:00:00"
    read, errors = form.parse(values)
    assert errors == []
    assert read | {"since": args["since"]} == args | {"title": "daily"}  # what the job left out has its default


def test_list_that_lines_cannot_hold_is_shown_as_json(form):
    (made,) = [each for each in form.inputs({"currencies": ["two\nlines", " x"]}) if each.arg == "currencies"]

    args, _ = form.parse(sent(form, day="2026-11-22", currencies=made.value))

    assert made.kind == "json"
    assert args["currencies"] == ["two\nlines", " x"]


def test_args_without_a_schema_are_json():
    form = ArgsForm(None, "UTC")

    assert form.inputs() == []
    assert form.parse({"args": '{"x": [1]}'}) == ({"x": [1]}, [])
    assert form.parse({"args": "[]"})[1] == [FieldError("args", "is not a JSON object such as {}")]


def test_args_of_no_input_cannot_be_shown(form):
    assert form.can_show({"day": "2026-11-22"})
    assert not form.can_show({"unknown": 1})


def test_errors_of_args_become_errors_of_inputs():
    assert [input_of(field) for field in ("args.ids[0]", "queue")] == ["arg_ids[0]", "queue"]
