"""DL_TASKS: the shape of tasks that settings register."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dataloader.app.config import load_settings
from dataloader.app.config.tasks import secret_values
from dataloader.app.errors import ConfigError

LEGACY = {"command": ["python", "legacy.py", "--date", "{date}"], "cwd": "/srv", "env": {"DB_PASSWORD": "hunter2"}}
EVERYTHING = {
    "plain": "company.loads:rates",
    "dotted": "company.loads.rates",
    "a class's": {"call": "company.loads:Rates.load"},
    "full": {
        "call": "company.loads:rates",
        "isolation": "process",
        "interrupt": False,
        "spread": True,
        "args": {"type": "object"},
        "retry": {"kind": "fixed", "seconds": 5},
        "no_retry": ["ValueError", "23505"],
        "rules": {"40001": "retry", "company.Busy": 60},
        "time_limit": 1.5,
        "queue": "etl",
        "lock_key": "customer:{id}",
        "partitions": {"unit": "day", "start": "2024-01-01"},
        "memory_mb": 512,
        "cpu_sec": 60,
        "requires": {"gpu": True, "zone": "north"},
    },
    "old": {"call": "app.loads:rates", "python": "/srv/legacy/bin/python", "cwd": "/srv/legacy", "argv": ["x"]},
    "legacy": {**LEGACY, "queue": "etl", "time_limit": 60},
}


def test_tasks_are_paths_or_objects_with_options():
    assert load_settings({"DL_TASKS": json.dumps(EVERYTHING)}, dotenv=None).tasks == EVERYTHING
    assert load_settings({"DL_TASKS": "{}"}, dotenv=None).tasks == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "a JSON object such as"),
        ('{"": "a:b"}', "1 to 200 printable"),
        ('{"%s": "a:b"}' % ("x" * 201), "1 to 200 printable"),
        ('{"a\\nb": "a:b"}', "1 to 200 printable"),
        ('{"a": 7}', "either call or command"),
        ('{"a": {}}', "either call or command"),
        ('{"a": {"call": "a:b", "command": ["x"]}}', "either call or command"),
        ('{"a": "load"}', r"a\..*: expected a path"),
        ('{"a": "a:b c"}', r"a\..*: expected a path"),
        ('{"a": {"call": 7}}', r"a\.call\.call: .* valid string"),
        ('{"a": {"call": "a:b", "cwd": "/"}}', r"\.cwd: Extra inputs"),
        ('{"a": {"call": "a:b", "python": "p", "isolation": "thread"}}', r"\.isolation: .*'process'"),
        ('{"a": {"call": "a:b", "python": "p", "interrupt": true}}', r"\.interrupt: Extra inputs"),
        ('{"a": {"call": "a:b", "python": "p", "cwd": "srv"}}', r"\.cwd: expected the absolute path"),
        ('{"a": {"call": "a:b", "python": " "}}', r"\.python: expected a text"),
        ('{"a": {"command": ["x"], "isolation": "thread"}}', r"\.isolation: Extra inputs"),
        ('{"a": {"command": "x"}}', r"\.command: .* valid list"),
        ('{"a": {"command": []}}', r"\.command: .* at least 1 item"),
        ('{"a": {"command": ["x", 7]}}', r"\.command\.entry 2: .* valid string"),
        ('{"a": {"command": ["x\\u0000"]}}', r"\.command\.entry 1: .* zero byte"),
        ('{"a": {"command": ["x"], "env": {"A": 1}}}', r"\.env\.A.*: .* valid string"),
        ('{"a": {"command": ["x"], "env": {"A=B": "1"}}}', r"\.env\.A=B: a name has no ="),
        ('{"a": {"command": ["x"], "env": ["A"]}}', r"\.env: .* valid dictionary"),
        ('{"a": {"command": ["x"], "cwd": " "}}', r"\.cwd: expected a text"),
        ('{"a": {"call": "a:b", "isolation": "fiber"}}', r"\.isolation: .*'thread' or 'process'"),
        ('{"a": {"call": "a:b", "interrupt": 1}}', r"\.interrupt: .* boolean"),
        ('{"a": {"call": "a:b", "argv": "--date"}}', r"\.argv: .* valid list"),
        ('{"a": {"call": "a:b", "argv": [7]}}', r"\.argv\.entry 1: .* valid string"),
        ('{"a": {"call": "a:b", "connection_check": 1}}', r"\.connection_check: .* boolean"),
        ('{"a": {"command": ["x"], "argv": ["y"]}}', r"\.argv: Extra inputs"),
        ('{"a": {"call": "a:b", "time_limit": 0}}', r"\.time_limit: .* greater than 0"),
        ('{"a": {"call": "a:b", "time_limit": true}}', r"\.time_limit: .* number"),
        ('{"a": {"call": "a:b", "memory_mb": 1.5}}', r"\.memory_mb: .* integer"),
        ('{"a": {"call": "a:b", "cpu_sec": -1}}', r"\.cpu_sec: .* greater than 0"),
        ('{"a": {"call": "a:b", "args": []}}', r"\.args: .* dictionary"),
        ('{"a": {"call": "a:b", "retry": 5}}', r"\.retry: .* dictionary"),
        ('{"a": {"call": "a:b", "no_retry": "ValueError"}}', r"\.no_retry: .* list"),
        ('{"a": {"call": "a:b", "rules": {"X": "never"}}}', r"\.rules\.X.*'retry' or 'fail'"),
        ('{"a": {"call": "a:b", "rules": []}}', r"\.rules: .* dictionary"),
        ('{"a": {"call": "a:b", "queue": ""}}', r"\.queue: expected a text"),
        ('{"a": {"call": "a:b", "lock_key": 7}}', r"\.lock_key: .* string"),
        ('{"a": {"call": "a:b", "partitions": "daily"}}', r"\.partitions: .* dictionary"),
    ],
)
def test_other_shape_names_the_option_and_the_problem(text, problem):
    with pytest.raises(ConfigError, match=f"DL_TASKS: .*{problem}"):
        load_settings({"DL_TASKS": text}, dotenv=None)


def test_task_errors_are_reported_with_all_other_errors():
    given = {"one": {"call": "a:b", "queue": ""}, "two": {"command": ["x"], "color": "red"}, "three": "a:b"}

    with pytest.raises(ConfigError) as refused:
        load_settings({"DL_TASKS": json.dumps(given), "APP_PORT": "many"}, dotenv=None)

    assert {fault.variable for fault in refused.value.errors} == {"DL_TASKS", "APP_PORT"}
    assert "one.call.queue: expected a text" in str(refused.value)
    assert "two.command.color: Extra inputs" in str(refused.value)
    assert "three" not in str(refused.value)


def test_what_a_command_finds_in_its_environment_is_not_shown():
    settings = load_settings({"DL_TASKS": json.dumps({"legacy": LEGACY, "plain": "a.b:c"})}, dotenv=None)
    (knob,) = [knob for knob in settings.describe() if knob.variable == "DL_TASKS"]

    assert "hunter2" not in knob.value
    assert json.loads(knob.value) == {"legacy": {**LEGACY, "env": {"DB_PASSWORD": "***"}}, "plain": "a.b:c"}
    assert dict[str, Any](settings.tasks)["legacy"]["env"] == {"DB_PASSWORD": "hunter2"}
    assert "hunter2" in settings.secrets


def test_a_faulty_value_is_not_repeated_as_a_secret_may_be_in_it():
    with pytest.raises(ConfigError) as refused:
        load_settings({"DL_TASKS": json.dumps({"a": {"env": {"X": "hunter2"}, "command": []}})}, dotenv=None)

    assert "hunter2" not in str(refused.value)


def test_only_what_is_called_like_a_secret_is_hidden_in_logs():
    env = {"DB_PASSWORD": "one", "API_TOKEN": "two", "STAGE": "production"}
    tasks = {"a": {"command": ["x"], "env": env}, "b": {"command": ["y"]}, "c": "a:b"}

    assert list(secret_values(tasks)) == ["one", "two"]
