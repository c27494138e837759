"""Parses DL_TASKS: tasks that are registered by a setting, without a change of code.

Only the shape is checked here; a callable is imported when the tasks are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.config.dsn import MASK
from app.config.values import parse_json

_MAX_NAME_LENGTH = 200
_EXAMPLE = '{"rates": "company.loads:rates", "legacy": {"command": ["python", "legacy.py", "--date", "{date}"]}}'
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*|\.[^\W\d]\w*)(\.[^\W\d]\w*)*")
_SECRET_NAME = re.compile(r"pass|pwd|secret|token|key|credential|dsn", re.IGNORECASE)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _is_positive_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_positive_integer(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_argv(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and "\0" not in item for item in value)


def _is_text_list(value: Any) -> bool:
    return bool(value) and _is_argv(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_retry_rules(value: Any) -> bool:
    return isinstance(value, dict) and all(
        rule in ("retry", "fail") or _is_positive_number(rule) for rule in value.values()
    )


def _is_environment(value: Any) -> bool:
    return isinstance(value, dict) and all(
        (isinstance(v, str) or _is_secret_reference(v)) and name and "=" not in name for name, v in value.items()
    )


def _is_secret_reference(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"$secret"} and _is_text(value["$secret"])


_Check = tuple[Callable[[Any], bool], str]
_COMMON_OPTIONS: dict[str, _Check] = {
    "args": (_is_object, "a JSON Schema"),
    "retry": (_is_object, 'a policy such as {"kind": "fixed", "seconds": 60}'),
    "no_retry": (_is_text_list, "a list of names of exceptions, or of SQLSTATEs"),
    "rules": (_is_retry_rules, 'an object of "retry", "fail" or seconds by the name of an exception or SQLSTATE'),
    "time_limit": (_is_positive_number, "a number of seconds greater than 0"),
    "queue": (_is_text, "a queue's name"),
    "lock_key": (_is_text, 'a text such as "customer:{id}"'),
    "memory_mb": (_is_positive_integer, "a whole number greater than 0"),
    "cpu_sec": (_is_positive_integer, "a whole number greater than 0"),
    "connection_check": (_is_flag, "true or false"),
}
_CALL_OPTIONS: dict[str, _Check] = {
    "call": (lambda value: _is_text(value) and bool(_PATH.fullmatch(value)), "a path such as company.loads:rates"),
    "isolation": (lambda value: value in ("thread", "process"), "thread or process"),
    "interrupt": (_is_flag, "true or false"),
    "spread": (_is_flag, "true or false"),
    "argv": (_is_argv, 'a list of texts such as ["--date", "{date}"]'),
}
_COMMAND_OPTIONS: dict[str, _Check] = {
    "command": (_is_text_list, "a list of texts, the program first"),
    "cwd": (_is_text, "a folder"),
    "env": (_is_environment, 'an object of texts, or of secrets such as {"$secret": "name"}'),
    "inherit": (_is_text_list, "a list of names of variables"),
}


def parse_tasks(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Parse the tasks by name. Raises ValueError with every error of shape."""
    if isinstance(value, Mapping):
        return dict(value)
    tasks: dict[str, Any] = parse_json(value, dict, f"such an object would do: {_EXAMPLE}")
    errors = [f"{name!r}: {error}" for name, task in tasks.items() for error in _shape_errors(name, task)]
    if errors:
        raise ValueError("; ".join(errors))
    return tasks


def _shape_errors(name: str, value: Any) -> Iterator[str]:
    if not name.strip() or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        yield f"a task's name has 1 to {_MAX_NAME_LENGTH} printable characters"
    about = {"call": value} if isinstance(value, str) else value
    if not isinstance(about, dict) or ("call" in about) == ("command" in about):
        yield 'a path such as "company.loads:rates", or an object with either call or command, would do'
        return
    known = _COMMON_OPTIONS | (_CALL_OPTIONS if "call" in about else _COMMAND_OPTIONS)
    for option, setting in about.items():
        if option not in known:
            yield f"{option!r} is not one of {', '.join(known)}"
        elif not known[option][0](setting):
            yield f"{option} must be {known[option][1]}"


def mask_environment(task: Any) -> Any:
    """Return the task without the values of its environment, which may be secrets."""
    if isinstance(task, dict) and "env" in task:
        return {**task, "env": dict.fromkeys(task["env"], MASK)}
    return task


def secret_values(tasks: Mapping[str, Any]) -> list[str]:
    """List the values that logs mask: those of the commands' environment whose names suggest a secret."""
    environments = [task.get("env", {}) for task in tasks.values() if isinstance(task, dict)]
    return [
        value
        for env in environments
        for name, value in env.items()
        if isinstance(value, str) and _SECRET_NAME.search(name)
    ]
