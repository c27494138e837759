"""The shape of DL_TASKS: tasks that are registered by a setting, without a change of code.

A callable is imported when the tasks are loaded, not here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag
from typing_extensions import TypedDict

from dataloader.app.config.values import Labels, Text, matching, parse_json

_CALLABLE = r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*|\.[^\W\d]\w*)(\.[^\W\d]\w*)*"
_SECRET_NAME = re.compile(r"pass|pwd|secret|token|key|credential|dsn", re.IGNORECASE)
_KIND_PROBLEM = 'expected a path such as "company.loads:rates", or an object with either call or command'

_CallablePath = Annotated[str, matching(_CALLABLE, "expected a path such as company.loads:rates")]
_Argument = Annotated[str, matching(r"[^\x00]*", "expected a text without a zero byte")]
_Text = Annotated[str, matching(r"(?s)(?=.*\S)[^\x00]+", "expected a text")]
_Texts = Annotated[list[_Argument], Field(min_length=1)]
_Count = Annotated[int, Field(gt=0)]
_Seconds = Annotated[float, Field(gt=0)]
_SecretReference = TypedDict("_SecretReference", {"$secret": _Text})


class _TaskOptions(TypedDict, total=False):
    args: dict[str, Any]  # a JSON Schema
    retry: dict[str, Any]
    no_retry: _Texts
    rules: dict[str, Literal["retry", "fail"] | _Seconds]
    time_limit: _Seconds
    queue: _Text
    lock_key: _Text
    partitions: dict[str, Any]  # such as {"unit": "day", "start": "2024-01-01"}
    memory_mb: _Count
    cpu_sec: _Count
    connection_check: bool
    requires: Labels
    target: _Text


class _CallOptions(_TaskOptions, total=False):
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    call: _CallablePath
    isolation: Literal["thread", "process"]
    interrupt: bool
    spread: bool
    argv: list[_Argument]


class _InterpreterOptions(_TaskOptions, total=False):
    """A call in an interpreter of its own."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    call: _CallablePath
    python: _Text
    cwd: Annotated[str, matching(r"/[^\x00]*", "expected the absolute path of a folder")]
    isolation: Literal["process"]
    spread: bool
    argv: list[_Argument]


class _CommandOptions(_TaskOptions, total=False):
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    command: _Texts
    cwd: _Text
    env: dict[Annotated[str, matching("[^=]+", "a name has no = in it")], str | _SecretReference]
    inherit: _Texts


def _kind(task: Any) -> str | None:
    if isinstance(task, str):
        return "path"
    kinds = [kind for kind in ("call", "command") if isinstance(task, Mapping) and kind in task]
    if kinds == ["call"] and "python" in task:
        return "python"
    return kinds[0] if len(kinds) == 1 else None


_Task = Annotated[
    Annotated[_CallablePath, Tag("path")]
    | Annotated[_CallOptions, Tag("call")]
    | Annotated[_InterpreterOptions, Tag("python")]
    | Annotated[_CommandOptions, Tag("command")],
    Discriminator(_kind, custom_error_type="task_kind", custom_error_message=_KIND_PROBLEM),
]
Tasks = Annotated[Mapping[Text, _Task], BeforeValidator(parse_json)]


def secret_values(tasks: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values that logs mask: those of the commands' environment whose names suggest a secret."""
    for task in tasks.values():
        environment = task.get("env", {}) if isinstance(task, Mapping) else {}
        yield from (v for name, v in environment.items() if isinstance(v, str) and _SECRET_NAME.search(name))
