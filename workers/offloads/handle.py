"""A handle of work on another engine, in the attempt that asked for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dataloader.app import log
from dataloader.app.features.offload.rows import Offloads, Outcome
from dataloader.pipelines.context import Handle
from dataloader.pipelines.offload import (
    EngineRefused,
    EngineUnavailable,
    Executor,
    FailureKind,
    OffloadFailed,
    OffloadSpec,
    Options,
    RemoteOutOfMemory,
    RemoteState,
    RemoteStatus,
    RemoteTraceback,
    RemoteWorkerLost,
    ResultTooLarge,
    ResultUnreadable,
    parse_progress,
)
from dataloader.pipelines.portable import clock
from dataloader.workers.offloads.engine_calls import EngineCalls, OffloadContext
from dataloader.workers.offloads.poller import Watch
from dataloader.workers.offloads.remote_log import read_log
from dataloader.workers.offloads.service import OffloadService, forget_local

_log = log.get(__name__)
_WAIT_SLICE_SEC = 1.0  # between two safe points
_MAX_SUBMISSIONS = 4  # of a name in an attempt: an engine that forgets what runs would run it again and again
_MAX_LAST_LOGS = 50  # pieces of a log that are read at the end
_TAIL_LINES, _MAX_TAIL_LINE_LENGTH = 10, 1_000  # in the error of a program
_ENDED = (RemoteState.SUCCEEDED, RemoteState.FAILED, RemoteState.STOPPED)


@dataclass(frozen=True)
class Work:
    """What was submitted, and how it is found."""

    engine: str
    executor: Executor
    name: str
    fence_token: str
    spec: OffloadSpec
    options: Options
    left_sec: float | None = None  # until its deadline
    log_position: str = ""

    @property
    def engine_timeout_sec(self) -> float:
        return self.options.engine_timeout

    @property
    def grace_sec(self) -> float:
        return self.options.grace

    @property
    def is_abandoned(self) -> bool:
        return self.options.abandon


class RemoteHandle(Handle):
    """Used by the pipeline's threads, one at a time."""

    def __init__(self, work: Work, context: OffloadContext, service: OffloadService, offloads: Offloads) -> None:
        super().__init__(work.engine, work.name, survives=work.executor.survives)
        self._work, self._context, self._service, self._offloads = work, context, service, offloads
        self._calls = EngineCalls(context)
        self._deadline = None if work.left_sec is None else clock() + work.left_sec
        self._log_position = work.log_position
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._shown_detail = ""  # why the work has not started
        self._is_stop_requested = False  # because it is late
        self._end: tuple[Any, BaseException | None] | None = None
        self.last_status = RemoteStatus(RemoteState.PENDING)

    @property
    def done(self) -> bool:
        """True after the deadline too, and for work that cannot start: a job that waits must start again, so that
        `result` stops the work."""
        return self._end is not None or self.last_status.state.is_over or self.last_status.is_stuck or self.is_late

    @property
    def is_late(self) -> bool:
        return self._deadline is not None and clock() >= self._deadline

    def submit(self) -> None:
        """Submit under this name; what exists already is attached to."""
        job, work = self._context.job, self._work
        variables = {
            "DL_JOB_ID": str(job.id), "DL_RUN_ID": str(job.run_id), "DL_OFFLOAD": work.name,
            "DL_FENCE_TOKEN": work.fence_token,
        }  # fmt: skip
        spec = replace(
            work.spec,
            env={**work.spec.env, **variables},
            time_limit_sec=work.options.timeout,
            labels={"job_id": str(job.id), "attempt": str(job.attempt), "task": job.task},
        )
        if self._offloads.count_submission(work.name) > _MAX_SUBMISSIONS:
            self._offloads.end(work.name, "failed")
            raise EngineUnavailable(f"the engine {work.engine!r} has forgotten {work.name} {_MAX_SUBMISSIONS} times")
        try:
            self._calls.ask(work.engine, work.engine_timeout_sec, lambda: work.executor.submit(work.name, spec))
        except EngineRefused:
            self._offloads.end(work.name, "failed")
            raise
        self.last_status = RemoteStatus(RemoteState.PENDING)
        _log.info("offload.submitted", offload=work.name, engine=work.engine)

    def result(self) -> Any:
        if self._end is None:
            self._end = self._wait_for_end()
        value, error = self._end
        if error is not None:
            raise error
        return value

    def stop(self) -> None:
        self._context.check()
        if self._end is None:
            self._offloads.request_stop(self.name)
            self._offloads.end(self.name, self._calls.stop(self.engine, self._work.executor, self.name, self._work))
            forget_local(self._work.executor, self.name)
            self._end = (None, OffloadFailed(f"{self.engine} {self.name} was stopped by its job"))

    # ── the wait ────────────────────────────────────────────────────────────────────────────────────────────────

    def _wait_for_end(self) -> tuple[Any, BaseException | None]:
        watch = Watch(
            self.name, self.engine, self._work.executor, position=self._log_position, write_lines=self._write_lines
        )
        self._service.ensure_started()
        self._service.poller.watch(watch)
        try:
            status = self._wait_for_status(watch)
        finally:
            self._log_position = self._service.poller.unwatch(watch)
        self.last_status = status
        return self._take(status)

    def _wait_for_status(self, watch: Watch) -> RemoteStatus:
        is_shown = is_log_error_shown = False
        while True:
            self._context.check()
            if watch.log_error is not None and not is_log_error_shown:
                self._context.write_lines("note", [f"the log of {self.name} cannot be read: {watch.log_error}"])
                is_log_error_shown = True
            if watch.unavailable_since is not None:
                error = watch.error or EngineUnavailable("no answer")
                if not is_shown:
                    self._calls.show_outage(self.engine, error)
                    is_shown = True
                if clock() - watch.unavailable_since >= self._work.engine_timeout_sec:
                    raise error
            elif watch.status is not None:
                if is_shown:
                    self._calls.show_recovery()
                    is_shown = False
                self._show_start(watch.status)
                if watch.status.state in _ENDED:
                    return watch.status
                if watch.status.state is RemoteState.UNKNOWN and not self.is_late:
                    self._submit_again(watch)
            self._check_deadline(watch)
            with self._context.on_stop(watch.changed.set):
                watch.changed.wait(_WAIT_SLICE_SEC)
            watch.changed.clear()

    def _submit_again(self, watch: Watch) -> None:
        """The engine has no such name: it was restarted, or the work never arrived."""
        self._context.write_lines("note", [f"the engine {self.engine!r} has lost {self.name}; it is submitted again"])
        watch.status = None
        self.submit()

    def _show_start(self, status: RemoteStatus) -> None:
        """Why the work has not started; stop it where it will not."""
        if status.is_stuck:
            self.stop()
            raise OffloadFailed(f"{self.engine} {self.name} has not started, and was stopped: {status.detail}")
        if status.state is RemoteState.PENDING:
            if status.detail and status.detail != self._shown_detail:
                self._calls.show_pending(self.name, status.detail)
                self._shown_detail = status.detail
        elif self._shown_detail and status.state is not RemoteState.UNKNOWN:  # it may have ended since the last poll
            self._calls.show_recovery()
            self._shown_detail = ""

    def _check_deadline(self, watch: Watch) -> None:
        """Stop work that is late. While the engine does not answer, the wait continues until its own time limit."""
        state = self.last_status.state if watch.status is None else watch.status.state
        if not self.is_late or state in _ENDED:
            return
        limit = f"{self._work.options.timeout:g} s" if self._work.options.timeout is not None else "its timeout"
        message = f"{self.engine} {self.name} has not ended within {limit}"
        if watch.unavailable_since is None:
            self.stop()
            raise TimeoutError(message)
        if not self._is_stop_requested:
            self._is_stop_requested = True
            self._offloads.request_stop(self.name)
            self._context.write_lines("note", [f"{message}; it is stopped when the engine answers"])

    def _write_lines(self, lines: Sequence[str], position: str) -> None:
        """Called by the thread that reads logs, and at the end."""
        self._tail.extend(line[:_MAX_TAIL_LINE_LENGTH] for line in lines[-_TAIL_LINES:])
        for line in lines:
            if (progress := parse_progress(line)) is not None:
                self._context.record_progress(progress)
        self._context.write_lines(self.engine, lines)
        self._context.write_log_position(self.name, position)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, status: RemoteStatus) -> tuple[Any, BaseException | None]:
        """The result or the failure, recorded first: another attempt must not meet the same failure again."""
        self._read_last_logs()
        value: Any = None
        error: BaseException | None = None
        if status.state is RemoteState.SUCCEEDED:
            try:
                value = self._ask(lambda: self._work.executor.result(self.name))
            except (ResultTooLarge, ResultUnreadable, OffloadFailed) as raised:
                error = raised
        else:
            error = self._failure(status)
        self._offloads.end(self.name, "succeeded" if error is None else _outcome_of(status))
        forget_local(self._work.executor, self.name)
        return value, error

    def _ask(self, request: Any) -> Any:
        return self._calls.ask(self.engine, self._work.engine_timeout_sec, request)

    def _read_last_logs(self) -> None:
        for _ in range(_MAX_LAST_LOGS):
            lines, position = self._ask(lambda: read_log(self._work.executor, self.name, self._log_position))
            if not lines:
                return
            self._log_position = position
            self._write_lines(lines, position)

    def _failure(self, status: RemoteStatus) -> BaseException:
        if status.error is not None:
            status.error.__cause__ = RemoteTraceback(status.detail)
            return status.error
        what = "was stopped on the engine" if status.state is RemoteState.STOPPED else f"failed: {status.detail}"
        tail = "" if self._work.spec.entrypoint is None else "".join(f"\n{line}" for line in self._last_lines())
        message = f"{self.engine} {self.name} {what}{tail}"
        classes = {FailureKind.OOM: RemoteOutOfMemory, FailureKind.WORKER_LOST: RemoteWorkerLost}
        return classes.get(status.kind, OffloadFailed)(message)

    def _last_lines(self) -> list[str]:
        """Of the engine's log where this attempt has read none: the lines were read while the job waited."""
        read = getattr(self._work.executor, "last_lines", None)
        if self._tail or read is None:
            return list(self._tail)
        try:
            lines: list[str] = self._ask(lambda: read(self.name))
        except OffloadFailed:
            return []
        return [line[:_MAX_TAIL_LINE_LENGTH] for line in lines[-_TAIL_LINES:]]


def _outcome_of(status: RemoteStatus) -> Outcome:
    return "stopped" if status.state is RemoteState.STOPPED else "failed"
