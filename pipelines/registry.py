"""The tasks a process knows, by name, and how they come to be known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pipelines.options import Command, Isolation, Options
from pipelines.references import name_of
from pipelines.retry import DEFAULT, Answer, Policy, Rule, Rules, Which
from pipelines.task import Task, describe, run_by

_LONGEST_NAME = 200
F = TypeVar("F", bound=Callable[..., Any])


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
        connection_check: bool = True,
        argv: Sequence[str] | None = None,
    ) -> Callable[[F], F]:
        """Make a callable a task. The callable is returned as it was.

        It is called with the job's `args` object, and with the context if its second parameter is named `ctx` or
        `context` or annotated `Context`. A callable that needs several named values gets `args` spread over its
        parameters; `spread=True` asks for that where it cannot be told, as with `def load(customer_id)`. With a
        pydantic model as `args`, a first parameter that is annotated with it gets the model instead of the object.

        A `main()` that parses a command line gets `argv`, in which `{date}` is replaced by that argument of the job: it
        is called with nothing, or with that list if it has a parameter that it needs.
        """
        _check_name(name)
        if isinstance(argv, str):
            raise TypeError(f"argv is a list, such as [{argv!r}]")
        options = Options(
            args=args,
            retry=retry,
            rules=_rules(no_retry, rules),
            time_limit=time_limit,
            isolation=isolation,
            interrupt=interrupt,
            queue=queue,
            lock_key=lock_key,
            memory_mb=memory_mb,
            cpu_sec=cpu_sec,
            connection_check=connection_check,
            argv=None if argv is None else tuple(argv),
        )

        def keep(call: F) -> F:
            self.add(replace(describe(name, call, spread=spread), options=options))
            return call

        return keep

    def command(
        self,
        name: str,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, Any] | None = None,
        inherit: Sequence[str] = (),
        no_retry: Sequence[Which] = (),
        rules: Mapping[Which, Rule] | None = None,
        **options: Any,
    ) -> Task:
        """Make a program a task: `{date}` in an item of `argv` is replaced by that argument of the job. It always has a
        process of its own; the other options are those of `register`.

        Its environment is the worker's without the settings of dataloader and of libpq (`DL_…`, `PG…`), but for those
        that `inherit` names; and `env`, in which `{"$secret": "name"}` stands for a secret."""
        _check_name(name)
        if isinstance(argv, str):
            raise TypeError("a command is a list of texts: no shell takes it apart")
        if options.keys() & {"spread", "argv"} or options.get("isolation", "process") != "process":
            raise ValueError("a command always has a process of its own, and names its arguments itself")
        how = Options(**{**options, "isolation": "process", "rules": _rules(no_retry, rules)})
        secrets = {name: str(name_of(told)) for name, told in (env or {}).items() if isinstance(told, Mapping)}
        plain = {name: told for name, told in (env or {}).items() if name not in secrets}
        task = run_by(name, Command(tuple(argv), cwd, plain, secrets, tuple(inherit)), how)
        self.add(task)
        return task

    def add(self, task: Task) -> None:
        known = self._tasks.get(task.name)
        if known is not None and not _same(known, task):
            raise TaskConflict(f"task {task.name!r} is registered twice: by {_origin(known)} and by {_origin(task)}")
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


def _check_name(name: str) -> None:
    if not name or len(name) > _LONGEST_NAME:
        raise ValueError(f"a task's name has 1 to {_LONGEST_NAME} characters, not {len(name)}")


def _rules(no_retry: Sequence[Which], rules: Mapping[Which, Rule] | None) -> Rules:
    if isinstance(no_retry, str):
        raise TypeError(f"no_retry is a list, such as [{no_retry!r}]")
    return Rules((*((which, Answer.FAIL) for which in no_retry), *(rules or {}).items()))


def _same(known: Task, other: Task) -> bool:
    """A module that is loaded again brings the same tasks again."""
    if known.command is not None or other.command is not None:
        return known.command == other.command
    return known.call is other.call or _origin(known) == _origin(other)


def _origin(task: Task) -> str:
    if task.command is not None:
        return f"the command {' '.join(task.command.argv)}"
    return f"{getattr(task.call, '__module__', '?')}.{getattr(task.call, '__qualname__', repr(task.call))}"


registry = Pipelines()
register = registry.register
