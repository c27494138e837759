"""DL_TASKS: tasks that are registered by their settings, so that no code has to change.

Only the shape is looked at here; whether there is such a callable is seen when it is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MASK = "***"
_LONGEST_NAME = 200
_EXAMPLE = '{"rates": "company.loads:rates", "legacy": {"command": ["python", "legacy.py", "--date", "{date}"]}}'
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*|\.[^\W\d]\w*)(\.[^\W\d]\w*)*")
_TELLING = re.compile(r"pass|pwd|secret|token|key|credential|dsn", re.IGNORECASE)


def _text(told: Any) -> bool:
    return isinstance(told, str) and bool(told.strip()) and "\0" not in told


def _number(told: Any) -> bool:
    return isinstance(told, int | float) and not isinstance(told, bool) and told > 0


def _whole(told: Any) -> bool:
    return type(told) is int and told > 0


def _texts(told: Any) -> bool:
    return isinstance(told, list) and bool(told) and all(isinstance(item, str) and "\0" not in item for item in told)


def _argv(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and "\0" not in item for item in value)


def _rules(told: Any) -> bool:
    return isinstance(told, dict) and all(rule in ("retry", "fail") or _number(rule) for rule in told.values())


def _environment(told: Any) -> bool:
    return isinstance(told, dict) and all(
        (isinstance(v, str) or _reference(v)) and name and "=" not in name for name, v in told.items()
    )


def _reference(told: Any) -> bool:
    return isinstance(told, dict) and told.keys() == {"$secret"} and _text(told["$secret"])


_Check = tuple[Callable[[Any], bool], str]
_ANY: dict[str, _Check] = {
    "args": (lambda told: isinstance(told, dict), "a JSON Schema"),
    "retry": (lambda told: isinstance(told, dict), 'a policy such as {"kind": "fixed", "seconds": 60}'),
    "no_retry": (_texts, "a list of names of exceptions, or of SQLSTATEs"),
    "rules": (_rules, 'an object of "retry", "fail" or seconds by the name of an exception or SQLSTATE'),
    "time_limit": (_number, "a number of seconds greater than 0"),
    "queue": (_text, "a queue's name"),
    "lock_key": (_text, 'a text such as "customer:{id}"'),
    "memory_mb": (_whole, "a whole number greater than 0"),
    "cpu_sec": (_whole, "a whole number greater than 0"),
    "connection_check": (lambda told: isinstance(told, bool), "true or false"),
}
_OF_A_CALL: dict[str, _Check] = {
    "call": (lambda told: _text(told) and bool(_PATH.fullmatch(told)), "a path such as company.loads:rates"),
    "isolation": (lambda told: told in ("thread", "process"), "thread or process"),
    "interrupt": (lambda told: isinstance(told, bool), "true or false"),
    "spread": (lambda told: isinstance(told, bool), "true or false"),
    "argv": (_argv, 'a list of texts such as ["--date", "{date}"]'),
}
_OF_A_COMMAND: dict[str, _Check] = {
    "command": (_texts, "a list of texts, the program first"),
    "cwd": (_text, "a folder"),
    "env": (_environment, 'an object of texts, or of secrets such as {"$secret": "name"}'),
    "inherit": (_texts, "a list of names of variables"),
}


def tasks(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """The tasks by name. Raises ValueError with all that is wrong with their shape."""
    if isinstance(value, Mapping):
        return dict(value)
    try:
        given = json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(f"it is not JSON; such an object would do: {_EXAMPLE}") from None
    if not isinstance(given, dict):
        raise ValueError(f"it is not an object; such an object would do: {_EXAMPLE}")
    faults = [f"{name!r}: {fault}" for name, told in given.items() for fault in _faults(name, told)]
    if faults:
        raise ValueError("; ".join(faults))
    return given


def _faults(name: str, told: Any) -> Iterator[str]:
    if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        yield f"a task's name has 1 to {_LONGEST_NAME} printable characters"
    about = {"call": told} if isinstance(told, str) else told
    if not isinstance(about, dict) or ("call" in about) == ("command" in about):
        yield 'a path such as "company.loads:rates", or an object with either call or command, would do'
        return
    known = _ANY | (_OF_A_CALL if "call" in about else _OF_A_COMMAND)
    for option, setting in about.items():
        if option not in known:
            yield f"{option!r} is not one of {', '.join(known)}"
        elif not known[option][0](setting):
            yield f"{option} must be {known[option][1]}"


def shown(task: Any) -> Any:
    """A task as anybody may see it: what a command finds in its environment may be a secret."""
    if isinstance(task, dict) and "env" in task:
        return {**task, "env": dict.fromkeys(task["env"], MASK)}
    return task


def secrets(given: Mapping[str, Any]) -> list[str]:
    """What must not be seen in any log: of the commands' environment, whatever is called like a secret."""
    environments = [task.get("env", {}) for task in given.values() if isinstance(task, dict)]
    return [
        value for env in environments for name, value in env.items() if isinstance(value, str) and _TELLING.search(name)
    ]
