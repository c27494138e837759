"""What a task that this process knows says of the requests for it: its defaults, and what its args must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import PydanticCustomError

from app.web.strictjson import FieldFault
from pipelines.contract import Args, Kind, Pipelines, Task, show_policy


@dataclass(frozen=True)
class _Unmade:
    """Stands where a lock_key was to be made, and could not."""

    why: str


def defaults_of(pipelines: Pipelines) -> Callable[[Any], Any]:
    """Fills in what a request leaves out and its task knows, before the request is validated."""

    def filled(told: Any) -> Any:
        name = told.get("task") if isinstance(told, dict) else None
        task = pipelines.get(name) if isinstance(name, str) else None
        if task is None:
            return told
        known: dict[str, Any] = {}
        if "queue" not in told and task.options.queue is not None:
            known["queue"] = task.options.queue
        if "lock_key" not in told and task.options.lock_key is not None:
            known["lock_key"] = _lock_key(task, told.get("args", {}))
        return {**told, **known} if known else told

    return filled


def _lock_key(task: Task, args: Any) -> str | _Unmade:
    try:
        return task.fill_lock_key(args if isinstance(args, dict) else {})
    except ValueError as error:
        return _Unmade(str(error))


def made(told: Any) -> Any:
    """A lock_key, as given or as made of the args."""
    if isinstance(told, _Unmade):
        raise PydanticCustomError("lock_key", "cannot be made of the args: {why}", {"why": told.why})
    return told


def args_faults(task: Task | None, args: Args) -> list[FieldFault]:
    """What is wrong with the args of a request, as far as it can be told here."""
    if task is None:
        return []
    return [FieldFault(_under_args(path), message) for path, message in task.check_args(args)]


def _under_args(path: str) -> str:
    if not path:
        return "args"
    return f"args{path}" if path.startswith("[") else f"args.{path}"


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """How a task's jobs are run unless a trigger says otherwise. Null: nothing is said."""

    queue: str | None
    lock_key: str | None
    retry: dict[str, Any]
    rules: dict[str, str | float]
    time_limit_sec: float | None
    isolation: Literal["thread", "process"]
    interrupt: bool
    memory_mb: int | None
    cpu_sec: int | None
    connection_check: bool
    argv: list[str] | None

    @classmethod
    def of(cls, task: Task) -> TaskOptions:
        said = task.options
        return cls(
            queue=said.queue,
            lock_key=said.lock_key,
            retry=show_policy(said.retry),
            rules={_named(which): rule for which, rule in said.rules.of},
            time_limit_sec=said.time_limit,
            isolation=said.isolation,
            interrupt=said.interrupt,
            memory_mb=said.memory_mb,
            cpu_sec=said.cpu_sec,
            connection_check=said.connection_check,
            argv=None if said.argv is None else list(said.argv),
        )


def _named(which: type[BaseException] | str) -> str:
    return which if isinstance(which, str) else f"{which.__module__}.{which.__qualname__}"


@dataclass(frozen=True)
class TaskLine:
    """A task that this process knows how to run."""

    name: str
    kind: Kind
    description: str
    options: TaskOptions
    args_schema: dict[str, Any] | None

    @classmethod
    def of(cls, task: Task) -> TaskLine:
        description = (getattr(task.call, "__doc__", None) or "").strip().partition("\n")[0]
        return cls(task.name, task.kind, description, TaskOptions.of(task), task.args_schema())


@dataclass(frozen=True)
class TaskList:
    tasks: list[TaskLine]
