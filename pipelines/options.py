"""Options of a task, and the command that a task may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from pipelines.arg_schema import ArgSchema, arg_schema_from
from pipelines.retry import DEFAULT, Policy, Rules
from pipelines.template import Template

Isolation = Literal["thread", "process"]

_INT4_MAX = 2_147_483_647


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """How the jobs of a task are run. Raises ValueError or TypeError for options that do not fit."""

    args: Any = None  # a pydantic model or a JSON Schema
    retry: Policy = DEFAULT
    rules: Rules = field(default_factory=Rules)  # of errors: retry, fail, or snooze
    time_limit: float | None = None  # seconds an attempt
    isolation: Isolation = "thread"
    interrupt: bool = False  # a stop may raise in the thread at any bytecode
    queue: str | None = None  # for jobs enqueued without one
    lock_key: str | None = None  # likewise; a template such as "customer:{id}"
    memory_mb: int | None = None  # of an isolated process, as the next three
    cpu_sec: int | None = None
    connection_check: bool = True  # PGOPTIONS makes servers notice that the process is gone
    argv: tuple[str, ...] | None = None  # its command line

    def __post_init__(self) -> None:
        isolation: object = self.isolation
        if isolation not in get_args(Isolation):
            raise ValueError(f"isolation is 'thread' or 'process', not {isolation!r}")
        if not callable(getattr(self.retry, "pause", None)):
            raise TypeError(f"retry is a policy such as retry.Exponential(10), not {self.retry!r}")
        _check_positive("time_limit", self.time_limit, is_integer=False)
        for name in ("memory_mb", "cpu_sec"):
            _check_positive(name, getattr(self, name), is_integer=True)
            if getattr(self, name) is not None and self.isolation != "process":
                raise ValueError(f"{name} limits an isolated process: it needs isolation='process'")
        if self.argv is not None:
            _check_argv(self.argv)
            if self.isolation != "process":
                raise ValueError("argv belongs to a whole process: it needs isolation='process'")
        _check_text("queue", self.queue)
        _check_text("lock_key", self.lock_key)
        _ = self.arg_schema, self.lock_key_template

    @cached_property
    def arg_schema(self) -> ArgSchema | None:
        return None if self.args is None else arg_schema_from(self.args)

    @cached_property
    def lock_key_template(self) -> Template | None:
        return None if self.lock_key is None else Template(self.lock_key)


def _check_argv(argv: Any) -> None:
    if not isinstance(argv, tuple) or not all(isinstance(item, str) and "\0" not in item for item in argv):
        raise ValueError('argv is a list of texts, such as ["--date", "{date}"]')
    for item in argv:
        Template(item)


def _check_positive(name: str, value: Any, *, is_integer: bool) -> None:
    if value is None:
        return
    kind = int if is_integer else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value <= _INT4_MAX or math.isnan(value):
        raise ValueError(f"{name} is a {'whole ' if is_integer else ''}number greater than 0, not {value!r}")


def _check_text(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, str) or not value.strip() or not value.isprintable()):
        raise ValueError(f"{name} is a text that is neither empty nor has control characters, not {value!r}")


@dataclass(frozen=True)
class Command:
    """A program that is run as the job, without a shell; `{name}` in an item is replaced by that argument."""

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_env: Mapping[str, str] = field(default_factory=dict)  # variable → name of its secret
    inherit: tuple[str, ...] = ()  # variables of the worker that it is given too

    def __post_init__(self) -> None:
        items: tuple[object, ...] = self.argv
        if not items or not all(isinstance(item, str) and "\0" not in item for item in items):
            raise ValueError('a command is a list of texts, such as ["python", "load.py", "--date", "{date}"]')
        if not self.argv[0].strip() or Template(self.argv[0]).names:
            raise ValueError("a command begins with the program, which no argument may choose")
        for item in self.argv[1:]:
            Template(item)
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in f"{name}{value}" or not isinstance(value, str):
                raise ValueError(f"env maps names to texts, and {name!r} does not")


def fill_argv(templates: tuple[str, ...], args: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the items with the arguments: texts as they are, other values as JSON. Raises ValueError, naming an argument
    that is missing or cannot be passed to a program."""
    filled = tuple(Template(item).fill(args) for item in templates)
    for item, template in zip(filled, templates, strict=True):
        if "\0" in item:
            raise ValueError(
                f"an argument of {template!r} contains the character NUL, which cannot be passed to a program"
            )
    return filled
