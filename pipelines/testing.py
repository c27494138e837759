"""For tests of pipelines: a context in memory that records its calls, and `run` for pipelines of all kinds.

ctx = FakeContext(resume={"page": 3})
result = run(load_orders, {"days": ["2030-01-31"]}, ctx)
assert ctx.progresses[-1] == {"processed": 1, "total": 1, "unit": "days"}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID, uuid4

from dataloader.pipelines import context
from dataloader.pipelines.base_context import BaseContext
from dataloader.pipelines.context import (
    Args,
    Handle,
    Interval,
    OffloadOptions,
    ParentEnd,
    ParentsNeeded,
    StopReason,
    Upstream,
    Wait,
)
from dataloader.pipelines.contract import task_from_callable
from dataloader.pipelines.job_args import RESULT_KEY, resolve_results, substitute
from dataloader.pipelines.json_values import MAX_CHECKPOINT_BYTES
from dataloader.pipelines.offload import offload_name, parse_call
from dataloader.pipelines.reported_state import ReportedState
from dataloader.pipelines.reports import Check, DatasetUse
from dataloader.pipelines.runner import StopIgnored, run_task


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


class FakeContext(BaseContext):
    """A context in memory. It never waits; with `stop_after` it stops after that many calls of `check`, `sleep` and
    steps of a generator.

    `connect` is called for `ctx.connect(name)` and for transactions in targets, `database` for the connection of
    `ctx.transaction()` in the queue's database. Without them those methods raise. `target` is that of the task; what
    its next attempt resumes from is in `resume` afterwards. `ctx.offload` runs functions in place, or asks `offload`
    for the result; with `offloads_done` False its handles are not done, so that `Wait(handle)` ends the run.
    `check_history` has the earlier values of data checks by name, the newest last.
    """

    max_checkpoint_bytes = MAX_CHECKPOINT_BYTES

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
        target: str | None = None,
        connect: Callable[[str], Any] | None = None,
        database: Callable[[], Any] | None = None,
        offload: Callable[[FakeOffload], Any] = _run_here,
        offloads_done: bool = True,
    ) -> None:
        self.job_id = uuid4()
        self.task, self.attempt, self.max_attempts = task, attempt, max_attempts
        self.traceparent = traceparent
        self.task_target = target
        self.upstream = upstream or {}
        self.logical_at, self.partition = logical_at, partition
        self.interval = Interval(*interval) if isinstance(interval, tuple) else interval
        self.logs: list[LogLine] = []
        self.progresses: list[dict[str, Any]] = []  # as the API would show each
        self.reported = _RecordedState(self.progresses)
        self.reported.checkpoint = resume
        self.checkpoints: list[Any] = []
        self.follow_ups: list[FollowUp] = []
        self.slept: list[float] = []
        self.acquired: list[tuple[str, int]] = []  # limit and number of calls
        self.waited: list[tuple[UUID | str, ...]] = []  # the jobs, or names of offloads, of each Wait that `run` met
        self.offloads: list[FakeOffload] = []
        self.safe_points = 0
        self.finished_with: Any = None  # the result of a final transaction
        self.finished = False
        self._positions: dict[str | None, Any] = {}  # by target, of those that are not the task's own
        self._check_history = check_history or {}
        self._stop_after, self._stop_reason, self._stopped = stop_after, StopReason.CANCEL, False
        self._stopping_in = stopping_in
        self._connect, self._database = connect, database
        self._compute_offload, self._offloads_done = offload, offloads_done

    @property
    def checks(self) -> list[Check]:
        return [Check(**check) for check in self.reported.checks]

    @property
    def datasets(self) -> list[DatasetUse]:
        """Produced and consumed."""
        return [DatasetUse(**use) for use in self.reported.datasets]

    @property
    def links(self) -> dict[str, str]:
        """Addresses by name."""
        return dict((self.reported.progress or {}).get("links", {}))

    def stop(self, reason: StopReason = StopReason.CANCEL) -> None:
        """Make every safe point from now on raise `Stop`."""
        self._stop_after, self._stop_reason, self._stopped = 0, reason, True

    @property
    def stop_reason(self) -> StopReason | None:
        return self._stop_reason if self._stopped else None

    @property
    def stopping_in(self) -> float | None:
        return 0.0 if self._stopped else self._stopping_in

    def on_stop(self, callback: Callable[[], object]) -> AbstractContextManager[None]:
        """A stop of this context is raised at safe points only."""
        return nullcontext()

    def meet_safe_point(self) -> None:
        self.safe_points += 1
        if self._stop_after is not None and self.safe_points > self._stop_after:
            self._stopped = True
        self.raise_stop()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.check()

    def write_log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self.logs.append(LogLine(level, message, fields))

    def log_check(self, result: Check) -> None:
        """They are in `checks`."""

    def check_history(self, name: str, count: int) -> Sequence[float]:
        return self._check_history.get(name, ())[-count:]

    def record_checkpoint(self, cursor: Any) -> None:
        super().record_checkpoint(cursor)
        self.checkpoints.append(self.resume)

    def enqueue_job(self, job: context.FollowUp) -> UUID:
        self.follow_ups.append(FollowUp(uuid4(), *job))
        return self.follow_ups[-1].job_id

    def enqueue_group(
        self, jobs: Sequence[context.FollowUp], then: context.FollowUp, *, on: ParentEnd, need: ParentsNeeded
    ) -> tuple[list[UUID], UUID]:
        """Recorded as follow-ups; the options of `then` have its parents too, as `after`."""
        children, successor = [self.enqueue_job(job) for job in jobs], self.enqueue_job(then)
        after = {"after": children, "on": on, "need": need}
        self.follow_ups[-1] = replace(self.follow_ups[-1], options={**self.follow_ups[-1].options, **after})
        return children, successor

    def count_calls(self, limit: str, n: int) -> float:
        self.acquired.append((limit, n))
        return 0.0

    def offload(
        self, engine: str, call: Callable[..., Any] | None = None, /, *args: Any, **options: Unpack[OffloadOptions]
    ) -> FakeHandle:
        self.check()
        self.refuse_in_transaction("offload and the result of its handle may wait", "call them before")
        parse_call(engine, call, args, options)
        self.offloads.append(FakeOffload(engine, call, args, dict(options)))
        name = offload_name(self.job_id, options.get("key") or str(len(self.offloads)), 1)
        return FakeHandle(self.offloads[-1], name, self._compute_offload, done=self._offloads_done)

    @contextmanager
    def open_transaction(self, *, target: str | None, final: bool, result: Any) -> Iterator[Any]:
        if self.finished:
            raise RuntimeError("the final transaction of this job has been committed; none follows it")
        if target is not None:
            connection = self._connect_target(target)
        elif self._database is not None:
            connection = self._database()
        else:
            raise RuntimeError("this context has no database; FakeContext(database=…) gives it a connection")
        is_home, home = target == self.task_target, self.reported.checkpoint
        if not is_home:
            self.reported.checkpoint = self._positions.get(target)
        try:
            with self.reported.transaction(is_kept=is_home), connection:  # commits, or rolls back on any error
                yield connection
            if not is_home:
                self._positions[target] = self.reported.checkpoint
        finally:
            if not is_home:
                self.reported.checkpoint = home
        if final:
            self.finished, self.finished_with = True, result

    def keeps_position(self, target: str | None) -> bool:
        return True

    def connect(self, name: str) -> Any:
        self.pass_safe_point()
        return self._connect_target(name)

    def _connect_target(self, name: str) -> Any:
        if self._connect is None:
            raise RuntimeError(f"this context has no target {name!r}; FakeContext(connect=…) gives it connections")
        return self._connect(name)


class _RecordedState(ReportedState):
    """Keeps each progress that was reported."""

    def __init__(self, progresses: list[dict[str, Any]]) -> None:
        super().__init__()
        self._progresses = progresses

    def replace_progress(self, progress: dict[str, Any]) -> None:
        super().replace_progress(progress)
        self._progresses.append(progress)


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
