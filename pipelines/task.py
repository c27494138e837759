"""A task: a callable and how to call it, or a command; and its options."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from typing import Any, Literal, NoReturn, get_args

from dataloader.pipelines.context import Args, Context
from dataloader.pipelines.job_args import (
    MISSING,
    UNKNOWN,
    ArgError,
    ArgumentError,
    InvalidArgs,
    JsonArgSchema,
    ModelArgSchema,
    Template,
    arg_schema_from,
    format_path,
    outside_refs,
)
from dataloader.pipelines.limits import check_limits
from dataloader.pipelines.partitions import Partitions
from dataloader.pipelines.requirements import check_requirements
from dataloader.pipelines.retry import DEFAULT, Fail, Policy, Rules
from dataloader.pipelines.signature import CallShape, is_annotated_with, parameters, shape_of, start_call
from dataloader.pipelines.unique import unique_live_key

Isolation = Literal["thread", "process"]

DEFAULT_QUEUE = "etl.default"  # of jobs by schedules and backfills; WORKERS_JSON serves it by default

_INT4_MAX = 2_147_483_647


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """A circuit breaker: after `failures` attempts in a row that ended with an error no job of the task starts for
    `resume` seconds; then one does, and decides. A row ends `window` seconds after its last failure, if given."""

    failures: int = 5
    resume: int = 300
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("failures", "resume", "window"):
            _check_positive(name, getattr(self, name), int)


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
    lock_key: str | None = None  # for jobs enqueued without one; a template such as "customer:{id}"
    limits: Mapping[str, int] = field(default_factory=dict)  # for jobs enqueued without some; names are templates
    start_within: int | None = None  # for jobs enqueued without one; seconds after its time
    unique_by: tuple[str, ...] = ()  # args: one live job of the task has the same values of them
    on_failed: str | None = None  # the task of the job that is enqueued when one has failed for good
    breaker: Breaker | None = None
    partitions: Partitions | None = None
    memory_mb: int | None = None  # of an isolated process, as the next three
    cpu_sec: int | None = None
    connection_check: bool = True  # PGOPTIONS makes servers notice that the process is gone
    argv: tuple[str, ...] | None = None  # its command line
    python: str | None = None  # an interpreter of its own
    cwd: str | None = None  # the folder in which that one runs
    requires: Mapping[str, bool | str] = field(default_factory=dict)  # labels of a worker; False: it has not this one
    target: str | None = None  # of the settings, in which it writes and keeps its position

    def __post_init__(self) -> None:
        isolation: object = self.isolation
        if isolation not in get_args(Isolation):
            raise ValueError(f"isolation is 'thread' or 'process', not {isolation!r}")
        if not callable(getattr(self.retry, "pause", None)):
            raise TypeError(f"retry is a policy such as retry.Exponential(10), not {self.retry!r}")
        _check_positive("time_limit", self.time_limit, (int, float))
        _check_positive("start_within", self.start_within, int)
        if self.breaker is not None and not isinstance(self.breaker, Breaker):
            raise TypeError(f"breaker is Breaker(failures=5, resume=300), not {self.breaker!r}")
        if self.partitions is not None and not isinstance(self.partitions, Partitions):
            raise TypeError(f'partitions are slices such as Daily("2030-01-01"), not {self.partitions!r}')
        for name in ("memory_mb", "cpu_sec"):
            _check_positive(name, getattr(self, name), int)
            if getattr(self, name) is not None and self.isolation != "process":
                raise ValueError(f"{name} limits an isolated process: it needs isolation='process'")
        if any(not name or type(name) is not str for name in self.unique_by):
            raise ValueError(f'unique_by names args, such as ("day",), not {self.unique_by!r}')
        if self.unique_by and self.partitions is not None:
            raise ValueError("a task with partitions has one live job of a slice: it takes no unique_by")
        if self.argv is not None:
            _check_argv(self.argv, 'argv is a list of texts, such as ["--date", "{date}"]')
            if self.isolation != "process":
                raise ValueError("argv belongs to a whole process: it needs isolation='process'")
        self._check_interpreter()
        check_requirements(self.requires)
        for name in ("queue", "lock_key", "on_failed", "target"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or not text.strip() or not text.isprintable()):
                raise ValueError(f"{name} is a text that is neither empty nor has control characters, not {text!r}")
        _ = self.arg_schema, self.lock_key_template

    def _check_interpreter(self) -> None:
        python: object = self.python
        cwd: object = self.cwd
        if python is None:
            if cwd is not None:
                raise ValueError("cwd is the folder of an interpreter of its own: it needs python")
            return
        if self.isolation != "process":
            raise ValueError("python is the interpreter of a process of its own: it needs isolation='process'")
        if not isinstance(python, str) or not python.strip() or "\0" in python:
            raise ValueError(f"python is the path of an interpreter, such as /srv/legacy/bin/python, not {python!r}")
        if cwd is not None and (not isinstance(cwd, str) or not os.path.isabs(cwd) or "\0" in cwd):
            raise ValueError(f"cwd is the absolute path of a folder, not {cwd!r}")

    @cached_property
    def arg_schema(self) -> ModelArgSchema | JsonArgSchema | None:
        return None if self.args is None else arg_schema_from(self.args)

    @cached_property
    def lock_key_template(self) -> Template | None:
        return None if self.lock_key is None else Template(self.lock_key)


def _check_argv(argv: object, description: str) -> None:
    if not isinstance(argv, tuple) or not all(isinstance(item, str) and "\0" not in item for item in argv):
        raise ValueError(description)
    for item in argv:
        Template(item)


def _fill(template: Template, args: Mapping[str, Any], made: str) -> str:
    for name in template.names:
        if name in args and not isinstance(args[name], str | int | float):
            raise ArgumentError(name, f"is neither a text nor a number, so it makes no {made}")
    return template.fill(args)


def fill_limits(declared: Mapping[str, int], args: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the limits of a job with these args, None if none are declared. Raises ValueError."""
    limits = {_fill(Template(name), args, "limit"): weight for name, weight in declared.items()}
    check_limits(limits)
    return limits or None


def fill_lock_key(declared: str, args: Mapping[str, Any]) -> str:
    """Return the lock key of a job with these args. Raises ArgumentError for one that does not fit."""
    return _fill(Template(declared), args, "lock_key")


def _check_positive(name: str, value: Any, kind: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, kind) or not 0 < value <= _INT4_MAX):
        raise ValueError(f"{name} is a {'whole ' if kind is int else ''}number greater than 0, not {value!r}")


@dataclass(frozen=True)
class Command:
    """A program that is run as the job, without a shell; `{name}` in an item is replaced by that argument."""

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_env: Mapping[str, str] = field(default_factory=dict)  # variable → name of its secret
    inherit: tuple[str, ...] = ()  # variables of the worker that it is given too

    def __post_init__(self) -> None:
        _check_argv(
            self.argv or None, 'a command is a list of texts, such as ["python", "load.py", "--date", "{date}"]'
        )
        if not self.argv[0].strip() or Template(self.argv[0]).names:
            raise ValueError("a command begins with the program, which no argument may choose")
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in f"{name}{value}" or not isinstance(value, str):
                raise ValueError(f"env maps names to texts, and {name!r} does not")


def fill_argv(templates: tuple[str, ...], args: Args) -> tuple[str, ...]:
    """Return the items with the arguments. Raises `Fail`, naming an argument that is missing or cannot be passed to a
    program."""
    try:
        filled = tuple(Template(item).fill(args) for item in templates)
    except ValueError as error:
        raise Fail(str(error)) from None
    for item, template in zip(filled, templates, strict=True):
        if "\0" in item:
            raise Fail(f"an argument of {template!r} contains the character NUL, which cannot be passed to a program")
    return filled


class TaskKind(StrEnum):
    FUNCTION = "function"
    GENERATOR = "generator"
    COROUTINE = "coroutine"
    ASYNC_GENERATOR = "async generator"
    COMMAND = "command"


@dataclass(frozen=True)
class Task:
    """A registered callable and how to call it."""

    name: str
    call: Callable[..., Any]
    kind: TaskKind
    shape: CallShape = field(default_factory=CallShape)
    options: TaskOptions = field(default_factory=TaskOptions)
    command: Command | None = None
    path: str | None = None  # module:name of a callable that only an interpreter of its own imports

    # ── when a job is enqueued ──────────────────────────────────────────────────────────────────────────────────

    def check_args(self, args: Mapping[str, Any]) -> list[ArgError]:
        """Return the errors of a job's args. They repeat no value."""
        errors: list[ArgError] = []
        if self.options.arg_schema is not None:
            try:
                self.options.arg_schema.parse(args)
            except InvalidArgs as invalid:
                errors = list(invalid.errors)
        paths = {path for path, _ in errors}
        errors += [error for error in self._signature_errors(args) if error[0] not in paths]
        return outside_refs(errors, args)

    def _signature_errors(self, args: Mapping[str, Any]) -> list[ArgError]:
        """Arguments that the callable requires and that are missing, or that it does not take."""
        if self.options.argv is not None or self.command is not None:
            templates = self.options.argv or () if self.command is None else self.command.argv
            names = dict.fromkeys(name for item in templates for name in Template(item).names)
            return [(format_path([name]), MISSING) for name in names if name not in args]
        if self._argument_names is None:
            return []
        needed, known, takes_more = self._argument_names
        missing = [(format_path([name]), MISSING) for name in needed if name not in args]
        return missing + [(format_path([name]), UNKNOWN) for name in args if name not in known and not takes_more]

    @cached_property
    def _argument_names(self) -> tuple[list[str], set[str], bool] | None:
        """Of a callable with keyword arguments: the required names, all names, and whether it takes others too."""
        if not self.shape.spread:
            return None
        own = [p for p in parameters(self.call) if p.name != self.shape.context_name]
        named = [p for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        takes_more = any(p.kind is p.VAR_KEYWORD for p in own)
        return [p.name for p in named if p.default is p.empty], {p.name for p in named}, takes_more

    def args_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the args, if the task has one."""
        return None if self.options.arg_schema is None else self.options.arg_schema.schema

    def fill_lock_key(self, args: Mapping[str, Any]) -> str:
        """Return the lock key of a job with these args. Raises ArgumentError for one that does not fit."""
        key = self.options.lock_key_template
        if key is None:
            raise ValueError(f"the task {self.name!r} has no lock_key of its own")
        return _fill(key, self.complete_args(args), "lock_key")

    def check_limits(self) -> None:
        """Raises ValueError for declared limits that no job can have."""
        try:
            check_limits(self.options.limits)
            for name in (name for limit in self.options.limits for name in Template(limit).names):
                if not self._may_have_argument(name):
                    raise ValueError(f"{name!r} is no argument of this task")
        except ValueError as error:
            raise ValueError(f"task {self.name!r}: limits: {error}") from None

    def _may_have_argument(self, name: str) -> bool:
        schema = self.options.arg_schema
        is_unknown = (format_path([name]), UNKNOWN) in self._signature_errors({name: None})
        return not is_unknown and (schema is None or schema.allows(name))

    def fill_limits(self, args: Mapping[str, Any]) -> dict[str, int] | None:
        """Return the limits of a job with these args, None if the task has none. Raises ValueError."""
        return fill_limits(self.options.limits, self.complete_args(args))

    def check_unique_by(self) -> None:
        """Raises ValueError for names of args that the task does not take."""
        for name in self.options.unique_by:
            if not self._may_have_argument(name):
                raise ValueError(f"task {self.name!r}: unique_by: {name!r} is no argument of this task")

    def unique_live_key(self, args: Mapping[str, Any]) -> str | None:
        """Return the live key of a job with these args, None if the task declares no `unique_by`."""
        names = self.options.unique_by
        return unique_live_key(self.name, names, self.complete_args(args)) if names else None

    def complete_args(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the args with the task's defaults, as its args model has them; args that do not fit as they are."""
        if self.options.arg_schema is not None:
            return self.options.arg_schema.complete(args)
        return self.default_args() | dict(args)

    def default_args(self) -> dict[str, Any]:
        """The defaults of its args that are texts, numbers or flags."""
        defaults: Mapping[str, Any]
        if self.options.arg_schema is not None:
            fields = self.options.arg_schema.schema.get("properties", {})
            defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
        else:
            defaults = {p.name: p.default for p in parameters(self.call)} if self.shape.spread else {}
        return {name: value for name, value in defaults.items() if isinstance(value, str | int | float)}

    @property
    def import_path(self) -> str:
        """The module:name by which an interpreter of its own imports its callable."""
        return self.path or f"{self.module}:{self.call.__qualname__}"

    def refuse_args(self, args: Mapping[str, Any]) -> None:
        """Raises `Fail` for args that do not fit: another service may have written the row."""
        errors = self.check_args(args)
        if errors:
            raise Fail(f"the args do not fit: {InvalidArgs(errors)}")

    @property
    def module(self) -> str:
        """The module of its callable."""
        return str(getattr(self.call, "__module__", ""))

    # ── when a job runs ─────────────────────────────────────────────────────────────────────────────────────────

    def start(self, args: Args, context: Context) -> Any:
        """Call the callable; it returns a value, a generator, a coroutine or an async generator. Raises `Fail` for args
        that do not fit: another service may have written the row."""
        parsed = self._parse_args(args)
        errors = self._signature_errors(args)
        if errors:
            raise Fail(f"the args do not fit: {InvalidArgs(errors)}")
        argv = None if self.options.argv is None else self.command_line(args)
        return start_call(self.call, self.shape, parsed if self._takes_model else args, context, argv)

    def command_line(self, args: Args) -> tuple[str, ...]:
        """Return the command line of a command, or that of a `main()` without the program's name. Raises `Fail` for
        args that do not fit."""
        if self.command is None:
            return fill_argv(self.options.argv or (), args)
        self._parse_args(args)
        return fill_argv(self.command.argv, args)

    def _parse_args(self, args: Args) -> Any:
        if self.options.arg_schema is None:
            return args
        try:
            return self.options.arg_schema.parse(args)
        except InvalidArgs as invalid:
            raise Fail(f"the args do not fit: {invalid}") from invalid.__cause__

    @cached_property
    def _takes_model(self) -> bool:
        first = next(iter(parameters(self.call)), None)
        return first is not None and isinstance(self.options.args, type) and is_annotated_with(first, self.options.args)


def task_from_callable(name: str, call: Callable[..., Any], *, spread: bool | None = None) -> Task:
    """Infer from a callable its kind and the arguments it takes."""
    if not callable(call):
        raise TypeError(f"task {name!r}: {call!r} cannot be called")
    return Task(name, call, _kind_of(call), shape_of(call, spread))


def task_from_path(name: str, path: str, *, spread: bool | None = None) -> Task:
    """A callable that is not imported here."""
    module, _, names = path.partition(":")

    def refuse_call(*_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"the task {name!r} has an interpreter of its own, which a worker starts; it cannot be called")

    refuse_call.__module__, refuse_call.__qualname__, refuse_call.__doc__ = module, names, f"Runs {path}."
    return Task(name, refuse_call, TaskKind.FUNCTION, CallShape(spread=bool(spread)), path=path)


def task_from_command(name: str, command: Command, options: TaskOptions) -> Task:
    def refuse_call(*_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"the task {name!r} is a command, which workers run as a program; it cannot be called")

    refuse_call.__doc__ = f"Runs the program {command.argv[0]}."
    return Task(name, refuse_call, TaskKind.COMMAND, options=options, command=command)


def _kind_of(call: Callable[..., Any]) -> TaskKind:
    inner: Any = call
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    if not inspect.isroutine(inner) and not inspect.isclass(inner):
        inner = type(inner).__call__
    if inspect.isasyncgenfunction(inner):
        return TaskKind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(inner):
        return TaskKind.COROUTINE
    if inspect.isgeneratorfunction(inner):
        return TaskKind.GENERATOR
    return TaskKind.FUNCTION
