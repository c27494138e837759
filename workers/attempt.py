"""One try at one job, from claimed to settled. It is the pipeline's context."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

from app.queue.job import Claimed, Release
from pipelines.contract import Kind, Stop, StopReason, Task
from workers.lease import Lease
from workers.outcome import (
    Abandoned,
    Ending,
    HandedBack,
    RetryPolicy,
    came_from_stop,
    failure,
    refused,
    stopped,
    success,
)
from workers.threads import clock

_PATIENCE = 100  # how often a generator may swallow a Stop and yield again before it is closed


class Attempt:
    """Its fields are touched by the worker's thread, the heartbeat and whoever stops it; each says by whom."""

    def __init__(self, job: Claimed, *, claimed_at: float) -> None:
        self.job = job
        self.lease = Lease(job.lease_ttl_sec, claimed_at)  # renewed by the heartbeat
        self.began: float | None = None  # set by the worker when the pipeline starts
        self.ended: float | None = None  # and when it has ended
        self._progress: dict[str, Any] | None = None  # replaced whole by the pipeline, read by the heartbeat
        self._told: dict[str, Any] | None = None  # the one last written; by the heartbeat alone
        self._reason: StopReason | None = None  # set once under the lock; only a lost lease may replace it
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._on_stop: Callable[[], object] | None = None  # set and cleared by the pipeline's thread, under the lock

    # ── for the pipeline ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def job_id(self) -> UUID:
        return self.job.id

    @property
    def attempt(self) -> int:
        return self.job.attempt

    def check(self) -> None:
        if self._stopping.is_set():
            raise Stop(self._reason or StopReason.CANCEL)
        if not self.lease.trusted(clock()):
            self.stop(StopReason.LEASE_LOST)
            raise Stop(StopReason.LEASE_LOST)

    def sleep(self, seconds: float) -> None:
        self.check()
        self._stopping.wait(seconds)
        self.check()

    def progress(self, done: int | None = None, total: int | None = None, unit: str | None = None, **more: Any) -> None:
        self._note({"processed": done, "total": total, "unit": unit} | more)

    # ── for the keepers ─────────────────────────────────────────────────────────────────────────────────────────

    def stop(self, reason: StopReason) -> None:
        """End the attempt at its next safe point: the only way to end one early."""
        with self._lock:
            if self._reason is None or reason is StopReason.LEASE_LOST:
                self._reason = reason
            self._stopping.set()
            wake = self._on_stop
        if wake is not None:
            with suppress(RuntimeError):  # its loop has just ended by itself
                wake()

    @property
    def stopping(self) -> StopReason | None:
        return self._reason

    @property
    def started(self) -> bool:
        return self.began is not None

    def news(self) -> dict[str, Any] | None:
        """The progress, if it has changed since it was last written."""
        return self._progress if self._progress is not self._told else None

    def written(self, progress: Mapping[str, Any] | None) -> None:
        if progress is not None:
            self._told = progress  # type: ignore[assignment]  # the very object that news() gave

    # ── for the worker ──────────────────────────────────────────────────────────────────────────────────────────

    def run(self, task: Task | None, pause: RetryPolicy) -> Ending:
        """Run the pipeline to its end, whatever that is."""
        if self.stopping is StopReason.LEASE_LOST or not self.lease.trusted(clock()):
            return Abandoned()  # frozen between the claim and now: somebody else may have the job already
        if self.stopping is StopReason.SHUTDOWN:
            return HandedBack(Release.SHUTDOWN)
        if self.stopping is not None:
            return stopped(self.stopping, None)
        if task is None:
            return HandedBack(Release.NOT_STARTED)
        try:
            args = json.loads(self.job.args_text)
            self._progress = self._told = json.loads(self.job.progress_text) or None
        except (ValueError, RecursionError) as error:
            return refused(f"args cannot be decoded: {error}")
        if not isinstance(args, dict):
            return refused(f"args must be an object, not {type(args).__name__}")
        return self._ending(task, args, pause)

    def _ending(self, task: Task, args: dict[str, Any], pause: RetryPolicy) -> Ending:
        self.began = clock()
        try:
            result = self._drive(task, args)
        except Stop as stop:
            return stopped(self._reason or stop.reason, self.news())
        except SystemExit as exit_:
            if exit_.code in (None, 0):
                return success(None, self.news())
            return failure(self.job, exit_, self.news(), pause)
        except BaseException as error:
            stop_ = came_from_stop(error)
            if self._reason is StopReason.LEASE_LOST:
                return Abandoned()
            if stop_ is not None and self._reason is not None:
                return stopped(self._reason, self.news())
            return failure(self.job, error, self.news(), pause)
        else:
            return Abandoned() if self._reason is StopReason.LEASE_LOST else success(result, self.news())
        finally:
            self.ended = clock()

    def _drive(self, task: Task, args: dict[str, Any]) -> Any:
        match task.kind:
            case Kind.FUNCTION:
                return self._finish(task.start(args, self))
            case Kind.GENERATOR:
                return self._walk(task.start(args, self))
            case Kind.COROUTINE:
                return self._await(task.start(args, self))
            case Kind.ASYNC_GENERATOR:
                return self._await(self._walk_async(task.start(args, self)))

    def _finish(self, result: Any) -> Any:
        """A plain function may still hand out a generator or a coroutine: it is what it returns."""
        if isinstance(result, Generator):
            return self._walk(result)
        if asyncio.iscoroutine(result):
            return self._await(result)
        return result

    def _walk(self, steps: Generator[Any, None, Any]) -> Any:
        """Each `yield` is a safe point; a Stop is raised there, so that the generator's own `finally` runs."""
        try:
            step = next(steps)
            for _ in range(_PATIENCE):
                while (stop := self._take(step)) is None:
                    step = next(steps)
                step = steps.throw(stop)
            raise Stop(self._reason or StopReason.CANCEL)  # it swallowed every one of them
        except StopIteration as end:
            return end.value
        finally:
            steps.close()

    async def _walk_async(self, steps: AsyncGenerator[Any, None]) -> None:
        try:
            step = await anext(steps)
            for _ in range(_PATIENCE):
                while (stop := self._take(step)) is None:
                    step = await anext(steps)
                step = await steps.athrow(stop)
            raise Stop(self._reason or StopReason.CANCEL)
        except StopAsyncIteration:
            return
        finally:
            await steps.aclose()

    def _take(self, step: Any) -> Stop | None:
        """What a pipeline yields: an object is progress; anything else only marks the safe point."""
        if isinstance(step, Mapping):
            self._note(step)
        try:
            self.check()
        except Stop as stop:
            return stop
        return None

    def _note(self, given: Mapping[str, Any]) -> None:
        told = {str(key): value for key, value in given.items() if value is not None}
        self._progress = {**(self._progress or {}), **told}

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine; a stop cancels it at its next `await`."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()

            async def guarded() -> Any:
                running = asyncio.ensure_future(work)
                with self._lock:
                    self._on_stop = lambda: loop.call_soon_threadsafe(running.cancel)
                if self._stopping.is_set():
                    running.cancel()
                return await running

            try:
                return runner.run(guarded())
            except asyncio.CancelledError as error:
                if self._reason is None:
                    raise RuntimeError("the pipeline's coroutine was cancelled, and not by us") from error
                raise Stop(self._reason) from error
            finally:
                with self._lock:
                    self._on_stop = None
