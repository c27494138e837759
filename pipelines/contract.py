"""What pipelines import: `register`, `Context`, `Stop`, `Progress`, `Checkpoint`; and the tasks of a process."""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, TypeVar

from dataloader.pipelines.context import Args, Checkpoint, Context, ContextLog, Handle, Progress, Stop, StopReason, Wait
from dataloader.pipelines.job_args import secret_name
from dataloader.pipelines.offload import EngineUnavailable, OffloadFailed, RemoteOutOfMemory, RemoteWorkerLost
from dataloader.pipelines.partitions import Daily, Hourly, Listed, Monthly, Partitions, Weekly, partitions_from_json
from dataloader.pipelines.retry import DEFAULT, ErrorMatcher, Fail, Policy, RetryAction, Rule, Rules, Snooze
from dataloader.pipelines.retry import policy_from_json as read_policy
from dataloader.pipelines.retry import policy_to_json as show_policy
from dataloader.pipelines.schedules import check_schedule_name, schedule, schedules_of
from dataloader.pipelines.task import (
    Breaker,
    Command,
    Isolation,
    Task,
    TaskKind,
    TaskOptions,
    task_from_callable,
    task_from_command,
    task_from_path,
)

__all__ = [
    "Args", "Breaker", "Checkpoint", "Command", "Context", "ContextLog", "Daily", "EngineUnavailable", "Fail",
    "Handle", "Hourly", "Isolation", "Listed", "Monthly", "OffloadFailed", "Partitions", "Pipelines", "Progress",
    "RemoteOutOfMemory", "RemoteWorkerLost", "Snooze", "Stop", "StopReason", "Task", "TaskConflict", "TaskKind",
    "TaskOptions", "Wait", "Weekly", "load_tasks", "read_policy", "register", "registry", "schedule", "show_policy",
    "task_from_callable",
]  # fmt: skip

_MAX_NAME_LENGTH = 200
F = TypeVar("F", bound=Callable[..., Any])


class TaskConflict(ValueError):
    """Two callables are registered by one name."""


class Pipelines:
    """Registered tasks."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def register(  # noqa: PLR0913 - the options of the contract
        self,
        name: str,
        *,
        spread: bool | None = None,
        args: Any = None,
        retry: Policy = DEFAULT,
        no_retry: Sequence[ErrorMatcher] = (),
        rules: Mapping[ErrorMatcher, Rule] | None = None,
        time_limit: float | None = None,
        isolation: Isolation = "thread",
        interrupt: bool = False,
        queue: str | None = None,
        lock_key: str | None = None,
        limits: Mapping[str, int] | None = None,
        start_within: int | None = None,
        unique_by: Sequence[str] = (),
        on_failed: str | None = None,
        breaker: Breaker | None = None,
        partitions: Partitions | None = None,
        memory_mb: int | None = None,
        cpu_sec: int | None = None,
        connection_check: bool = True,
        argv: Sequence[str] | None = None,
        python: str | None = None,
        cwd: str | None = None,
        requires: Mapping[str, bool | str] | None = None,
        target: str | None = None,
    ) -> Callable[[F], F]:
        """Register a callable as a task. The decorator returns the callable unchanged.

            @register("load.rates", lock_key="rates:{day}", time_limit=3600)
            def load_rates(args, ctx): ...

        It is called with the job's `args` object, and with the context if its second parameter is named `ctx` or
        `context` or annotated `Context`. A callable with several required parameters gets `args` as keyword arguments.

        A `main()` that parses a command line gets `argv`. It is called without arguments, or with that list if it has a
        required parameter.

        Options; docs/writing-a-pipeline.md has more about each:

            name: what jobs call the task by, such as "load.rates"
            spread: pass `args` as keyword arguments; True where that cannot be inferred, as with `def load(shop)`
            args: a pydantic model or a JSON Schema that the trigger checks args against; a first parameter that is
                annotated with the model gets the model instead of the object
            retry: the pauses between attempts, such as `Exponential(10)`
            no_retry: errors that fail the job at once: classes, their names, or beginnings of SQLSTATEs
            rules: error → "retry", "fail", or the seconds after which to try again without counting the attempt
            time_limit: seconds that an attempt may run
            isolation: "thread", or "process" for a process of its own, which can always be stopped
            interrupt: whether a stop may raise in the thread at any bytecode
            queue: the queue of jobs that name none
            lock_key: the lock key of jobs that name none, such as "customer:{id}": one job of a key runs at a time
            limits: the named limits of jobs that name none, such as {"partner": 1}
            start_within: seconds after its time within which a job must start
            unique_by: args of which one waiting or running job has the same values, such as ("day",): a further trigger
                gets that job
            on_failed: a task; a job of it is enqueued when a job of this one has failed for good
            breaker: pauses the task after failures, such as Breaker(failures=5, resume=300)
            partitions: the slices that backfills load, such as Daily("2026-01-01")
            memory_mb: memory limit of its own process
            cpu_sec: CPU limit of its own process
            connection_check: False: do not set PGOPTIONS for its own process
            argv: the command line of a `main()`, in which {date} is replaced by that argument of the job
            python: the path of another interpreter, which runs it in a process of its own
            cwd: the folder in which that interpreter runs
            requires: labels that a worker process needs to run it, such as {"gpu": True, "spot": False}
            target: the database of the settings (DL_TARGETS) in which `ctx.transaction()` writes, each row exactly once
        """
        _check_name(name)
        options = _make_options(
            args=args,
            retry=retry,
            no_retry=no_retry,
            rules=rules,
            time_limit=time_limit,
            isolation=isolation,
            interrupt=interrupt,
            queue=queue,
            lock_key=lock_key,
            limits=limits,
            start_within=start_within,
            unique_by=unique_by,
            on_failed=on_failed,
            breaker=breaker,
            partitions=partitions,
            memory_mb=memory_mb,
            cpu_sec=cpu_sec,
            connection_check=connection_check,
            argv=argv,
            python=python,
            cwd=cwd,
            requires=requires,
            target=target,
        )

        def decorate(call: F) -> F:
            if python is not None:
                _check_importable(name, call)
            self.add(replace(task_from_callable(name, call, spread=spread), options=options))
            return call

        return decorate

    def call(self, name: str, path: str, *, python: str, spread: bool | None = None, **options: Any) -> Task:
        """Register a callable, such as `company.loads:rates`, that only the interpreter `python` imports. The other
        options are those of `register`."""

        _check_name(name)
        task_options = _make_options(python=python, **{"isolation": "process", **options})
        task = replace(task_from_path(name, path, spread=spread), options=task_options)
        self.add(task)
        return task

    def command(
        self,
        name: str,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, Any] | None = None,
        inherit: Sequence[str] = (),
        no_retry: Sequence[ErrorMatcher] = (),
        rules: Mapping[ErrorMatcher, Rule] | None = None,
        **options: Any,
    ) -> Task:
        """Register a program as a task: `{date}` in an item of `argv` is replaced by that argument of the job. The
        other options are those of `register`.

        Its environment is the worker's without the settings of dataloader and libpq (`DL_…`, `PG…`), except those that
        `inherit` names, and with `env`, in which `{"$secret": "name"}` is replaced by that secret."""
        _check_name(name)
        if isinstance(argv, str):
            raise TypeError("a command is a list of texts: no shell parses it")
        if options.keys() & {"spread", "argv", "python"} or options.get("isolation", "process") != "process":
            raise ValueError("a command always has a process of its own, and names its arguments itself")
        task_options = _make_options(no_retry=no_retry, rules=rules, **{**options, "isolation": "process"})
        secrets = {name: str(secret_name(value)) for name, value in (env or {}).items() if isinstance(value, Mapping)}
        plain = {name: value for name, value in (env or {}).items() if name not in secrets}
        task = task_from_command(name, Command(tuple(argv), cwd, plain, secrets, tuple(inherit)), task_options)
        self.add(task)
        return task

    def add(self, task: Task) -> None:
        task.check_limits()
        task.check_unique_by()
        known = self._tasks.get(task.name)
        if known is not None and (known.command, _origin(known)) != (task.command, _origin(task)):
            raise TaskConflict(f"task {task.name!r} is registered twice: by {_origin(known)} and by {_origin(task)}")
        self._tasks[task.name] = task

    def get(self, name: str) -> Task | None:
        return self._tasks.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tasks))

    def declared_job_fields(self) -> dict[str, dict[str, Any]]:
        """What tasks declare of jobs that others enqueue: `lock_key`, `limits`, `unique_by`, and the `defaults` of the
        args on which these depend."""
        declared: dict[str, dict[str, Any]] = {}
        for task in self:
            options = task.options
            limits, unique_by = dict(options.limits), list(options.unique_by or ())
            fields = {"lock_key": options.lock_key, "limits": limits, "unique_by": unique_by}
            if given := {name: value for name, value in fields.items() if value}:
                declared[task.name] = {**given, "defaults": task.default_args()}
        return declared

    def declared_failure_handlers(self) -> list[dict[str, Any]]:
        """The tasks that handle failures of others, with the queue of their jobs; None: that of the failed job."""
        return [
            {"task": task.name, "handler": name, "queue": known and known.options.queue}
            for task in self
            if (name := task.options.on_failed) is not None
            for known in (self.get(name),)
        ]

    def declared_requirements(self) -> dict[str, dict[str, bool | str]]:
        """The labels that workers need for the tasks that require some."""
        return {task.name: dict(task.options.requires) for task in self if task.options.requires}

    def declared_breakers(self) -> list[dict[str, Any]]:
        """The breakers of the tasks that have one."""
        return [
            {"task": task.name, "failures": rule.failures, "window_sec": rule.window, "resume_sec": rule.resume}
            for task in self
            if (rule := task.options.breaker) is not None
        ]

    def declared_partitions(self) -> dict[str, dict[str, Any]]:
        """The partitions of the tasks that have some, as JSON."""
        return {task.name: p.to_json() for task in self if (p := task.options.partitions) is not None}

    def declared_schedules(self) -> list[dict[str, Any]]:
        """The schedules of the tasks as JSON: name, task and definition. Raises ValueError if two have one name."""
        declared: dict[str, dict[str, Any]] = {}
        for task in self:
            slices = task.options.partitions
            more = {"task": task.name} | ({} if slices is None else {"partitions": slices.to_json()})
            for declaration in schedules_of(task.call):
                name = declaration.name or task.name
                check_schedule_name(name)  # where it is the task's
                if name in declared:
                    other = declared[name]["task"]
                    raise ValueError(
                        f"two schedules have the name {name!r}: of task {other!r} and of task {task.name!r}"
                    )
                declared[name] = {"name": name, "task": task.name, "definition": declaration.to_json() | more}
        return list(declared.values())

    def __iter__(self) -> Iterator[Task]:
        return iter([self._tasks[name] for name in self.names])

    def __len__(self) -> int:
        return len(self._tasks)


def _check_name(name: str) -> None:
    if not name or len(name) > _MAX_NAME_LENGTH:
        raise ValueError(f"a task's name has 1 to {_MAX_NAME_LENGTH} characters, not {len(name)}")


def _check_importable(name: str, call: Any) -> None:
    module, qualified_name = getattr(call, "__module__", None), getattr(call, "__qualname__", None)
    if module in (None, "__main__") or not str(qualified_name or "<").replace(".", "").isidentifier():
        raise ValueError(f"task {name!r}: another interpreter cannot import {call!r}: it is no function of a module")


def _make_options(
    *,
    no_retry: Sequence[ErrorMatcher] = (),
    rules: Mapping[ErrorMatcher, Rule] | None = None,
    limits: Mapping[str, int] | None = None,
    unique_by: Sequence[str] = (),
    argv: Sequence[str] | None = None,
    requires: Mapping[str, bool | str] | None = None,
    **options: Any,
) -> TaskOptions:
    if isinstance(argv, str):
        raise TypeError(f"argv is a list, such as [{argv!r}]")
    if isinstance(unique_by, str):
        raise TypeError(f"unique_by is a list, such as [{unique_by!r}]")
    return TaskOptions(
        rules=_merge_rules(no_retry, rules),
        limits=limits or {},
        unique_by=tuple(unique_by),
        argv=None if argv is None else tuple(argv),
        requires={} if requires is None else requires,
        **options,
    )


def _merge_rules(no_retry: Sequence[ErrorMatcher], rules: Mapping[ErrorMatcher, Rule] | None) -> Rules:
    if isinstance(no_retry, str):
        raise TypeError(f"no_retry is a list, such as [{no_retry!r}]")
    return Rules((*((matcher, RetryAction.FAIL) for matcher in no_retry), *(rules or {}).items()))


def _origin(task: Task) -> str:
    """Where the task comes from: a module that is imported again registers the same tasks again."""
    if task.path is not None:
        return f"{task.path} of {task.options.python}"
    if task.command is not None:
        return f"the command {' '.join(task.command.argv)}"
    return f"{getattr(task.call, '__module__', '?')}.{getattr(task.call, '__qualname__', repr(task.call))}"


registry = Pipelines()
register = registry.register


def load_tasks(
    packages: Iterable[str], tasks: Mapping[str, Any] | None = None, *, known_tasks: Pipelines = registry
) -> dict[str, str]:
    """Import all modules of the packages, which registers their tasks; then register `tasks`: each is a dotted path
    such as `company.loads:rates`, or an object with `call` (such a path) or `command`, and options.

    Return the traceback of each module, and of each `task NAME`, that cannot be loaded; the others are loaded. That of
    `schedules` means that two have one name.
    """
    failures: dict[str, str] = {}
    for package in packages:
        names = [package]
        for name in names:
            try:
                module = importlib.import_module(name)
            except Exception:  # for the module's author to read
                failures[name] = traceback.format_exc()
                continue
            if name == package:
                paths = getattr(module, "__path__", [])
                walked = pkgutil.walk_packages(paths, package + ".", onerror=lambda _: None)
                names += [found.name for found in walked if not found.name.endswith(".__main__")]
    for name, definition in (tasks or {}).items():
        try:
            _register_task(name, definition, known_tasks)
        except Exception:
            failures[f"task {name}"] = traceback.format_exc()
    try:
        known_tasks.declared_schedules()
    except ValueError:
        failures["schedules"] = traceback.format_exc()
    return failures


def _register_task(name: str, definition: Any, known_tasks: Pipelines) -> None:
    options: dict[str, Any] = {"call": definition} if isinstance(definition, str) else dict(definition)
    if "retry" in options:
        options["retry"] = read_policy(options["retry"])
    if "partitions" in options:
        options["partitions"] = partitions_from_json(options["partitions"])
    if "command" in options:
        known_tasks.command(name, options.pop("command"), **options)
        return
    path = options.pop("call")
    module, _, names = path.partition(":") if ":" in path else path.rpartition(".")
    if not module or not names:
        raise ValueError(f"{path!r} names no callable; expected a path such as company.loads:rates")
    if "python" in options:
        known_tasks.call(name, f"{module}:{names}", **options)
        return
    root: Any = importlib.import_module(module)
    call = reduce(getattr, names.split("."), root)
    options.setdefault("isolation", "process")  # it may have no safe points: only a process can always be stopped
    known_tasks.register(name, **options)(call)
