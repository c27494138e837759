"""What may be said of a task: how its jobs are to be run, and the command that some of them are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from pipelines.fit import Fit, fit_of
from pipelines.retry import DEFAULT, Policy, Rules
from pipelines.template import Template

Isolation = Literal["thread", "process"]

_INT4_MAX = 2_147_483_647


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a task wants its jobs to be run. Raises ValueError or TypeError where that cannot be."""

    args: Any = None  # a pydantic model or a JSON Schema that a job's args must fit
    retry: Policy = DEFAULT
    rules: Rules = field(default_factory=Rules)  # of errors: retry, fail, or snooze for so many seconds
    time_limit: float | None = None  # seconds a try
    isolation: Isolation = "thread"
    interrupt: bool = False  # a stop may raise in the thread wherever it is
    queue: str | None = None  # for triggers that name none
    lock_key: str | None = None  # likewise; a template such as "customer:{id}"
    memory_mb: int | None = None  # of a process of its own, as the next one
    cpu_sec: int | None = None
    connection_check: bool = True  # likewise: PGOPTIONS makes servers notice that it is gone
    argv: tuple[str, ...] | None = None  # likewise: what its code finds as the arguments of its command line

    def __post_init__(self) -> None:
        told: object = self.isolation
        if told not in get_args(Isolation):
            raise ValueError(f"isolation is 'thread' or 'process', not {told!r}")
        if not callable(getattr(self.retry, "pause", None)):
            raise TypeError(f"retry is a policy such as retry.Exponential(10), not {self.retry!r}")
        _check_positive("time_limit", self.time_limit, whole=False)
        for name in ("memory_mb", "cpu_sec"):
            _check_positive(name, getattr(self, name), whole=True)
            if getattr(self, name) is not None and self.isolation != "process":
                raise ValueError(f"{name} limits a process of its own: it needs isolation='process'")
        if self.argv is not None:
            _check_argv(self.argv)
            if self.isolation != "process":
                raise ValueError("argv belongs to a whole process: it needs isolation='process'")
        _check_text("queue", self.queue)
        _check_text("lock_key", self.lock_key)
        _ = self.fit, self.key

    @cached_property
    def fit(self) -> Fit | None:
        return None if self.args is None else fit_of(self.args)

    @cached_property
    def key(self) -> Template | None:
        return None if self.lock_key is None else Template(self.lock_key)


def _check_argv(argv: Any) -> None:
    if not isinstance(argv, tuple) or not all(isinstance(item, str) and "\0" not in item for item in argv):
        raise ValueError('argv is a list of texts, such as ["--date", "{date}"]')
    for item in argv:
        Template(item)


def _check_positive(name: str, told: Any, *, whole: bool) -> None:
    if told is None:
        return
    kind = int if whole else (int, float)
    if isinstance(told, bool) or not isinstance(told, kind) or not 0 < told <= _INT4_MAX or math.isnan(told):
        raise ValueError(f"{name} is a {'whole ' if whole else ''}number greater than 0, not {told!r}")


def _check_text(name: str, told: Any) -> None:
    if told is not None and (not isinstance(told, str) or not told.strip() or not told.isprintable()):
        raise ValueError(f"{name} is a text that is neither empty nor has control characters, not {told!r}")


@dataclass(frozen=True)
class Command:
    """A program that is run as the job; `{name}` in an item is replaced by that argument, never by a shell."""

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_env: Mapping[str, str] = field(default_factory=dict)  # variable → the secret that it holds
    inherit: tuple[str, ...] = ()  # variables of the worker's own, such as PG_PASSWORD, that it is given too

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
                raise ValueError(f"env has names and texts, and {name!r} is none of both")

    def fill(self, args: Mapping[str, Any]) -> tuple[str, ...]:
        """What to run: a text as it is, anything else as JSON. Raises ValueError that names the argument which is
        missing, or which holds what no program can be given."""
        return fill_argv(self.argv, args)


def fill_argv(templates: tuple[str, ...], args: Mapping[str, Any]) -> tuple[str, ...]:
    """The items with the arguments in them. Raises ValueError as `Command.fill` does."""
    filled = tuple(Template(item).fill(args) for item in templates)
    for item, template in zip(filled, templates, strict=True):
        if "\0" in item:
            raise ValueError(f"an argument of {template!r} holds the character NUL, which no program can be given")
    return filled
