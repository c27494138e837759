"""For tests of pipelines: a context in memory that records its calls, and `run` for pipelines of all kinds.

ctx = FakeContext(resume={"page": 3})
result = run(load_orders, {"days": ["2030-01-31"]}, ctx)
assert ctx.progresses[-1] == {"processed": 1, "total": 1, "unit": "days"}
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID, uuid4

from dataloader.pipelines.context import Interval, ParentEnd, ParentsNeeded, Upstream, check_fan_out
from dataloader.pipelines.contract import Args, Stop, StopReason, Wait, task_from_callable
from dataloader.pipelines.job_args import RESULT_KEY, resolve_results, substitute
from dataloader.pipelines.limits import check_calls
from dataloader.pipelines.offload import Handle, OffloadOptions, offload_name, parse_call
from dataloader.pipelines.reports import Check, DatasetUse, Severity, parse_check, parse_dataset, parse_link
from dataloader.pipelines.retry import Fail
from dataloader.pipelines.runner import LeveledLog, StopIgnored, run_task


@dataclass(frozen=True)
class LogLine:
    """A line of the job's log."""

    level: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FakeOffload:
    """Work that the pipeline gave to an engine."""

    engine: str
    call: Callable[..., Any] | None  # a function, or None for a program
    args: tuple[Any, ...]
    options: Mapping[str, Any]  # that were passed


class FakeHandle(Handle):
    """What `ctx.offload` returns; the answer is computed by each call of `result`."""

    def __init__(self, offload: FakeOffload, name: str, compute: Callable[[FakeOffload], Any], *, done: bool) -> None:
        super().__init__(offload.engine, name)
        self.offload, self.stopped = offload, False
        self._compute, self._done = compute, done

    @property
    def done(self) -> bool:
        return self._done

    def result(self) -> Any:
        return self._compute(self.offload)

    def stop(self) -> None:
        self.stopped = True


def _run_here(offload: FakeOffload) -> Any:
    """The answer of a function, computed in place; that of a program is None."""
    if offload.call is None:
        return None
    return offload.call(*offload.args, **offload.options.get("kwargs", {}))


@dataclass(frozen=True)
class FollowUp:
    """A job that the pipeline enqueued."""

    job_id: UUID
    task: str
    args: Args
    options: Mapping[str, Any] = field(default_factory=dict)  # the options that were passed


class FakeContext:
    """A context in memory. It never waits; with `stop_after` it stops after that many safe points.

    `connect` is called for `ctx.connect(name)`, `database` for the connection of `ctx.transaction()`. Without them
    those methods raise. `ctx.offload` runs functions in place, or asks `offload` for the result; with `offloads_done`
    False its handles are not done, so that `Wait(handle)` ends the run. `check_history` has the earlier values of data
    checks by name, the newest last.
    """

    def __init__(  # noqa: PLR0913 - the fields of a context
        self,
        *,
        task: str = "task",
        attempt: int = 1,
        max_attempts: int = 5,
        resume: Any = None,
        upstream: Mapping[str, Upstream] | None = None,
        logical_at: datetime | None = None,
        interval: Interval | tuple[datetime, datetime] | None = None,
        partition: str | None = None,
        traceparent: str | None = None,
        stop_after: int | None = None,
        stopping_in: float | None = None,
        check_history: Mapping[str, Sequence[float]] | None = None,
        connect: Callable[[str], Any] | None = None,
        database: Callable[[], Any] | None = None,
        offload: Callable[[FakeOffload], Any] = _run_here,
        offloads_done: bool = True,
    ) -> None:
        self.job_id = uuid4()
        self.task, self.attempt, self.max_attempts = task, attempt, max_attempts
        self.resume, self.traceparent = resume, traceparent
        self.upstream = upstream or {}
        self.logical_at, self.partition = logical_at, partition
        self.interval = Interval(*interval) if isinstance(interval, tuple) else interval
        self.logs: list[LogLine] = []
        self.log = LeveledLog(self._write_log)
        self.progresses: list[dict[str, Any]] = []  # as the API would show each
        self.checkpoints: list[Any] = []
        self.follow_ups: list[FollowUp] = []
        self.slept: list[float] = []
        self.acquired: list[tuple[str, int]] = []  # limit and number of calls
        self.waited: list[tuple[UUID | str, ...]] = []  # the jobs, or names of offloads, of each Wait that `run` met
        self.offloads: list[FakeOffload] = []
        self.checks: list[Check] = []
        self.datasets: list[DatasetUse] = []  # produced and consumed
        self.links: dict[str, str] = {}  # addresses by name
        self.safe_points = 0
        self.finished_with: Any = None  # the result of a final transaction
        self.finished = False
        self._check_history = check_history or {}
        self._stop_after, self._stop_reason = stop_after, StopReason.CANCEL
        self.stopping_in = stopping_in
        self._stopped = False
        self._connect, self._database = connect, database
        self._compute_offload, self._offloads_done = offload, offloads_done

    def stop(self, reason: StopReason = StopReason.CANCEL) -> None:
        """Make every safe point from now on raise `Stop`."""
        self._stop_after, self._stop_reason, self._stopped = 0, reason, True

    @property
    def stop_reason(self) -> StopReason | None:
        return self._stop_reason if self._stopped else None

    def on_stop(self, callback: Callable[[], object]) -> AbstractContextManager[None]:
        """A stop of this context is raised at safe points only."""
        return nullcontext()

    def check(
        self,
        name: str | None = None,
        value: float | None = None,
        *,
        min: float | None = None,
        max: float | None = None,
        vs: str | None = None,
        tolerance: float | None = None,
        severity: Severity = "fail",
    ) -> None:
        """With a name: recorded in `checks`, and compared with `check_history`."""
        self._count_safe_point()
        if name is None and value is None:
            return
        request = parse_check(name, value, low=min, high=max, vs=vs, tolerance=tolerance, severity=severity)
        history = self._check_history.get(request.name, ())
        result = request.evaluate(history[-request.history_count :] if request.history_count else ())
        self.checks.append(result)
        if result.outcome == "failed":
            raise Fail(f"the check {result.name!r} failed: {result.detail}")

    def produced(
        self, dataset: str, *, rows: int | None = None, partition: str | None = None, schema: Any = None
    ) -> None:
        self.datasets.append(parse_dataset("produced", dataset, rows=rows, partition=partition, schema=schema))
        self._safe_point()

    def consumed(self, dataset: str, *, partition: str | None = None) -> None:
        self.datasets.append(parse_dataset("consumed", dataset, partition=partition))
        self._safe_point()

    def link(self, name: str, url: str) -> None:
        name, url = parse_link(name, url)
        self.links[name] = url
        self._safe_point()

    def _count_safe_point(self) -> None:
        self.safe_points += 1
        if self._stop_after is not None and self.safe_points > self._stop_after:
            self._stopped = True
            raise Stop(self._stop_reason)

    def _safe_point(self) -> None:
        """Once stopped, every other call raises too, but not in code that handles the stop. Not counted."""
        handled = sys.exc_info()[1]
        while handled is not None and not isinstance(handled, Stop | GeneratorExit | asyncio.CancelledError):
            handled = handled.__context__
        if self._stopped and handled is None:
            raise Stop(self._stop_reason)

    def _write_log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self.logs.append(LogLine(level, message, fields))
        self._safe_point()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.check()

    def progress(self, done: int | None = None, total: int | None = None, unit: str | None = None, **more: Any) -> None:
        self.record_progress({"processed": done, "total": total, "unit": unit, **more})
        self._safe_point()

    def count(self, **numbers: int | float) -> None:
        counts = dict(self._last_progress().get("counts", {}))
        for name, more in numbers.items():
            counts[name] = counts.get(name, 0) + more
        self.record_progress({"counts": counts})
        self._safe_point()

    def record_progress(self, fields: Mapping[str, Any]) -> None:
        """As `progress`, without a safe point."""
        self.progresses.append(self._last_progress() | {n: value for n, value in fields.items() if value is not None})

    def _last_progress(self) -> dict[str, Any]:
        return dict(self.progresses[-1]) if self.progresses else {}

    def checkpoint(self, cursor: Any) -> None:
        self.record_checkpoint(cursor)
        self._safe_point()

    def record_checkpoint(self, cursor: Any) -> None:
        """As `checkpoint`, without a safe point."""
        self.checkpoints.append(cursor)
        self.resume = cursor

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
        limits: Mapping[str, int] | None = None,
    ) -> UUID:
        self._safe_point()
        options = {
            "queue": queue, "lock_key": lock_key, "idempotency_key": idempotency_key, "priority": priority,
            "available_at": available_at, "max_attempts": max_attempts, "limits": limits,
        }  # fmt: skip
        passed = {name: value for name, value in options.items() if value is not None}
        self.follow_ups.append(FollowUp(uuid4(), task, args or {}, passed))
        return self.follow_ups[-1].job_id

    def fan_out(
        self,
        jobs: Iterable[Mapping[str, Any]],
        *,
        then: Mapping[str, Any],
        on: ParentEnd = "succeeded",
        need: ParentsNeeded = "all",
    ) -> tuple[list[UUID], UUID]:
        """Recorded as follow-ups; the options of `then` have its parents too, as `after`."""
        children = [self.enqueue(**job) for job in check_fan_out(jobs, on, need)]
        successor = self.enqueue(**then)
        after = {"after": children, "on": on, "need": need}
        self.follow_ups[-1] = replace(self.follow_ups[-1], options={**self.follow_ups[-1].options, **after})
        return children, successor

    def acquire(self, limit: str, n: int = 1) -> None:
        check_calls(limit, n)
        self.check()
        self.acquired.append((limit, n))

    def offload(
        self, engine: str, call: Callable[..., Any] | None = None, /, *args: Any, **options: Unpack[OffloadOptions]
    ) -> FakeHandle:
        self.check()
        parse_call(engine, call, args, options)
        self.offloads.append(FakeOffload(engine, call, args, dict(options)))
        name = offload_name(self.job_id, options.get("key") or str(len(self.offloads)), 1)
        return FakeHandle(self.offloads[-1], name, self._compute_offload, done=self._offloads_done)

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
    """Run a pipeline of any kind to its end, as a worker does. Raises what the pipeline raises.

    References to results in its args are filled in from `ctx.upstream`.
    """
    ctx = ctx or FakeContext()
    args = substitute(args or {}, {RESULT_KEY: resolve_results(args or {}, ctx.upstream)})
    try:
        return run_task(task_from_callable("task", call), args, ctx, max_ignored_stops=1)
    except Wait as wait:
        ctx.waited.append(wait.offloads or wait.jobs)
        raise
    except StopIgnored as stop:
        raise AssertionError("the pipeline went on after a Stop") from stop
