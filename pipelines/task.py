"""A task: a callable and how it wants to be called, or a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn

from pipelines.fit import FieldFault, Unfit
from pipelines.options import Command, Options
from pipelines.references import not_about
from pipelines.retry import Fail

if TYPE_CHECKING:
    from pipelines.contract import Context

Args = dict[str, Any]


class Kind(StrEnum):
    FUNCTION = "function"
    GENERATOR = "generator"
    COROUTINE = "coroutine"
    ASYNC_GENERATOR = "async generator"
    COMMAND = "command"


@dataclass(frozen=True)
class Task:
    """A registered callable and how it wants to be called."""

    name: str
    call: Callable[..., Any]
    kind: Kind
    takes_args: bool  # a callable without parameters is called with nothing
    takes_context: bool
    spread: bool  # args as keyword arguments rather than as one object
    options: Options = field(default_factory=Options)
    command: Command | None = None

    # ── when a job is asked for ─────────────────────────────────────────────────────────────────────────────────

    def check_args(self, args: Mapping[str, Any]) -> list[FieldFault]:
        """What is wrong with a job's args: (field, message) each. No value is repeated."""
        faults: list[FieldFault] = []
        if self.options.fit is not None:
            try:
                self.options.fit.read(args)
            except Unfit as unfit:
                faults = list(unfit.faults)
        return not_about(faults, args)

    def args_schema(self) -> dict[str, Any] | None:
        """JSON Schema of the args, if the task says what it takes."""
        return None if self.options.fit is None else self.options.fit.schema

    def fill_lock_key(self, args: Mapping[str, Any]) -> str:
        """The key of a job with these args. Raises ValueError, naming the argument, if they do not make one."""
        key = self.options.key
        if key is None:
            raise ValueError(f"the task {self.name!r} has no lock_key of its own")
        for name in key.names:
            if name in args and not isinstance(args[name], str | int | float):
                raise ValueError(f"the argument {name!r} is neither a text nor a number, so it makes no lock_key")
        return key.fill(args)

    # ── when it runs ────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, args: Args, context: Context) -> Any:
        """Call it: a value, a generator, a coroutine or an async generator, by `kind`. Raises `Fail` for args that do
        not fit, which a row that another service has written may hold."""
        read = self._read(args)
        if self.spread:
            named = {**args, self._context_name: context} if self.takes_context else args
            return self.call(**named)
        given = read if self._takes_model else args
        if self.takes_context:
            return self.call(given, context)
        return self.call(given) if self.takes_args else self.call()

    def argv(self, args: Args) -> tuple[str, ...]:
        """What to run, of a command. Raises `Fail` for args that do not fit."""
        if self.command is None:
            raise TypeError(f"the task {self.name!r} is no command")
        self._read(args)
        try:
            return self.command.fill(args)
        except ValueError as error:
            raise Fail(str(error)) from None

    def _read(self, args: Args) -> Any:
        if self.options.fit is None:
            return args
        try:
            return self.options.fit.read(args)
        except Unfit as unfit:
            raise Fail(f"the args do not fit: {unfit}") from unfit.__cause__

    @cached_property
    def _context_name(self) -> str:
        return next(p.name for p in parameters(self.call) if _is_context(p))

    @cached_property
    def _takes_model(self) -> bool:
        first = next(iter(parameters(self.call)), None)
        return first is not None and isinstance(self.options.args, type) and _is(first, self.options.args)


def describe(name: str, call: Callable[..., Any], *, spread: bool | None = None) -> Task:
    """Read off a callable what kind of pipeline it is and what it wants to be given."""
    if not callable(call):
        raise TypeError(f"task {name!r}: {call!r} cannot be called")
    positional = [p for p in parameters(call) if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    takes_context = any(_is_context(p) for p in (parameters(call) if spread else positional[1:2]))
    if spread is None:
        # Two values it cannot do without, the second no context: one `args` object would not be enough.
        spread = len(needed) > 1 and not takes_context
        takes_context = takes_context or (spread and any(_is_context(p) for p in positional))
    takes_args = bool(positional) or any(p.kind is p.VAR_POSITIONAL for p in parameters(call))
    return Task(name, call, _kind(call), takes_args, takes_context, spread)


def run_by(name: str, command: Command, options: Options) -> Task:
    """A task that is a command."""

    def not_here(*_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"the task {name!r} is a command, which a worker runs as a program; it cannot be called")

    not_here.__doc__ = f"Runs the program {command.argv[0]}."
    return Task(name, not_here, Kind.COMMAND, True, False, False, options, command)


def _kind(call: Callable[..., Any]) -> Kind:
    inner: Any = call
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    if not inspect.isroutine(inner) and not inspect.isclass(inner):
        inner = type(inner).__call__
    if inspect.isasyncgenfunction(inner):
        return Kind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(inner):
        return Kind.COROUTINE
    if inspect.isgeneratorfunction(inner):
        return Kind.GENERATOR
    return Kind.FUNCTION


def parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # a built-in that does not say: give it the args
        return [inspect.Parameter("args", inspect.Parameter.POSITIONAL_ONLY)]


def _is_context(parameter: inspect.Parameter) -> bool:
    return parameter.name in ("ctx", "context") or _annotated(parameter) == "Context"


def _is(parameter: inspect.Parameter, kind: type) -> bool:
    return parameter.annotation is kind or _annotated(parameter) == kind.__name__


def _annotated(parameter: inspect.Parameter) -> str:
    """The last name of the annotation, which may be a text: it is not evaluated, as its module may not be able to."""
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return str(named).strip("'\"").rsplit(".", 1)[-1]
