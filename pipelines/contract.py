"""What a pipeline and the service owe each other: `register`, `Context`, `Stop`, and the registry.

The door to the modules beside it: what a task may say of itself, when a try is made again, how tasks are found.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from pipelines.loading import Loading, load
from pipelines.options import Command, Isolation, Options
from pipelines.registry import Pipelines, TaskConflict, register, registry
from pipelines.retry import Fail, Snooze
from pipelines.retry import from_json as read_policy
from pipelines.retry import to_json as show_policy
from pipelines.task import Args, Kind, Task, describe

__all__ = [
    "Args", "Checkpoint", "Command", "Context", "ContextLog", "Fail", "Isolation", "Kind", "Loading", "Options",
    "Pipelines", "Progress", "Snooze", "Stop", "StopReason", "Task", "TaskConflict", "describe", "load", "read_policy",
    "register", "registry", "show_policy",
]  # fmt: skip


class StopReason(StrEnum):
    """Why an attempt is ended before its pipeline is done."""

    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LEASE_LOST = "lease_lost"
    KEY_LOST = "key_lost"
    TIME_LIMIT = "time_limit"


class Stop(BaseException):
    """Raised inside a pipeline, at a safe point, to end it early.

    Not an `Exception`, so that a pipeline's `except Exception` lets it through. Clean up in `finally`.
    """

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
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
    def traceparent(self) -> str | None:
        """The W3C trace context that the job belongs to, to be sent on as a header of that name; None without one."""

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
