"""What a pipeline and the service owe each other: `register`, `Context`, `Stop`, and the registry."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

from pipelines.retry import DEFAULT, Answer, Fail, Policy, Rule, Rules, Snooze, Which

__all__ = [
    "Args", "Checkpoint", "Command", "Context", "ContextLog", "Fail", "Isolation", "Kind", "Loading", "Options",
    "Pipelines", "Progress", "Snooze", "Stop", "StopReason", "Task", "TaskConflict", "describe", "load", "register",
    "registry",
]  # fmt: skip

Args = dict[str, Any]
_LONGEST_NAME = 200
F = TypeVar("F", bound=Callable[..., Any])


class StopReason(StrEnum):
    """Why an attempt is ended before its pipeline is done."""

    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LEASE_LOST = "lease_lost"
    TIME_LIMIT = "time_limit"


class Stop(BaseException):
    """Raised inside a pipeline, at a safe point, to end it early.

    Not an `Exception`, so that a pipeline's `except Exception` lets it through. Clean up in `finally`.
    """

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class Checkpoint:
    """Yielded by a generator: where the next try goes on."""

    cursor: Any


@dataclass(frozen=True)
class Progress:
    """Yielded by a generator: how far the job is."""

    done: int | None = None
    total: int | None = None
    unit: str | None = None


class ContextLog(Protocol):
    """The job's own log; fields stand behind the message."""

    def debug(self, message: str, /, **fields: Any) -> None: ...
    def info(self, message: str, /, **fields: Any) -> None: ...
    def warning(self, message: str, /, **fields: Any) -> None: ...
    def error(self, message: str, /, **fields: Any) -> None: ...


class Context(Protocol):
    """What a running pipeline may ask of the service; the second argument of those that want it."""

    @property
    def job_id(self) -> UUID: ...

    @property
    def task(self) -> str: ...

    @property
    def attempt(self) -> int:
        """Which try this is, counted from 1."""

    @property
    def max_attempts(self) -> int: ...

    @property
    def resume(self) -> Any:
        """What `checkpoint` was last told, by this try or one before it; None at first."""

    @property
    def log(self) -> ContextLog: ...

    def check(self) -> None:
        """A safe point: raises `Stop` if the attempt is to end."""

    def sleep(self, seconds: float) -> None:
        """Wait, and raise `Stop` at once if the attempt is to end."""

    def progress(self, done: int | None = None, total: int | None = None, unit: str | None = None, **more: Any) -> None:
        """Say how far the job is. Cheap: kept in memory, and written down about once a second."""

    def count(self, **numbers: int | float) -> None:
        """Add to the job's own numbers, which stand in its progress under `counts`."""

    def checkpoint(self, cursor: Any) -> None:
        """Remember where the next try goes on, if there has to be one. Written down about once a second, or, within
        `transaction`, together with it."""

    def enqueue(
        self,
        task: str,
        args: Args | None = None,
        *,
        queue: str | None = None,
        lock_key: str | None = None,
        idempotency_key: str | None = None,
        priority: int | None = None,
        available_at: datetime | None = None,
        max_attempts: int | None = None,
    ) -> UUID:
        """Ask for a follow-up job. A second try that asks again in the same order gets the same jobs, not more of
        them; within `transaction` the job is there only if that commits."""

    def transaction(self, *, final: bool = False, result: Any = None) -> AbstractContextManager[Any]:
        """A psycopg2 connection to the queue's own database, for one transaction. It commits only if this run still
        owns its job, and takes the checkpoint along; `final` ends the job as succeeded in the same stroke."""

    def connect(self, name: str) -> Any:
        """A psycopg2 connection to a target that the settings name. Closed when the attempt ends."""


class Kind(StrEnum):
    FUNCTION = "function"
    GENERATOR = "generator"
    COROUTINE = "coroutine"
    ASYNC_GENERATOR = "async generator"
    COMMAND = "command"


Isolation = Literal["thread", "process"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a task wants its jobs to be run."""

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


@dataclass(frozen=True)
class Command:
    """A program that is run as the job; `{name}` in an item is replaced by that argument, never by a shell."""

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


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

    def register(  # noqa: PLR0913 - each is one word that an author may say of a task
        self,
        name: str,
        *,
        spread: bool | None = None,
        args: Any = None,
        retry: Policy = DEFAULT,
        no_retry: Sequence[Which] = (),
        rules: Mapping[Which, Rule] | None = None,
        time_limit: float | None = None,
        isolation: Isolation = "thread",
        interrupt: bool = False,
        queue: str | None = None,
        lock_key: str | None = None,
        memory_mb: int | None = None,
        cpu_sec: int | None = None,
    ) -> Callable[[F], F]:
        """Make a callable a task. The callable is returned as it was.

        It is called with the job's `args` object, and with the context if its second parameter is named `ctx` or
        `context` or annotated `Context`. A callable that needs several named values gets `args` spread over its
        parameters; `spread=True` asks for that where it cannot be told, as with `def load(customer_id)`.
        """
        if not name or len(name) > _LONGEST_NAME:
            raise ValueError(f"a task's name has 1 to {_LONGEST_NAME} characters, not {len(name)}")
        known = [*((which, Answer.FAIL) for which in no_retry), *(rules or {}).items()]
        options = Options(
            args=args,
            retry=retry,
            rules=Rules(tuple(known)),
            time_limit=time_limit,
            isolation=isolation,
            interrupt=interrupt,
            queue=queue,
            lock_key=lock_key,
            memory_mb=memory_mb,
            cpu_sec=cpu_sec,
        )

        def keep(call: F) -> F:
            self.add(replace(describe(name, call, spread=spread), options=options))
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
