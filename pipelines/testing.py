"""For tests of pipelines: a context that needs no service and remembers what it was told, and a way to run all kinds.

ctx = FakeContext(resume={"page": 3})
result = run(load_orders, {"days": ["2030-01-31"]}, ctx)
assert ctx.progresses[-1] == {"processed": 1, "total": 1, "unit": "days"}
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from pipelines.contract import Args, Checkpoint, Progress, Stop, StopReason, describe
from pipelines.progress import check_progress


@dataclass(frozen=True)
class Told:
    """A line of the job's log."""

    level: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FollowUp:
    """A job that the pipeline asked for."""

    job_id: UUID
    task: str
    args: Args
    options: Mapping[str, Any] = field(default_factory=dict)  # those that were given


class FakeLog:
    def __init__(self, lines: list[Told], safe_point: Callable[[], None]) -> None:
        self._lines, self._safe_point = lines, safe_point

    def debug(self, message: str, /, **fields: Any) -> None:
        self._add("debug", message, fields)

    def info(self, message: str, /, **fields: Any) -> None:
        self._add("info", message, fields)

    def warning(self, message: str, /, **fields: Any) -> None:
        self._add("warning", message, fields)

    def error(self, message: str, /, **fields: Any) -> None:
        self._add("error", message, fields)

    def _add(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self._lines.append(Told(level, message, fields))
        self._safe_point()


class FakeContext:
    """A context in memory. It never waits; it stops at the safe point after `stop_after` others, if that is given.

    `connect` is called for `ctx.connect(name)`, `database` for the connection of `ctx.transaction()`; without them
    those raise.
    """

    def __init__(
        self,
        *,
        task: str = "task",
        attempt: int = 1,
        max_attempts: int = 5,
        resume: Any = None,
        traceparent: str | None = None,
        stop_after: int | None = None,
        connect: Callable[[str], Any] | None = None,
        database: Callable[[], Any] | None = None,
    ) -> None:
        self.job_id = uuid4()
        self.task, self.attempt, self.max_attempts = task, attempt, max_attempts
        self.resume, self.traceparent = resume, traceparent
        self.logs: list[Told] = []
        self.log = FakeLog(self.logs, self._safe_point)
        self.progresses: list[dict[str, Any]] = []  # each as callers of the API would see it
        self.checkpoints: list[Any] = []
        self.follow_ups: list[FollowUp] = []
        self.slept: list[float] = []
        self.safe_points = 0
        self.finished_with: Any = None  # the result of a final transaction
        self.finished = False
        self._stop_after, self._reason = stop_after, StopReason.CANCEL
        self._stopped = False
        self._connect, self._database = connect, database

    def stop(self, reason: StopReason = StopReason.CANCEL) -> None:
        """From now on every safe point raises `Stop`."""
        self._stop_after, self._reason, self._stopped = 0, reason, True

    def check(self) -> None:
        self.safe_points += 1
        if self._stop_after is not None and self.safe_points > self._stop_after:
            self._stopped = True
            raise Stop(self._reason)

    def _safe_point(self) -> None:
        """Every other call raises too once the stop has come, but for clean-up after it. Those are not counted."""
        handled = sys.exc_info()[1]
        while handled is not None and not isinstance(handled, Stop | GeneratorExit | asyncio.CancelledError):
            handled = handled.__context__
        if self._stopped and handled is None:
            raise Stop(self._reason)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.check()

    def progress(self, done: int | None = None, total: int | None = None, unit: str | None = None, **more: Any) -> None:
        self.note({"processed": done, "total": total, "unit": unit, **more})
        self._safe_point()

    def count(self, **numbers: int | float) -> None:
        counts = dict(self._last().get("counts", {}))
        for name, more in numbers.items():
            counts[name] = counts.get(name, 0) + more
        self.note({"counts": counts})
        self._safe_point()

    def note(self, given: Mapping[str, Any]) -> None:
        """What a generator yields as progress."""
        self.progresses.append(self._last() | {key: value for key, value in given.items() if value is not None})

    def _last(self) -> dict[str, Any]:
        return dict(self.progresses[-1]) if self.progresses else {}

    def checkpoint(self, cursor: Any) -> None:
        self.checkpoints.append(cursor)
        self.resume = cursor
        self._safe_point()

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
        self._safe_point()
        given = {
            "queue": queue, "lock_key": lock_key, "idempotency_key": idempotency_key, "priority": priority,
            "available_at": available_at, "max_attempts": max_attempts,
        }  # fmt: skip
        options = {name: value for name, value in given.items() if value is not None}
        self.follow_ups.append(FollowUp(uuid4(), task, args or {}, options))
        return self.follow_ups[-1].job_id

    @contextmanager
    def transaction(self, *, final: bool = False, result: Any = None) -> Iterator[Any]:
        self.check()
        if self._database is None:
            raise RuntimeError("this context has no database; FakeContext(database=…) gives it a connection")
        connection = self._database()
        with connection:  # commits, or rolls back on any error
            yield connection
        if final:
            self.finished, self.finished_with = True, result

    def connect(self, name: str) -> Any:
        self._safe_point()
        if self._connect is None:
            raise RuntimeError(f"this context has no target {name!r}; FakeContext(connect=…) gives it connections")
        return self._connect(name)


def run(call: Callable[..., Any], args: Args | None = None, ctx: FakeContext | None = None) -> Any:
    """Run a pipeline of any kind to its end; what it yields is told to the context. Raises what it raises."""
    context = ctx or FakeContext()
    result = describe("task", call).start(args or {}, context)
    if isinstance(result, Generator):
        return _walk(result, context)
    if isinstance(result, AsyncGenerator):
        return asyncio.run(_walk_async(result, context))
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result


def _walk(steps: Generator[Any, None, Any], context: FakeContext) -> Any:
    try:
        step = next(steps)
        while (stop := _take(step, context)) is None:
            step = next(steps)
        steps.throw(stop)
    except StopIteration as end:
        return end.value
    raise AssertionError("the pipeline went on after a Stop")


async def _walk_async(steps: AsyncGenerator[Any, None], context: FakeContext) -> None:
    async for step in steps:
        stop = _take(step, context)
        if stop is not None:
            await steps.athrow(stop)


def _take(step: Any, context: FakeContext) -> Stop | None:
    try:
        match step:
            case Checkpoint(cursor):
                context.checkpoint(cursor)
            case Progress(done, total, unit):
                context.progress(done, total, unit)
            case Mapping():
                check_progress(step)
                context.note(step)
            case _:
                check_progress(step)
        context.check()
    except Stop as stop:
        return stop
    return None
