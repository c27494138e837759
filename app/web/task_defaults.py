"""Task defaults and args validation for requests, as far as this process knows the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import PydanticCustomError

from app.web.json_input import FieldError
from pipelines.contract import Args, Pipelines, Task, TaskKind, show_policy


@dataclass(frozen=True)
class _LockKeyFailed:
    """Placeholder for a lock_key that could not be made from the args."""

    reason: str


def apply_task_defaults(pipelines: Pipelines) -> Callable[[Any], Any]:
    """Return a function that fills in the task's defaults before a request is validated."""

    def with_defaults(request: Any) -> Any:
        name = request.get("task") if isinstance(request, dict) else None
        task = pipelines.get(name) if isinstance(name, str) else None
        if task is None:
            return request
        known: dict[str, Any] = {}
        if "queue" not in request and task.options.queue is not None:
            known["queue"] = task.options.queue
        if "lock_key" not in request and task.options.lock_key is not None:
            known["lock_key"] = _lock_key(task, request.get("args", {}))
        return {**request, **known} if known else request

    return with_defaults


def _lock_key(task: Task, args: Any) -> str | _LockKeyFailed:
    try:
        return task.fill_lock_key(args if isinstance(args, dict) else {})
    except ValueError as error:
        return _LockKeyFailed(str(error))


def resolve_lock_key(value: Any) -> Any:
    """Return the lock_key, or raise if it could not be made from the args."""
    if isinstance(value, _LockKeyFailed):
        raise PydanticCustomError("lock_key", "cannot be made from the args: {reason}", {"reason": value.reason})
    return value


def validate_args(task: Task | None, args: Args) -> list[FieldError]:
    """Return the field errors of the args; empty if this process does not know the task."""
    if task is None:
        return []
    return [FieldError(_args_path(path), message) for path, message in task.check_args(args)]


def _args_path(path: str) -> str:
    if not path:
        return "args"
    return f"args{path}" if path.startswith("[") else f"args.{path}"


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """How a task's jobs run unless the trigger says otherwise. Null: not set."""

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
    def from_task(cls, task: Task) -> TaskOptions:
        options = task.options
        return cls(
            queue=options.queue,
            lock_key=options.lock_key,
            retry=show_policy(options.retry),
            rules={_exception_name(exception): rule for exception, rule in options.rules.entries},
            time_limit_sec=options.time_limit,
            isolation=options.isolation,
            interrupt=options.interrupt,
            memory_mb=options.memory_mb,
            cpu_sec=options.cpu_sec,
            connection_check=options.connection_check,
            argv=None if options.argv is None else list(options.argv),
        )


def _exception_name(exception: type[BaseException] | str) -> str:
    return exception if isinstance(exception, str) else f"{exception.__module__}.{exception.__qualname__}"


@dataclass(frozen=True)
class TaskInfo:
    """A task that this process knows."""

    name: str
    kind: TaskKind
    description: str
    options: TaskOptions
    args_schema: dict[str, Any] | None

    @classmethod
    def from_task(cls, task: Task) -> TaskInfo:
        description = (getattr(task.call, "__doc__", None) or "").strip().partition("\n")[0]
        return cls(task.name, task.kind, description, TaskOptions.from_task(task), task.args_schema())
