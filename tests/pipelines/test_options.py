"""Options of a task: args and keys."""

from __future__ import annotations

import json
from datetime import date
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from dataloader.pipelines.contract import Daily, Fail, Listed, Pipelines, TaskOptions, load_tasks
from dataloader.pipelines.job_args import Template
from dataloader.pipelines.retry import Fixed, RetryAction
from tests.support.rates_args import SCHEMA, Rates


def task_of(known: Pipelines, call: Any = lambda args: args, **options: Any) -> Any:
    known.register("t", **options)(call)
    return known.get("t")


# ── options ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_task_without_options_has_the_defaults(known):
    assert task_of(known).options == TaskOptions()


def test_options_of_the_author_are_kept(known):
    options = task_of(
        known, args=SCHEMA, retry=Fixed(5), no_retry=[ValueError], rules={"40001": "retry"}, time_limit=60,
        isolation="process", interrupt=True, queue="etl", lock_key="k", memory_mb=512, cpu_sec=60,
        requires={"gpu": True, "zone": "north"},
    ).options  # fmt: skip

    assert (options.retry, options.time_limit, options.isolation, options.interrupt) == (Fixed(5), 60, "process", True)
    assert (options.queue, options.lock_key, options.memory_mb, options.cpu_sec) == ("etl", "k", 512, 60)
    assert options.rules.entries == ((ValueError, RetryAction.FAIL), ("40001", "retry"))
    assert options.args == SCHEMA
    assert known.declared_requirements() == {"t": {"gpu": True, "zone": "north"}}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"isolation": "fiber"}, "'thread' or 'process'"),
        ({"retry": 5}, "retry is a policy"),
        ({"time_limit": 0}, "time_limit is a number greater than 0"),
        ({"time_limit": float("nan")}, "time_limit is"),
        ({"time_limit": True}, "time_limit is"),
        ({"time_limit": "1"}, "time_limit is"),
        ({"memory_mb": 1.5, "isolation": "process"}, "memory_mb is a whole number"),
        ({"cpu_sec": -1, "isolation": "process"}, "cpu_sec is a whole number"),
        ({"memory_mb": 100}, "needs isolation='process'"),
        ({"cpu_sec": 100}, "needs isolation='process'"),
        ({"queue": " "}, "queue is a text"),
        ({"queue": 7}, "queue is a text"),
        ({"lock_key": "a\nb"}, "lock_key is a text"),
        ({"lock_key": "{a.b}"}, "between braces"),
        ({"args": 7}, "a pydantic model or a JSON Schema"),
        ({"args": int}, "a pydantic model or a JSON Schema"),
        ({"args": {"type": "nonsense"}}, "no JSON Schema"),
        ({"args": {"$ref": "http://127.0.0.1:9/schema.json"}}, "no JSON Schema"),
        ({"args": {"$ref": "#/nowhere"}}, "no JSON Schema"),
        ({"args": {"pattern": "("}}, "no JSON Schema"),
        ({"no_retry": "ValueError"}, "no_retry is a list"),
        ({"no_retry": [int]}, "neither an exception class"),
        ({"rules": {"X": "never"}}, "not a rule"),
        ({"partitions": {"unit": "day", "start": "2024-01-01"}}, "partitions are slices such as Daily"),
        ({"partitions": Daily}, "partitions are slices such as Daily"),
        ({"requires": ["gpu"]}, "requires maps labels to values"),
        ({"requires": {"Gpu": True}}, "a label has 1 to 63 of a-z"),
        ({"requires": {"gpu": 1}}, "label 'gpu' is True, False or a text"),
        ({"requires": {"gpu": "true"}}, "label 'gpu' is True, False or a text"),
        ({"requires": {f"l{n}": True for n in range(21)}}, "at most 20 labels"),
    ],
)
def test_invalid_options_are_refused_at_registration(known, wrong, why):
    with pytest.raises((TypeError, ValueError), match=why):
        known.register("t", **wrong)
    assert len(known) == 0


def test_declared_partitions_are_those_of_functions_commands_and_settings(known):
    known.register("daily", partitions=Daily("2024-01-01", zone="Europe/Moscow"))(print)
    known.register("other")(print)
    known.command("regions", ["load"], partitions=Listed(["north", "south"]))
    raw = {"unit": "month", "start": "2024-01"}
    settings = {
        "called": {"call": "builtins:print", "partitions": raw},
        "run": {"command": ["load"], "partitions": {**raw, "end": "2024-12"}},
        "broken": {"command": ["load"], "partitions": {"unit": "year"}},
    }

    assert load_tasks([], settings, known_tasks=known).keys() == {"task broken"}
    assert known.declared_partitions() == {
        "called": {"unit": "month", "zone": None, "start": "2024-01", "end": None},
        "daily": {"unit": "day", "zone": "Europe/Moscow", "start": "2024-01-01", "end": None},
        "regions": {"list": ["north", "south"]},
        "run": {"unit": "month", "zone": None, "start": "2024-01", "end": "2024-12"},
    }


# ── args ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_task_without_schema_takes_any_args(known):
    task = task_of(known)

    assert task.check_args({"any": ["thing"]}) == []
    assert task.args_schema() is None


@pytest.mark.parametrize(
    ("values", "field_errors"),
    [
        ({"day": "2026-11-21"}, {}),
        ({"day": "2026-11-21", "currencies": ["USD"], "rows": [{"name": "x"}]}, {}),
        ({}, {"day": "is required"}),
        ({"day": "2026-11-21", "more": 1}, {"more": "is no argument of this task; leave it out"}),
        ({"day": "2026-11-21", "rows": [{"name": "x"}, {}]}, {"rows[1].name": "is required"}),
        ({"day": "2026-11-21", "a b": 1}, {'["a b"]': "is no argument of this task; leave it out"}),
    ],
)
def test_args_are_validated_by_a_model(known, values, field_errors):
    assert dict(task_of(known, args=Rates).check_args(values)) == field_errors


@pytest.mark.parametrize(
    ("values", "field_errors"),
    [
        ({"day": "2026-11-21"}, {}),
        ({"day": "2026-11-21", "size": 10, "rows": [{"name": "x"}], "mode": "full"}, {}),
        ({}, {"day": "is required"}),
        ({"day": "2026-11-21", "more": 1, "a b": 1}, dict.fromkeys(
            ["more", '["a b"]'], "is no argument of this task; leave it out")),
        ({"day": "2026-11-21", "rows": [{"name": "x"}, {}]}, {"rows[1].name": "is required"}),
        ({"day": "2026-11-21", "size": 0}, {"size": "is less than the minimum of 1"}),
        ({"day": "soon"}, {"day": 'is not a "date"'}),
        ({"day": "2026-11-21", "size": 10**300}, {"size": "is greater than the maximum of 10"}),
    ],
)  # fmt: skip
def test_args_are_validated_by_a_json_schema(known, values, field_errors):
    assert dict(task_of(known, args=SCHEMA).check_args(values)) == field_errors


class Card(BaseModel):
    kind: Literal["card"]


class Cash(BaseModel):
    kind: Literal["cash"]


class Tagged(BaseModel):
    what: Card | Cash = Field(discriminator="kind")


@pytest.mark.parametrize(
    ("args", "values"),
    [
        (Rates, {"day": "s3cret", "currencies": ["s3cret"], "rows": ["s3cret", {"name": ["s3cret"]}]}),
        (SCHEMA, {"day": "s3cret", "size": "s3cret", "rows": ["s3cret"], "mode": "s3cret"}),
        (Tagged, {"what": {"kind": "s3cret"}}),
        ({"properties": {"a": {"const": 1}, "b": {"pattern": "^x$"}}}, {"a": "s3cret", "b": "s3cret"}),
        ({"properties": {"a": {"not": {"type": "string"}}}}, {"a": "s3cret"}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": ["s3cret", "s3cret"]}),
        ({"properties": {"a": {"anyOf": [{"type": "null"}, {"maxLength": 3}]}}}, {"a": "s3cret"}),
    ],
)  # fmt: skip
def test_errors_repeat_no_value(known, args, values):
    task = task_of(known, args=args)
    field_errors = task.check_args(values)

    assert len(field_errors) >= len(values)
    assert "s3cret" not in str(field_errors)
    with pytest.raises(Fail) as refused:
        task.start(values, None)
    assert "s3cret" not in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["day", "size", "rows", "currencies", "?"]), JSON))
def test_any_json_args_return_errors(args):
    known = Pipelines()
    known.register("model", args=Rates)(print)
    known.register("schema", args=SCHEMA)(print)

    for task in known:
        assert all(message and f"{path}" == path for path, message in task.check_args(args))


class Picky(BaseModel):
    code: str

    @field_validator("code")
    @classmethod
    def looked_up(cls, code):
        return {"a": "A"}[code]


def test_model_that_raises_refuses_the_args(known):
    assert task_of(known, args=Picky).check_args({"code": "s3cret"}) == [
        ("", "could not be checked: the task's model raised KeyError")
    ]


class Untold(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    thing: complex | Any = None
    other: Pipelines | None = None


def test_args_schema_is_returned(known):
    assert task_of(known, args=SCHEMA).args_schema() == SCHEMA
    schema = task_of(Pipelines(), args=Rates).args_schema()
    assert schema["required"] == ["day"]
    json.dumps(schema)


def test_model_without_json_schema_is_any_object(known):
    assert task_of(known, args=Untold).args_schema() == {"type": "object"}


def test_parameter_annotated_with_the_model_gets_it(known):
    def load(rates: Rates, ctx):
        return rates, ctx

    read, context = task_of(known, load, args=Rates).start({"day": "2026-11-21"}, "context")

    assert read == Rates(day=date(2026, 11, 21))
    assert context == "context"


def test_annotation_may_be_text_and_callable_a_partial(known):
    def load(rates, more=None):
        return rates

    load.__annotations__["rates"] = Rates

    assert isinstance(task_of(known, partial(load, more=1), args=Rates).start({"day": "2026-11-21"}, None), Rates)


@pytest.mark.parametrize(
    ("call", "gets"),
    [
        (lambda args: args, {"day": "2026-11-21"}),
        (lambda: "nothing", "nothing"),
        (lambda day, rows: (day, rows), None),
    ],
)
def test_other_parameter_gets_the_args_unchanged(known, call, gets):
    sent: dict[str, Any] = {"day": "2026-11-21"} | ({"rows": []} if gets is None else {})

    assert task_of(known, call, args=Rates).start(sent, None) == (gets or ("2026-11-21", []))


def test_spread_passes_the_context_by_its_name(known):
    def load(customer, day, ctx):
        return customer, day, ctx

    assert task_of(known, load).start({"customer": 7, "day": "x"}, "c") == (7, "x", "c")


def test_callable_with_json_schema_gets_the_object(known):
    assert task_of(known, args=SCHEMA).start({"day": "2026-11-21"}, None) == {"day": "2026-11-21"}


@pytest.mark.parametrize("args", [Rates, SCHEMA])
def test_invalid_args_fail_the_job_and_name_fields(known, args):
    with pytest.raises(Fail, match=r"the args do not fit: .*day: is required") as refused:
        task_of(known, args=args).start({"more": 1}, None)
    assert "more: is no argument of this task" in str(refused.value)


# ── the lock key ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("template", "args", "key"),
    [
        ("plain", {}, "plain"),
        ("customer:{id}", {"id": 7}, "customer:7"),
        ("{a}/{b-c}/{d_1}", {"a": "x", "b-c": 1.5, "d_1": True}, "x/1.5/true"),
        ("{{{a}}}", {"a": "x"}, "{x}"),
        ("{a}", {"a": "{b}"}, "{b}"),
        ("{имя}", {"имя": "Банк"}, "Банк"),
    ],
)
def test_lock_key_is_filled_from_the_args(known, template, args, key):
    assert task_of(known, lock_key=template).fill_lock_key(args) == key


@pytest.mark.parametrize("args", [{}, {"id": None}, {"id": [1]}, {"id": {"a": 1}}])
def test_argument_unfit_for_a_lock_key_is_named(known, args):
    with pytest.raises(ValueError, match="'id'"):
        task_of(known, lock_key="customer:{id}").fill_lock_key(args)


def test_task_without_lock_key_raises(known):
    with pytest.raises(ValueError, match="has no lock_key"):
        task_of(known).fill_lock_key({})


@pytest.mark.parametrize(
    "text",
    ["{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{}", "{a b}", "{__class__.__init__}", "{", "}", "{a", "a}", "{{a}", "{a{b}}"
    ],
)  # fmt: skip
def test_template_accepts_no_expressions(text):
    with pytest.raises(ValueError, match="braces"):
        Template(text)


@given(st.text())
def test_doubled_braces_stay_braces(text):
    assert Template(text.replace("{", "{{").replace("}", "}}")).fill({}) == text
