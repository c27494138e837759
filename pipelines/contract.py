"""What a pipeline and the service owe each other: `register`, `Context`, `Stop`, and the registry."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar
from uuid import UUID

Args = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])


class StopReason(StrEnum):
    """Why an attempt is ended before its pipeline is done."""

    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LEASE_LOST = "lease_lost"


class Stop(BaseException):
    """Raised inside a pipeline, at a safe point, to end it early.

    Not an `Exception`, so that a pipeline's `except Exception` lets it through. Clean up in `finally`.
    """

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Context(Protocol):
    """What a running pipeline may ask of the service; the second argument of those that want it."""

    @property
    def job_id(self) -> UUID: ...

    @property
    def attempt(self) -> int:
        """Which try this is, counted from 1."""

    def check(self) -> None:
        """A safe point: raises `Stop` if the attempt is to end."""

    def sleep(self, seconds: float) -> None:
        """Wait, and raise `Stop` at once if the attempt is to end."""

    def progress(
        self, done: int | None = None, total: int | None = None, unit: str | None = None, **more: Any
    ) -> None:
        """Say how far the job is. Cheap: kept in memory, and sent with the next heartbeat."""


class Kind(StrEnum):
    FUNCTION = "function"
    GENERATOR = "generator"
    COROUTINE = "coroutine"
    ASYNC_GENERATOR = "async generator"


@dataclass(frozen=True)
class Task:
    """A registered callable and how it wants to be called."""

    name: str
    call: Callable[..., Any]
    kind: Kind
    takes_args: bool  # a callable without parameters is called with nothing
    takes_context: bool
    spread: bool  # args as keyword arguments rather than as one object

    def start(self, args: Args, context: Context) -> Any:
        """Call it: a value, a generator, a coroutine or an async generator, by `kind`."""
        if self.spread:
            named = {**args, self._context_name(): context} if self.takes_context else args
            return self.call(**named)
        if self.takes_context:
            return self.call(args, context)
        return self.call(args) if self.takes_args else self.call()

    def _context_name(self) -> str:
        return next(p.name for p in _parameters(self.call) if _is_context(p))


class TaskConflict(ValueError):
    """Two callables want one name."""


class Pipelines:
    """The tasks a process knows, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def register(self, name: str, *, spread: bool | None = None) -> Callable[[F], F]:
        """Make a callable a task. The callable is returned as it was.

        It is called with the job's `args` object, and with the context if its second parameter is named `ctx` or
        `context` or annotated `Context`. A callable that needs several named values gets `args` spread over its
        parameters; `spread=True` asks for that where it cannot be told, as with `def load(customer_id)`.
        """
        if not name or len(name) > 200:
            raise ValueError(f"a task's name has 1 to 200 characters, not {len(name)}")

        def keep(call: F) -> F:
            self.add(describe(name, call, spread=spread))
            return call

        return keep

    def add(self, task: Task) -> None:
        known = self._tasks.get(task.name)
        if known is not None and known.call is not task.call and _origin(known.call) != _origin(task.call):
            raise TaskConflict(
                f"task {task.name!r} is registered twice: by {_origin(known.call)} and by {_origin(task.call)}"
            )
        self._tasks[task.name] = task

    def get(self, name: str) -> Task | None:
        return self._tasks.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tasks))

    def __iter__(self) -> Iterator[Task]:
        return iter([self._tasks[name] for name in self.names])

    def __len__(self) -> int:
        return len(self._tasks)


registry = Pipelines()
register = registry.register


def describe(name: str, call: Callable[..., Any], *, spread: bool | None = None) -> Task:
    """Read off a callable what kind of pipeline it is and what it wants to be given."""
    if not callable(call):
        raise TypeError(f"task {name!r}: {call!r} cannot be called")
    positional = [p for p in _parameters(call) if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    takes_context = any(_is_context(p) for p in (_parameters(call) if spread else positional[1:2]))
    if spread is None:
        # Two values it cannot do without, the second no context: one `args` object would not be enough.
        spread = len(needed) > 1 and not takes_context
        takes_context = takes_context or (spread and any(_is_context(p) for p in positional))
    takes_args = bool(positional) or any(p.kind is p.VAR_POSITIONAL for p in _parameters(call))
    return Task(name, call, _kind(call), takes_args, takes_context, spread)


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


def _parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # a built-in that does not say: give it the args
        return [inspect.Parameter("args", inspect.Parameter.POSITIONAL_ONLY)]


def _is_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameter.name in ("ctx", "context") or named.rsplit(".", 1)[-1] == "Context"


def _origin(call: Callable[..., Any]) -> str:
    return f"{getattr(call, '__module__', '?')}.{getattr(call, '__qualname__', repr(call))}"


@dataclass(frozen=True)
class Loading:
    """What loading the pipelines' modules brought."""

    modules: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)  # module → its error, with the traceback


def load(packages: Iterable[str]) -> Loading:
    """Import every module of the packages, so that their tasks are registered.

    One that cannot be imported is told in `failures` and does not keep the others from loading.
    """
    modules: list[str] = []
    failures: dict[str, str] = {}
    for package in packages:
        for name in _modules(package, failures):
            try:
                importlib.import_module(name)
            except Exception:  # whatever a module raises at import is its author's to read
                failures[name] = traceback.format_exc()
            else:
                modules.append(name)
    return Loading(tuple(modules), failures)


def _modules(package: str, failures: dict[str, str]) -> Iterator[str]:
    try:
        found = importlib.import_module(package)
    except Exception:
        failures[package] = traceback.format_exc()
        return
    yield package
    own = __name__.rpartition(".")[0]
    for module in pkgutil.walk_packages(getattr(found, "__path__", []), package + ".", onerror=lambda _: None):
        if package == own and module.name.startswith((own + ".contract", own + ".toolkit")):
            continue
        if not module.name.endswith(".__main__"):
            yield module.name
