"""Options of a task: args, keys, commands, and tasks from the settings."""

from __future__ import annotations

import json
import sys
from datetime import date
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from pipelines.contract import Command, Daily, Fail, Listed, Pipelines, TaskConflict, TaskKind, TaskOptions, load_tasks
from pipelines.job_args import Template
from pipelines.retry import Exponential, Fixed, RetryAction
from pipelines.task import fill_argv


class Row(BaseModel):
    name: str


class Rates(BaseModel):
    model_config = ConfigDict(extra="forbid")

    day: date
    currencies: list[Literal["USD", "EUR"]] = []
    rows: list[Row] = []


SCHEMA = {
    "type": "object",
    "required": ["day"],
    "additionalProperties": False,
    "properties": {
        "day": {"type": "string", "format": "date"},
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "rows": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "mode": {"enum": ["full", "delta"]},
    },
}


@pytest.fixture
def known() -> Pipelines:
    return Pipelines()


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


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_command_arguments_are_single_items(known):
    command = Command(("python", "legacy.py", "--date={date}", "{more}", "{{}}", "{a}{b}"))

    assert fill_argv(command.argv, {"date": "$(rm -rf /); 'x'", "more": "two words\n", "a": 1, "b": None}) == (
        "python", "legacy.py", "--date=$(rm -rf /); 'x'", "two words\n", "{}", "1null",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [("x", "x"), (7, "7"), (1.5, "1.5"), (True, "true"), (None, "null"), ([1, "ё"], '[1,"ё"]'), ({"a": 1}, '{"a":1}')],
)
def test_text_is_passed_unchanged_and_the_rest_as_json(value, text):
    assert fill_argv(("x", "{a}"), {"a": value}) == ("x", text)


def test_missing_argument_or_nul_is_named():
    command = Command(("x", "--date", "{date}"))

    with pytest.raises(Fail, match="'date' is missing"):
        fill_argv(command.argv, {})
    with pytest.raises(Fail, match="NUL"):
        fill_argv(command.argv, {"date": "a\0b"})


@pytest.mark.parametrize(
    ("argv", "more"),
    [
        ((), {}),
        (("",), {}),
        (("x", 7), {}),
        (("x", "a\0"), {}),
        (("{program}",), {}),
        (("x", "{a.b}"), {}),
        (("x",), {"env": {"A=B": "1"}}),
        (("x",), {"env": {"": "1"}}),
        (("x",), {"env": {"A": 1}}),
        (("x",), {"env": {"A": "\0"}}),
    ],
)
def test_invalid_command_is_refused(argv, more):
    with pytest.raises(ValueError):
        Command(argv, **more)


def test_command_is_an_isolated_task(known):
    task = known.command("legacy", ["python", "x.py", "{day}"], cwd="/srv", env={"A": "b"}, args=Rates, time_limit=5)

    assert known.get("legacy") is task
    assert (task.kind, task.options.isolation, task.options.time_limit) == (TaskKind.COMMAND, "process", 5)
    assert task.command == Command(("python", "x.py", "{day}"), "/srv", {"A": "b"})
    assert task.command_line({"day": "2026-11-21"}) == ("python", "x.py", "2026-11-21")
    assert "python" in task.call.__doc__
    with pytest.raises(TypeError, match="as a program"):
        task.call({})


def test_command_with_invalid_args_fails_its_job(known):
    with pytest.raises(Fail, match="day: is required"):
        known.command("checked", ["x", "{day}"], args=Rates).command_line({})
    with pytest.raises(Fail, match="'day' is missing"):
        known.command("unchecked", ["x", "{day}"]).command_line({})


@pytest.mark.parametrize(
    "wrong", [{"spread": True}, {"argv": ["x"]}, {"isolation": "thread"}, {"colour": "red"}, {"no_retry": "X"}]
)
def test_command_refuses_options_of_callables(known, wrong):
    with pytest.raises((TypeError, ValueError)):
        known.command("legacy", ["x"], **wrong)


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_command_as_one_text_is_refused(known, name):
    with pytest.raises(ValueError, match="1 to 200"):
        known.command(name, ["x"])
    with pytest.raises(TypeError, match="no shell"):
        known.command("legacy", "python x.py")


def test_other_command_of_a_name_is_refused(known):
    known.command("legacy", ["x"])
    known.command("legacy", ["x"], queue="etl")

    assert known.get("legacy").options.queue == "etl"
    with pytest.raises(TaskConflict, match="by the command x and by the command y"):
        known.command("legacy", ["y"])
    with pytest.raises(TaskConflict, match="command"):
        known.register("legacy")(print)


# ── from the settings ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def company(tmp_path, monkeypatch):
    """A module that knows nothing of us."""
    (tmp_path / "company_rates.py").write_text(
        "class Rates:\n    @staticmethod\n    def load(args): return args\n\n"
        "def load(day, currency): return day, currency\n"
    )
    (tmp_path / "company_broken.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("company_rates", "company_broken"):
        sys.modules.pop(name, None)


def test_tasks_are_registered_from_settings(known, company):
    failures = load_tasks(
        [],
        {
            "plain": "company_rates:load",
            "dotted": "company_rates.load",
            "inner": {"call": "company_rates:Rates.load"},
            "full": {
                "call": "company_rates:load", "isolation": "process", "queue": "etl", "lock_key": "k:{day}",
                "retry": {"kind": "exponential", "base": 5}, "no_retry": ["ValueError"], "rules": {"40001": 5},
                "time_limit": 60, "memory_mb": 100, "cpu_sec": 5, "interrupt": False, "args": SCHEMA,
            },
            "legacy": {
                "command": ["x", "{day}"], "cwd": "/srv", "env": {"A": "b"}, "queue": "etl",
                "retry": {"kind": "linear"},
            },
        },
        known_tasks=known,
    )  # fmt: skip

    assert failures == {}
    assert known.names == ("dotted", "full", "inner", "legacy", "plain")
    assert known.get("plain").start({"day": 1, "currency": 2}, None) == (1, 2)
    assert known.get("inner").start({"day": 1}, None) == {"day": 1}
    assert known.get("full").options.retry == Exponential(5)
    assert known.get("full").fill_lock_key({"day": "x"}) == "k:x"
    assert known.get("legacy").command == Command(("x", "{day}"), "/srv", {"A": "b"})


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("company_broken:load", "no_such_module"),
        ("company_nowhere:load", "company_nowhere"),
        ("company_rates:missing", "missing"),
        ("company_rates:", "names no callable"),
        ("load", "names no callable"),
        ("company_rates:__name__", "cannot be called"),
        ({"call": "company_rates:load", "retry": {"kind": "never"}}, "kind must be one of"),
        ({"call": "company_rates:load", "args": {"type": 7}}, "no JSON Schema"),
        ({"call": "company_rates:load", "colour": "red"}, "colour"),
        ({"command": ["{program}"]}, "begins with the program"),
        ({}, "call"),
    ],
)
def test_task_that_cannot_be_loaded_does_not_stop_others(known, company, definition, reason):
    failures = load_tasks([], {"bad": definition, "good": "company_rates:load"}, known_tasks=known)

    assert list(failures) == ["task bad"]
    assert reason in failures["task bad"]
    assert known.names == ("good",)


def test_import_failure_is_named_and_others_load(known, company):
    failures = load_tasks(["company_broken", "company_nowhere", "company_rates"], known_tasks=known)

    assert set(failures) == {"company_broken", "company_nowhere"}
    assert "no_such_module" in failures["company_broken"]
    assert "company_rates" in sys.modules


def test_call_of_settings_is_isolated_unless_it_opts_out(known, company):
    calls = {"plain": "company_rates:load", "threaded": {"call": "company_rates:load", "isolation": "thread"}}

    assert load_tasks([], calls, known_tasks=known) == {}
    known.register("of_code")(lambda args: args)

    isolation = {task.name: task.options.isolation for task in known}
    assert isolation == {"plain": "process", "threaded": "thread", "of_code": "thread"}


def test_argv_of_a_call_is_filled_from_args(known, company):
    load_tasks(
        [], {"main": {"call": "company_rates:Rates.load", "argv": ["--day", "{day}", "{{x}}"]}}, known_tasks=known
    )
    task = known.get("main")

    assert task.command_line({"day": "2026-11-22"}) == ("--day", "2026-11-22", "{x}")
    assert task.check_args({"day": 1, "more": 2}) == []
    assert task.check_args({}) == [("day", "is required")]
    with pytest.raises(Fail, match="'day' is missing"):
        task.command_line({})
    with pytest.raises(Fail, match="NUL"):
        task.command_line({"day": "\0"})


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"argv": ["x"]}, "needs isolation='process'"),
        ({"argv": ["{a!r}"], "isolation": "process"}, "name of an argument"),
        ({"argv": [7], "isolation": "process"}, "list of texts"),
        ({"argv": "--day", "isolation": "process"}, "argv is a list"),
    ],
)
def test_invalid_argv_is_refused(known, wrong, why):
    with pytest.raises((TypeError, ValueError), match=why):
        task_of(known, **wrong)


def test_main_gets_its_list_if_required(known):
    argv = {"argv": ["--day", "{day}"], "isolation": "process"}
    known.register("bare", **argv)(lambda: "called")
    known.register("default", **argv)(lambda argv=None: argv)
    known.register("needs", **argv)(lambda argv: argv)

    assert known.get("bare").start({"day": 1}, None) == "called"
    assert known.get("default").start({"day": 1}, None) is None
    assert known.get("needs").start({"day": 1}, None) == ["--day", "1"]


@pytest.mark.parametrize("code", [0, 3])
def test_whole_number_that_main_returns_is_its_exit_code(known, code):
    known.register("main", argv=[], isolation="process")(lambda: code)

    with pytest.raises(SystemExit) as left:
        known.get("main").start({}, None)
    assert left.value.code == code


def test_placeholder_of_a_command_without_its_argument_is_named(known):
    task = known.command("legacy", ["x", "--date={date}", "{date}"])

    assert task.check_args({}) == [("date", "is required")]
    assert task.check_args({"date": 1, "more": 2}) == []


def test_settings_can_change_a_registered_task(known, company):
    load_tasks([], {"rates": "company_rates:load"}, known_tasks=known)
    failures = load_tasks([], {"rates": {"call": "company_rates:load", "queue": "etl"}}, known_tasks=known)

    assert failures == {}
    assert known.get("rates").options.queue == "etl"


def test_settings_cannot_reuse_a_name(known, company):
    load_tasks([], {"rates": "company_rates:load"}, known_tasks=known)

    failures = load_tasks([], {"rates": "company_rates:Rates.load"}, known_tasks=known)

    assert "registered twice" in failures["task rates"]
