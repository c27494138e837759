"""What the contexts of a worker, an isolated process, another interpreter and a test have in common. Portable.

They refuse the same arguments with the same words, raise `Stop` in the same calls, and report in the same form.
`tests/workers/test_context_contract.py` asks each of them the same questions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from uuid import UUID

from dataloader.pipelines.context import (
    Args,
    FollowUp,
    Interval,
    ParentEnd,
    ParentsNeeded,
    Stop,
    StopReason,
    Wait,
    check_fan_out,
    parse_follow_up,
)
from dataloader.pipelines.effects import DrawnFence, encode_position
from dataloader.pipelines.failures import caused_by_stop
from dataloader.pipelines.key_loops import KeyLoops
from dataloader.pipelines.limits import check_calls
from dataloader.pipelines.reported_state import ReportedState, copy_as_json
from dataloader.pipelines.reports import Check, DatasetUse, Severity, parse_check, parse_dataset, parse_link
from dataloader.pipelines.retry import Fail
from dataloader.pipelines.target_transactions import TargetTransactions

if TYPE_CHECKING:
    from typing import Unpack

    from dataloader.pipelines.context import FollowUpOptions

K = TypeVar("K")
_MAX_SCHEMA_BYTES = 64_000  # of a dataset
_MAX_ACQUIRE_WAIT_SEC = 30.0  # then it asks again: the rate may have been raised


class LeveledLog:
    """Implements `ContextLog` by one function of level, message and fields."""

    def __init__(self, write: Callable[[str, str, Mapping[str, Any]], None]) -> None:
        self._write = write

    def debug(self, message: str, /, **fields: Any) -> None:
        self._write("debug", message, fields)

    def info(self, message: str, /, **fields: Any) -> None:
        self._write("info", message, fields)

    def warning(self, message: str, /, **fields: Any) -> None:
        self._write("warning", message, fields)

    def error(self, message: str, /, **fields: Any) -> None:
        self._write("error", message, fields)


class BaseContext:
    """Implements `pipelines.context.Context` but for what needs the queue, its database or an engine."""

    job_id: UUID
    run_id: UUID  # of the attempt
    task: str
    attempt: int
    max_attempts: int
    traceparent: str | None
    logical_at: datetime | None
    interval: Interval | None
    partition: str | None
    max_checkpoint_bytes: int
    reported: ReportedState
    awaitable: Any = None  # the coroutine or async generator of the pipeline; set by its thread, read by any
    task_target: str | None = None  # that the task names
    fence_problem: str | None = None  # why no transaction in a target has a fence
    _without_position: str | None = None  # the target of the open transaction, if it keeps none; the pipeline's thread
    _targets: TargetTransactions | None = None  # made by the first use; the pipeline's thread alone

    # ── what each context does in its own way ───────────────────────────────────────────────────────────────────

    @property
    def stop_reason(self) -> StopReason | None:
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Wait until the time is over or a stop is requested."""
        raise NotImplementedError

    def write_log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def check_history(self, name: str, count: int) -> Sequence[float]:
        """Return the last values of a check, the newest last."""
        raise NotImplementedError

    def enqueue_job(self, job: FollowUp) -> UUID:
        raise NotImplementedError

    def enqueue_group(
        self, jobs: Sequence[FollowUp], then: FollowUp, *, on: ParentEnd, need: ParentsNeeded
    ) -> tuple[list[UUID], UUID]:
        raise NotImplementedError

    def count_calls(self, limit: str, n: int) -> float:
        """Count calls in a rate if they may be made now; return 0.0 then, else the seconds to wait."""
        raise NotImplementedError

    def open_transaction(self, *, target: str | None, final: bool, result: Any) -> AbstractContextManager[Any]:
        """A transaction in a target, or in the queue's database without one."""
        raise NotImplementedError

    def connect_for_transactions(self, target: str) -> Any:
        """A connection to a target that `CommitGuard` guards. None: it is the queue's own database."""
        raise NotImplementedError

    def draw_fence(self, target: str, problem: str | None) -> DrawnFence:
        """Return a number that is higher than those of all earlier attempts of the job, if this one owns the job, and
        record the target in the queue's database. With a problem transactions in the target have no fence."""
        raise NotImplementedError

    def keeps_position(self, target: str | None) -> bool:
        """Whether a target that is not the task's own keeps a position of the job."""
        return target is not None and self.targets.is_fenced(target)

    def stop_for(self, reason: StopReason) -> NoReturn:
        """Stop the attempt, which has found out by itself that it must."""
        raise Stop(reason)

    def redact_text(self, text: str) -> str:
        """Return a text without the attempt's secrets."""
        return text

    def redact_value(self, value: Any) -> Any:
        return value

    def redact_for_target(self, value: Any) -> Any:
        """As `redact_value`, where the worker does not see the value afterwards."""
        return self.redact_value(value)

    # ── stops ───────────────────────────────────────────────────────────────────────────────────────────────────

    def raise_stop(self) -> None:
        """Raise Stop if the attempt is to stop."""
        if self.stop_reason is not None:
            raise Stop(self.stop_reason)

    def meet_safe_point(self) -> None:
        """The safe point of `check`, which a test may count."""
        self.raise_stop()

    def pass_safe_point(self) -> None:
        """Raise Stop, but not in code that handles a stop: a second Stop would interrupt its clean-up."""
        handled = sys.exc_info()[1]
        if handled is None or not (
            isinstance(handled, GeneratorExit) or _is_cancellation(handled) or caused_by_stop(handled)
        ):
            self.raise_stop()

    def sleep(self, seconds: float) -> None:
        self.check()
        self.wait(seconds)
        self.check()

    # ── reports ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def log(self) -> LeveledLog:
        return LeveledLog(self._write_log_at_safe_point)

    def _write_log_at_safe_point(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self.write_log(level, message, fields)
        self.pass_safe_point()

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
        self.meet_safe_point()
        if name is None and value is None:
            return
        request = parse_check(name, value, low=min, high=max, vs=vs, tolerance=tolerance, severity=severity)
        request = replace(request, name=self.redact_text(request.name))
        history = self.check_history(request.name, request.history_count) if request.history_count else ()
        result = request.evaluate(history)
        self.reported.add_check(result)
        self.log_check(result)
        if result.outcome == "failed":
            raise Fail(f"the check {result.name!r} failed: {result.detail}")

    def log_check(self, result: Check) -> None:
        log = LeveledLog(self.write_log)
        if result.outcome == "passed":
            log.info("check.passed", check=result.name, value=result.value, detail=result.detail)
        else:
            log.warning("check.broken", check=result.name, outcome=result.outcome, detail=result.detail)

    def produced(
        self, dataset: str, *, rows: int | None = None, partition: str | None = None, schema: Any = None
    ) -> None:
        self._add_dataset(parse_dataset("produced", dataset, rows=rows, partition=partition, schema=schema))

    def consumed(self, dataset: str, *, partition: str | None = None) -> None:
        self._add_dataset(parse_dataset("consumed", dataset, partition=partition))

    def _add_dataset(self, use: DatasetUse) -> None:
        schema = copy_as_json(self.redact_value(use.schema), _MAX_SCHEMA_BYTES, "schema")
        partition = use.partition and self.redact_value(use.partition)
        self.reported.add_dataset(
            replace(use, dataset=self.redact_text(use.dataset), partition=partition, schema=schema)
        )
        self.pass_safe_point()

    def link(self, name: str, url: str) -> None:
        name, url = parse_link(name, url)
        self.reported.add_link(self.redact_text(name), self.redact_text(url))
        self.pass_safe_point()

    def progress(self, done: int | None = None, total: int | None = None, unit: str | None = None, **more: Any) -> None:
        self.record_progress({"processed": done, "total": total, "unit": unit, **more})
        self.pass_safe_point()

    def record_progress(self, fields: Mapping[str, Any]) -> None:
        """As `progress`, without the safe point."""
        present = {str(key): value for key, value in fields.items() if value is not None}
        self.reported.merge_progress(self.redact_value(present))

    def count(self, **numbers: int | float) -> None:
        self.reported.add_counts(numbers)
        self.pass_safe_point()

    @property
    def resume(self) -> Any:
        return self.reported.checkpoint

    def checkpoint(self, cursor: Any) -> None:
        self.record_checkpoint(cursor)
        self.pass_safe_point()

    def record_checkpoint(self, cursor: Any) -> None:
        """As `checkpoint`, without the safe point."""
        self.key_loops.refuse_checkpoint()
        self.save_position(cursor)

    def save_position(self, cursor: Any) -> None:
        """Record where the next attempt resumes: in the open transaction, else in the task's target, if it has one."""
        if self._without_position is not None:
            raise RuntimeError(
                f"target {self._without_position!r} keeps no position of this job: it has no fence, or is the queue's"
                " database, and is not the target that the task names"
            )
        targets, target = self._targets, self.task_target
        is_home_fenced = targets is not None and target is not None and targets.is_fenced(target)
        if targets is not None and (targets.is_in_fenced_transaction or is_home_fenced):
            encode_position(cursor)  # raises ValueError for one that the target does not keep
            cursor = self.redact_for_target(cursor)
        checkpoint = copy_as_json(self.redact_value(cursor), self.max_checkpoint_bytes)
        if self.reported.in_transaction or not is_home_fenced:
            self.reported.record_checkpoint(checkpoint)
            return
        with self.open_transaction(target=target, final=False, result=None):
            self.reported.record_checkpoint(checkpoint)

    def each(self, keys: Iterable[K]) -> Iterator[K]:
        return self.key_loops.run(self, keys)

    @cached_property
    def key_loops(self) -> KeyLoops:
        return KeyLoops()

    # ── other jobs and limits ───────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, task: str, args: Args | None = None, **options: Unpack[FollowUpOptions]) -> UUID:
        self.pass_safe_point()
        return self.enqueue_job(parse_follow_up({"task": task, "args": args, **options}))

    def fan_out(
        self,
        jobs: Iterable[Mapping[str, Any]],
        *,
        then: Mapping[str, Any],
        on: ParentEnd = "succeeded",
        need: ParentsNeeded = "all",
    ) -> tuple[list[UUID], UUID]:
        self.pass_safe_point()
        children = [parse_follow_up(job) for job in check_fan_out(jobs, on, need)]
        return self.enqueue_group(children, parse_follow_up(then), on=on, need=need)

    def acquire(self, limit: str, n: int = 1) -> None:
        self.refuse_in_transaction("acquire may wait", "call it before")
        while (wait_sec := self.try_acquire(limit, n)) > 0:
            self.sleep(min(wait_sec, _MAX_ACQUIRE_WAIT_SEC))

    def try_acquire(self, limit: str, n: int = 1) -> float:
        """As `acquire`, without the wait: return the seconds until the calls may be made, 0.0 if they were counted."""
        check_calls(limit, n)
        self.check()
        return self.count_calls(limit, n)

    # ── transactions ────────────────────────────────────────────────────────────────────────────────────────────

    def refuse_in_transaction(self, action: str, remedy: str) -> None:
        if self.reported.in_transaction:
            raise RuntimeError(f"{action}, and an open transaction would hold its locks meanwhile; {remedy}")

    @property
    def targets(self) -> TargetTransactions:
        if self._targets is None:
            self._targets = TargetTransactions(self)
        return self._targets

    @property
    def has_finished(self) -> bool:
        """Whether the final transaction of this or an earlier attempt has been committed in a target."""
        return self._targets is not None and self._targets.finished_in is not None

    def claim_task_target(self) -> bool:
        """Claim the job's row in the task's target, if it names one, and resume from the position there. Return whether
        an earlier attempt has finished the work. Raise Stop if the attempt is to stop: a target may answer late."""
        if self.task_target is None:
            return False
        state = self.targets.claim(self.task_target)
        if state is None or not state.is_done:
            self.raise_stop()
        if state is None:
            return False
        if state.position is not None or state.was_claimed:  # else it has none yet, and the queue may have one
            self.reported.checkpoint = state.position
        return state.is_done

    @contextmanager
    def transaction(self, *, target: str | None = None, final: bool = False, result: Any = None) -> Iterator[Any]:
        self.check()
        if self.reported.in_transaction:
            raise RuntimeError("a transaction is open already; they do not nest")
        target = target or self.task_target
        is_home = target == self.task_target
        self.key_loops.begin_transaction(self, is_home=is_home)
        with self.open_transaction(target=target, final=final, result=result) as connection:
            with nullcontext() if is_home or self.keeps_position(target) else self._no_position(str(target)):
                try:
                    yield connection
                except Wait as wait:
                    raise Fail(
                        "Wait within ctx.transaction(): it would roll back the jobs to wait for; wait after it"
                    ) from wait
            self.key_loops.before_commit(self)
        self.key_loops.committed()

    @contextmanager
    def _no_position(self, target: str) -> Iterator[None]:
        """Within this the checkpoint of the job is not to be seen, and none is recorded."""
        checkpoint, self.reported.checkpoint, self._without_position = self.reported.checkpoint, None, target
        try:
            yield
        finally:
            self.reported.checkpoint, self._without_position = checkpoint, None


def _is_cancellation(error: BaseException) -> bool:
    """Whether it cancels a coroutine. `asyncio` is not loaded for that: few tasks need it."""
    module = sys.modules.get("asyncio.exceptions")
    return module is not None and isinstance(error, module.CancelledError)
