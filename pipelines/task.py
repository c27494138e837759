"""A task: a callable and how it wants to be called, or a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn

from pipelines.fit import MISSING, UNKNOWN, FieldFault, Unfit, path
from pipelines.options import Command, Options, fill_argv
from pipelines.references import not_about
from pipelines.retry import Fail
from pipelines.template import Template

if TYPE_CHECKING:
    from pipelines.contract import Context

Args = dict[str, Any]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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
        known = {where for where, _ in faults}
        faults += [fault for fault in self._call_faults(args) if fault[0] not in known]
        return not_about(faults, args)

    @property
    def checks_args(self) -> bool:
        """Whether `check_args` may find anything: by a model, by the callable's signature, or by placeholders."""
        return self.options.fit is not None or self.spread or self.options.argv is not None or self.command is not None

    def _call_faults(self, args: Mapping[str, Any]) -> list[FieldFault]:
        """Args that the callable cannot be called with: it lacks one that it needs, or does not know one."""
        if self.options.argv is not None or self.command is not None:
            templates = self.options.argv or () if self.command is None else self.command.argv
            names = dict.fromkeys(name for item in templates for name in Template(item).names)
            return [(path([name]), MISSING) for name in names if name not in args]
        if self._named is None:
            return []
        needed, known, takes_more = self._named
        missing = [(path([name]), MISSING) for name in needed if name not in args]
        return missing + [(path([name]), UNKNOWN) for name in args if name not in known and not takes_more]

    @cached_property
    def _named(self) -> tuple[list[str], set[str], bool] | None:
        """Of a callable whose args are spread: the names that it needs, those that it knows, and whether it takes any;
        None where that cannot be known."""
        if not self.spread or not has_signature(self.call):
            return None
        found = [p for p in parameters(self.call) if not (self.takes_context and p.name == self._context_name)]
        named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        takes_more = any(p.kind is p.VAR_KEYWORD for p in found)
        return [p.name for p in named if p.default is p.empty], {p.name for p in named}, takes_more

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
        faults = self._call_faults(args)
        if faults:
            raise Fail(f"the args do not fit: {Unfit(faults)}")
        try:
            return self._call(args, read, context)
        except TypeError as error:
            if _is_inside(error, depth=2):
                raise
            raise Fail(f"the task's callable cannot be called like this: {error}") from error

    def _call(self, args: Args, read: Any, context: Context) -> Any:
        if self.options.argv is not None:
            return _exit_code_of(self.call(*self._main_arguments(args)))
        if self.spread:
            named = {**args, self._context_name: context} if self.takes_context else args
            return self.call(**named)
        given = read if self._takes_model else args
        if self.takes_context:
            return self.call(given, context)
        return self.call(given) if self.takes_args else self.call()

    def _main_arguments(self, args: Args) -> list[Any]:
        """Of a `main()`: nothing, or its command line where it has a parameter that it needs."""
        needs_list = any(p.default is p.empty and p.kind in _POSITIONAL for p in parameters(self.call))
        return [list(self.command_line(args))] if needs_list else []

    def command_line(self, args: Args) -> tuple[str, ...]:
        """What a `main()` finds in `sys.argv`, after the program's name. Raises `Fail` for args that do not fit."""
        try:
            return fill_argv(self.options.argv or (), args)
        except ValueError as error:
            raise Fail(str(error)) from None

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
    positional = [p for p in parameters(call) if p.kind in _POSITIONAL]
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


def _exit_code_of(result: Any) -> Any:
    """A whole number that a `main()` returns is its exit code, as in a console script."""
    if type(result) is int:
        raise SystemExit(result)
    return result


def has_signature(call: Callable[..., Any]) -> bool:
    try:
        inspect.signature(call)
    except (TypeError, ValueError):
        return False
    return True


def _is_inside(error: BaseException, *, depth: int) -> bool:
    """Whether an error was raised within the callable, rather than by the attempt to call it: it has frames beyond
    ours."""
    trace = error.__traceback__
    for _ in range(depth):
        trace = None if trace is None else trace.tb_next
    return trace is not None


def _is_context(parameter: inspect.Parameter) -> bool:
    return parameter.name in ("ctx", "context") or _annotated(parameter) == "Context"


def _is(parameter: inspect.Parameter, kind: type) -> bool:
    return parameter.annotation is kind or _annotated(parameter) == kind.__name__


def _annotated(parameter: inspect.Parameter) -> str:
    """The last name of the annotation, which may be a text: it is not evaluated, as its module may not be able to."""
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return str(named).strip("'\"").rsplit(".", 1)[-1]
