"""DL_TASKS: the shape of tasks that settings register."""

from __future__ import annotations

import json

import pytest

from app.config import load_settings
from app.config.tasks import mask_environment, parse_tasks, secret_values
from app.errors import ConfigError

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
        "memory_mb": 512,
        "cpu_sec": 60,
    },
    "legacy": {**LEGACY, "queue": "etl", "time_limit": 60},
}


def test_tasks_are_paths_or_objects_with_options():
    assert parse_tasks(json.dumps(EVERYTHING)) == EVERYTHING
    assert parse_tasks(EVERYTHING) == EVERYTHING
    assert parse_tasks("{}") == {}


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("nonsense", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not an object"),
        ('{"": "a:b"}', "1 to 200 printable"),
        ('{"%s": "a:b"}' % ("x" * 201), "1 to 200 printable"),
        ('{"a\\nb": "a:b"}', "1 to 200 printable"),
        ('{"a": 7}', "either call or command"),
        ('{"a": {}}', "either call or command"),
        ('{"a": {"call": "a:b", "command": ["x"]}}', "either call or command"),
        ('{"a": "load"}', "call must be a path"),
        ('{"a": "a:b c"}', "call must be a path"),
        ('{"a": {"call": 7}}', "call must be a path"),
        ('{"a": {"call": "a:b", "cwd": "/"}}', "'cwd' is not one of"),
        ('{"a": {"command": ["x"], "isolation": "thread"}}', "'isolation' is not one of"),
        ('{"a": {"command": "x"}}', "command must be a list of texts"),
        ('{"a": {"command": []}}', "command must be a list of texts"),
        ('{"a": {"command": ["x", 7]}}', "command must be a list of texts"),
        ('{"a": {"command": ["x\\u0000"]}}', "command must be a list of texts"),
        ('{"a": {"command": ["x"], "env": {"A": 1}}}', "env must be an object of texts"),
        ('{"a": {"command": ["x"], "env": {"A=B": "1"}}}', "env must be an object of texts"),
        ('{"a": {"command": ["x"], "env": ["A"]}}', "env must be an object of texts"),
        ('{"a": {"command": ["x"], "cwd": " "}}', "cwd must be a folder"),
        ('{"a": {"call": "a:b", "isolation": "fiber"}}', "isolation must be thread or process"),
        ('{"a": {"call": "a:b", "interrupt": 1}}', "interrupt must be true or false"),
        ('{"a": {"call": "a:b", "argv": "--date"}}', "argv must be a list of texts"),
        ('{"a": {"call": "a:b", "argv": [7]}}', "argv must be a list of texts"),
        ('{"a": {"call": "a:b", "connection_check": 1}}', "connection_check must be true or false"),
        ('{"a": {"command": ["x"], "argv": ["y"]}}', "'argv' is not one of"),
        ('{"a": {"call": "a:b", "time_limit": 0}}', "time_limit must be"),
        ('{"a": {"call": "a:b", "time_limit": true}}', "time_limit must be"),
        ('{"a": {"call": "a:b", "memory_mb": 1.5}}', "memory_mb must be"),
        ('{"a": {"call": "a:b", "cpu_sec": -1}}', "cpu_sec must be"),
        ('{"a": {"call": "a:b", "args": []}}', "args must be a JSON Schema"),
        ('{"a": {"call": "a:b", "retry": 5}}', "retry must be a policy"),
        ('{"a": {"call": "a:b", "no_retry": "ValueError"}}', "no_retry must be a list"),
        ('{"a": {"call": "a:b", "rules": {"X": "never"}}}', "rules must be"),
        ('{"a": {"call": "a:b", "rules": []}}', "rules must be"),
        ('{"a": {"call": "a:b", "queue": ""}}', "queue must be"),
        ('{"a": {"call": "a:b", "lock_key": 7}}', "lock_key must be"),
    ],
)
def test_another_shape_is_refused_with_what_would_do(told, why):
    with pytest.raises(ValueError, match=why):
        parse_tasks(told)


def test_task_errors_are_reported_with_all_other_errors():
    given = {"one": {"call": "a:b", "queue": ""}, "two": {"command": ["x"], "color": "red"}, "three": "a:b"}

    with pytest.raises(ConfigError) as refused:
        load_settings({"DL_TASKS": json.dumps(given), "APP_PORT": "many"}, dotenv=None)

    assert {fault.variable for fault in refused.value.errors} == {"DL_TASKS", "APP_PORT"}
    assert "'one': queue must be" in str(refused.value)
    assert "'two': 'color' is not one of" in str(refused.value)
    assert "'three'" not in str(refused.value)


def test_what_a_command_finds_in_its_environment_is_not_shown():
    settings = load_settings({"DL_TASKS": json.dumps({"legacy": LEGACY, "plain": "a.b:c"})}, dotenv=None)
    (knob,) = [knob for knob in settings.describe() if knob.variable == "DL_TASKS"]

    assert "hunter2" not in knob.value
    assert json.loads(knob.value) == {"legacy": {**LEGACY, "env": {"DB_PASSWORD": "***"}}, "plain": "a.b:c"}
    assert settings.tasks["legacy"]["env"] == {"DB_PASSWORD": "hunter2"}
    assert "hunter2" in settings.secrets
    assert mask_environment({"call": "a.b:c"}) == {"call": "a.b:c"}


def test_a_faulty_value_is_not_repeated_as_a_secret_may_be_in_it():
    with pytest.raises(ConfigError) as refused:
        load_settings({"DL_TASKS": json.dumps({"a": {"env": {"X": "hunter2"}, "command": []}})}, dotenv=None)

    assert "hunter2" not in str(refused.value)


def test_only_what_is_called_like_a_secret_is_hidden_in_logs():
    env = {"DB_PASSWORD": "one", "API_TOKEN": "two", "STAGE": "production"}

    assert secret_values({"a": {"command": ["x"], "env": env}, "b": {"command": ["y"]}, "c": "a:b"}) == ["one", "two"]
