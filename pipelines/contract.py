"""What pipelines import: `register`, `Context`, `Stop`, `Progress`, `Checkpoint`, and the registry."""

from __future__ import annotations

from pipelines.context import Args, Checkpoint, Context, ContextLog, Progress, Stop, StopReason
from pipelines.discovery import load_tasks
from pipelines.options import Command, Isolation, TaskOptions
from pipelines.registry import Pipelines, TaskConflict, register, registry
from pipelines.retry import Fail, Snooze
from pipelines.retry import policy_from_json as read_policy
from pipelines.retry import policy_to_json as show_policy
from pipelines.task import Task, TaskKind, task_from_callable

__all__ = [
    "Args",
    "Checkpoint",
    "Command",
    "Context",
    "ContextLog",
    "Fail",
    "Isolation",
    "Pipelines",
    "Progress",
    "Snooze",
    "Stop",
    "StopReason",
    "Task",
    "TaskConflict",
    "TaskKind",
    "TaskOptions",
    "load_tasks",
    "read_policy",
    "register",
    "registry",
    "show_policy",
    "task_from_callable",
]  # fmt: skip
