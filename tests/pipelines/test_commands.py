"""Commands as tasks, and tasks from the settings."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dataloader.pipelines.contract import Command, Fail, Pipelines, TaskConflict, TaskKind, load_tasks
from dataloader.pipelines.retry import Exponential
from dataloader.pipelines.task import fill_argv
from tests.support.rates_args import SCHEMA, Rates


def task_of(known: Pipelines, call: Any = lambda args: args, **options: Any) -> Any:
    known.register("t", **options)(call)
    return known.get("t")


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
