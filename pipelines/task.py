"""A task: a callable and how to call it, or a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from typing import Any, NoReturn

from pipelines.arg_schema import MISSING, UNKNOWN, ArgError, InvalidArgs, format_path
from pipelines.context import Args, Context
from pipelines.options import Command, TaskOptions, fill_argv
from pipelines.retry import Fail
from pipelines.secret_refs import outside_refs
from pipelines.template import Template

_POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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
    takes_args: bool  # a callable without parameters is called with nothing
    takes_context: bool
    spread: bool  # args as keyword arguments rather than as one object
    options: TaskOptions = field(default_factory=TaskOptions)
    command: Command | None = None

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
        """Of a callable that takes keyword arguments: the required names, all names, and whether it takes others too.
        None if its signature is not known."""
        if not self.spread or not has_signature(self.call):
            return None
        own = [p for p in parameters(self.call) if not (self.takes_context and p.name == self._context_name)]
        named = [p for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        takes_more = any(p.kind is p.VAR_KEYWORD for p in own)
        return [p.name for p in named if p.default is p.empty], {p.name for p in named}, takes_more

    def args_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the args, if the task has one."""
        return None if self.options.arg_schema is None else self.options.arg_schema.schema

    def fill_lock_key(self, args: Mapping[str, Any]) -> str:
        """Return the lock key of a job with these args. Raises ValueError, naming an argument that does not fit."""
        key = self.options.lock_key_template
        if key is None:
            raise ValueError(f"the task {self.name!r} has no lock_key of its own")
        for name in key.names:
            if name in args and not isinstance(args[name], str | int | float):
                raise ValueError(f"the argument {name!r} is neither a text nor a number, so it makes no lock_key")
        return key.fill(args)

    # ── when a job runs ─────────────────────────────────────────────────────────────────────────────────────────

    def start(self, args: Args, context: Context) -> Any:
        """Call the callable; it returns a value, a generator, a coroutine or an async generator. Raises `Fail` for args
        that do not fit: another service may have written the row."""
        parsed = self._parse_args(args)
        errors = self._signature_errors(args)
        if errors:
            raise Fail(f"the args do not fit: {InvalidArgs(errors)}")
        try:
            return self._invoke(args, parsed, context)
        except TypeError as error:
            if _was_raised_inside(error, depth=2):
                raise
            raise Fail(f"the task's callable cannot be called like this: {error}") from error

    def _invoke(self, args: Args, parsed_args: Any, context: Context) -> Any:
        if self.options.argv is not None:
            return _exit_code_of(self.call(*self._main_arguments(args)))
        if self.spread:
            named = {**args, self._context_name: context} if self.takes_context else args
            return self.call(**named)
        value = parsed_args if self._takes_model else args
        if self.takes_context:
            return self.call(value, context)
        return self.call(value) if self.takes_args else self.call()

    def _main_arguments(self, args: Args) -> list[Any]:
        """The arguments of a `main()`: none, or its command line if it has a required parameter."""
        needs_list = any(p.default is p.empty and p.kind in _POSITIONAL_KINDS for p in parameters(self.call))
        return [list(self.command_line(args))] if needs_list else []

    def command_line(self, args: Args) -> tuple[str, ...]:
        """Return `sys.argv` for a `main()`, without the program's name. Raises `Fail` for args that do not fit."""
        return _filled(self.options.argv or (), args)

    def argv(self, args: Args) -> tuple[str, ...]:
        """Return the command line of a command. Raises `Fail` for args that do not fit."""
        if self.command is None:
            raise TypeError(f"the task {self.name!r} is no command")
        self._parse_args(args)
        return _filled(self.command.argv, args)

    def _parse_args(self, args: Args) -> Any:
        if self.options.arg_schema is None:
            return args
        try:
            return self.options.arg_schema.parse(args)
        except InvalidArgs as invalid:
            raise Fail(f"the args do not fit: {invalid}") from invalid.__cause__

    @cached_property
    def _context_name(self) -> str:
        return next(p.name for p in parameters(self.call) if _is_context(p))

    @cached_property
    def _takes_model(self) -> bool:
        first = next(iter(parameters(self.call)), None)
        return (
            first is not None and isinstance(self.options.args, type) and _is_annotated_with(first, self.options.args)
        )


def task_from_callable(name: str, call: Callable[..., Any], *, spread: bool | None = None) -> Task:
    """Infer from a callable its kind and the arguments it takes."""
    if not callable(call):
        raise TypeError(f"task {name!r}: {call!r} cannot be called")
    positional = [p for p in parameters(call) if p.kind in _POSITIONAL_KINDS]
    needed = [p for p in positional if p.default is p.empty]
    takes_context = any(_is_context(p) for p in (parameters(call) if spread else positional[1:2]))
    if spread is None:
        # Two required parameters, the second not the context: one `args` object is not enough.
        spread = len(needed) > 1 and not takes_context
        takes_context = takes_context or (spread and any(_is_context(p) for p in positional))
    takes_args = bool(positional) or any(p.kind is p.VAR_POSITIONAL for p in parameters(call))
    return Task(name, call, _kind_of(call), takes_args, takes_context, spread)


def task_from_command(name: str, command: Command, options: TaskOptions) -> Task:

    def refuse_call(*_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"the task {name!r} is a command, which workers run as a program; it cannot be called")

    refuse_call.__doc__ = f"Runs the program {command.argv[0]}."
    return Task(name, refuse_call, TaskKind.COMMAND, True, False, False, options, command)


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


def parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # a built-in without a signature takes the args
        return [inspect.Parameter("args", inspect.Parameter.POSITIONAL_ONLY)]


def _filled(templates: tuple[str, ...], args: Args) -> tuple[str, ...]:
    try:
        return fill_argv(templates, args)
    except ValueError as error:
        raise Fail(str(error)) from None


def _exit_code_of(result: Any) -> Any:
    """An integer that a `main()` returns is its exit code, as in a console script."""
    if type(result) is int:
        raise SystemExit(result)
    return result


def has_signature(call: Callable[..., Any]) -> bool:
    try:
        inspect.signature(call)
    except (TypeError, ValueError):
        return False
    return True


def _was_raised_inside(error: BaseException, *, depth: int) -> bool:
    """Whether an error was raised in the callable rather than by calling it: it has more frames than ours."""
    trace = error.__traceback__
    for _ in range(depth):
        trace = None if trace is None else trace.tb_next
    return trace is not None


def _is_context(parameter: inspect.Parameter) -> bool:
    return parameter.name in ("ctx", "context") or _annotation_name(parameter) == "Context"


def _is_annotated_with(parameter: inspect.Parameter, kind: type) -> bool:
    return parameter.annotation is kind or _annotation_name(parameter) == kind.__name__


def _annotation_name(parameter: inspect.Parameter) -> str:
    """The last name of the annotation. A text is not evaluated: its names may not be importable."""
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return str(named).strip("'\"").rsplit(".", 1)[-1]
