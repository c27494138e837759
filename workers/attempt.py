"""One attempt at one job, from claim to outcome; in a worker's thread it is the pipeline's context too."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from uuid import UUID

from dataloader.app import log
from dataloader.app.queue.attempt_sessions import QUEUE_DATABASE, SessionsEnded
from dataloader.app.queue.job import SUCCEEDED, ClaimedJob, Released, ReleaseReason, Settlement, Status
from dataloader.pipelines.contract import Stop, StopReason, Task, TaskKind, TaskOptions, Wait
from dataloader.pipelines.failures import caused_by_stop, describe_error
from dataloader.pipelines.job_args import RESULT_KEY, SECRET_KEY, resolve_results, substitute
from dataloader.pipelines.offload import RemoteWorkerLost
from dataloader.pipelines.portable import clock
from dataloader.pipelines.retry import DEFAULT, Fail
from dataloader.pipelines.runner import run_task
from dataloader.pipelines.target_transactions import WorkDone
from dataloader.workers.connections.task_connections import is_connection_loss
from dataloader.workers.context import ContextSettings, JobContext
from dataloader.workers.fingerprint import fingerprint
from dataloader.workers.interrupt import Interrupt, InterruptibleThread
from dataloader.workers.isolation.environment import ConnectionCheck
from dataloader.workers.isolation.fork_server import NO_FORK_SERVER, ForkServer
from dataloader.workers.logs.writer import POSITION_STREAM
from dataloader.workers.offloads.remote_log import position_line
from dataloader.workers.offloads.stopping import OffloadStopper
from dataloader.workers.outcome import (
    LeaseLost,
    Outcome,
    SettledByTask,
    add_event_fields,
    crashed,
    failed,
    stopped,
    success,
)
from dataloader.workers.reports.secrets import SecretStore, SecretUnavailable, resolve_references
from dataloader.workers.reports.sentry import report_error
from dataloader.workers.running_child import RunningChild
from dataloader.workers.stop_signal import StopStep
from dataloader.workers.takeover.process_identity import ProcessLock

_log = log.get(__name__)
_PAUSE_SLICE_SEC = 0.1
_MAX_UNWATCHED_SEC = 0.01  # the CPU time of a longer attempt is read at its end, too
_STOPS_OFFLOADS = (StopReason.CANCEL, StopReason.TIME_LIMIT, StopReason.KEY_LOST, StopReason.SHUTDOWN)


class Lease:
    """How long an attempt may trust that its job is still its own.

    It ends `ttl_sec` after the last heartbeat of the process *was sent*, or earlier where the row of the job says so.
    It is trusted until a margin before that, for the stop.

    Measured on the process's own clock, because the database's is out of reach during an outage.
    """

    __slots__ = ("_margin_sec", "claimed_at", "renewed_at", "row_ends_at", "ttl_sec")

    def __init__(self, ttl_sec: float, renewed_at: float) -> None:
        self.ttl_sec = ttl_sec
        self.claimed_at = renewed_at
        # Replaced by the heartbeat, read by any thread. The claim has renewed the row; heartbeats do so seldom.
        self.renewed_at = renewed_at
        self.row_ends_at = renewed_at + ttl_sec
        self._margin_sec = min(2.0, ttl_sec / 5)

    @property
    def ends_at(self) -> float:
        return min(self.renewed_at + self.ttl_sec, self.row_ends_at)

    @property
    def trusted_until(self) -> float:
        return self.ends_at - self._margin_sec

    def is_trusted(self, now: float) -> bool:
        return now < self.trusted_until


@dataclass(frozen=True, kw_only=True)
class AttemptSettings(ContextSettings):
    """What all attempts of a pool are run with."""

    stop_step_sec: float = 5.0
    packages: tuple[str, ...] = ()  # imported by isolated processes
    tasks: dict[str, Any] = field(default_factory=dict)
    endpoints: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict, repr=False)
    secret_store: SecretStore = field(default_factory=SecretStore)
    run_isolated: Callable[[Attempt, Task, dict[str, Any]], Outcome] | None = None  # `dataloader.workers.isolation.run`
    isolation_enabled: bool = True  # False: isolated tasks run in the thread too, but none with a program of its own
    fork_server: ForkServer = NO_FORK_SERVER
    process_lock: ProcessLock = field(default_factory=ProcessLock)  # inherited by isolated processes
    log: Callable[[UUID, int, str, str, str], None] = lambda job_id, attempt, level, stream, text: None
    keep_log_positions: Callable[[UUID, int], None] = lambda job_id, attempt: None

    @cached_property
    def connection_check(self) -> ConnectionCheck:
        """For isolated processes, whose code opens connections that the worker does not see."""
        settings = self.connection_settings
        if settings is None:
            return ConnectionCheck({})
        return ConnectionCheck({**({QUEUE_DATABASE: settings.dsn} if settings.dsn else {}), **settings.targets})


def may_have_child(task: Task) -> bool:
    """Whether the task's attempts run in a process of their own."""
    return task.kind is TaskKind.COMMAND or task.options.isolation != "thread"


def has_own_program(task: Task) -> bool:
    """Whether the program of that process is not this one's interpreter."""
    return task.kind is TaskKind.COMMAND or task.options.python is not None


class _NotRunnable(Exception):
    """The job's args or checkpoint cannot be used."""


class Attempt(JobContext):
    """Each field is written by the worker's thread, and before the pipeline starts unless it says otherwise."""

    settings: AttemptSettings
    options = TaskOptions()
    in_thread = True  # False: the worker's thread watches an isolated process and stops it
    started_at: float | None = None
    ended_at: float | None = None  # set when the pipeline has ended
    cpu_sec_before: float = 0.0  # of the thread that runs it, when it began
    thread_cpu_sec: float | None = None  # of that thread, once it has ended, unless it was short
    is_failure_reported = False  # to Sentry, with its exception
    is_stopping_offloads = False  # the pipeline has ended; no stop step helps
    child: RunningChild | None = None  # the isolated process, once it was started
    sessions_left: Sequence[str] = ()  # servers on which a statement of the attempt may still run

    def __init__(self, job: ClaimedJob, *, claimed_at: float, settings: AttemptSettings) -> None:
        super().__init__(job, settings)
        self.lease = Lease(job.lease_ttl_sec, claimed_at)  # renewed by the heartbeat
        self.results: dict[str, Any] = {}  # of parents, by the names in its args
        self._thread = InterruptibleThread()

    def _is_lease_trusted(self) -> bool:
        return self.lease.is_trusted(clock())

    @property
    def is_settled_by_task(self) -> bool:
        """Whether the pipeline's own final transaction settled the job. Then it has no lease to lose."""
        return self.connections is not None and self.connections.settled

    @property
    def time_limit(self) -> float | None:
        return self.job.time_limit_sec or self.options.time_limit

    @property
    def _leaves_nothing(self) -> bool:
        """Whether there is nothing to write but that it succeeded."""
        return self.connections is None and self.stop_signal.reason is None and self.reported.is_written

    def complete(self, outcome: Outcome) -> Outcome:
        """Return the outcome to write: with what is not saved yet, and without secrets. That the job is settled, or its
        lease lost, counts however the pipeline ended."""
        if outcome is SUCCEEDED and self._leaves_nothing:
            return outcome
        if self.is_settled_by_task or isinstance(outcome, SettledByTask):
            return SettledByTask()
        if self.stop_reason is StopReason.LEASE_LOST or isinstance(outcome, LeaseLost):
            return LeaseLost()
        if self.has_finished:
            outcome = success(self.targets.result)
        self.reported.end()
        progress, checkpoint = self.reported.unwritten()
        if progress is not None or checkpoint is not None:
            outcome = replace(outcome, progress=progress, checkpoint=checkpoint)
        if self.reports is not None:
            outcome = replace(outcome, reports=self.reports)
        fields: dict[str, Any] = {}
        signal = self.stop_signal
        if signal.reason is not None and signal.requested_at is not None:
            after = round(clock() - signal.requested_at, 2)
            fields = {"stop_reason": signal.reason.value, "stopped_by": signal.step, "stopped_after_sec": after}
        if self.sessions_left:
            fields["sessions_left"] = list(self.sessions_left)
        return self.redactor.redact_outcome(add_event_fields(outcome, fields))

    # ── for the worker ──────────────────────────────────────────────────────────────────────────────────────────

    def run(self, task: Task | None) -> Outcome:
        """Run the pipeline to its end."""
        now = clock()
        if self.stop_reason is StopReason.LEASE_LOST or not self.lease.is_trusted(now):
            return LeaseLost()  # this process was frozen since the claim, and another may have claimed the job
        if self.stop_reason is not None:
            return self.complete(self.stop_outcome())
        if task is None:
            return Released(ReleaseReason.NOT_STARTED)
        self.options, self.task_target = task.options, task.options.target
        self.in_thread = not (may_have_child(task) and (self.settings.isolation_enabled or has_own_program(task)))
        self.started_at, self.cpu_sec_before = now, time.thread_time()
        try:
            try:
                outcome = self._load_and_execute(task)
                if self.has_offloads or self.stop_signal.reason is not None:
                    self._stop_offloads(outcome)
                if self.has_offloads:
                    self.settings.keep_log_positions(self.job_id, self.attempt)
            finally:
                ended_at = clock()
                if ended_at - now > _MAX_UNWATCHED_SEC:
                    self.thread_cpu_sec = time.thread_time() - self.cpu_sec_before
                self.ended_at = ended_at  # last: a thread that sees it reads the CPU time
                if self.connections is not None:
                    self.record_ended_sessions(self.connections.close())  # before the job is settled
            return self.complete(outcome)
        except Exception as error:  # a bug of ours, or in a method of the error raised: other jobs must go on
            _log.exception("attempt.internal_error")
            settlement = Settlement(
                Status.QUEUED,
                error=describe_error(error),
                retry_in_sec=DEFAULT.pause(1),
                error_fingerprint=type(error).__name__,
            )
            return self.complete(settlement)

    def _load_and_execute(self, task: Task) -> Outcome:
        try:
            args = self._load_args()
            if self.job.checkpoint_text is not None:
                self.reported.restore(self.job.progress_text, _load_json("the checkpoint", self.job.checkpoint_text))
        except (_NotRunnable, SecretUnavailable, Fail) as error:
            return self.fail_unstarted(str(error))
        except BaseException as error:  # of the database, which has the results of parents
            return self._outcome_of_error(error, task)
        return self._execute(task, args)

    def _load_args(self) -> dict[str, Any]:
        if self.job.args_text == "{}":
            return {}
        value = _load_json("args", self.job.args_text)
        if not isinstance(value, dict):
            raise _NotRunnable(f"args must be an object, not {type(value).__name__}")
        args: dict[str, Any] = value
        if SECRET_KEY in self.job.args_text:
            args, self.redactor = resolve_references(args, self.settings.secret_store, self.job.task)
        if RESULT_KEY in self.job.args_text:
            self.results = resolve_results(args, self.upstream)
            self.raise_stop()  # the database may have answered late
            args = substitute(args, {RESULT_KEY: self.results})
            if self.connections is not None:
                self.connections.close_unused()
        return args

    def fail_unstarted(self, reason: str) -> Outcome:
        """Fail the attempt before its task starts, with the reason in the job's log too."""
        self.settings.log(self.job.id, self.job.attempt, "ERROR", "note", reason)
        return Settlement(Status.FAILED, error=reason, error_fingerprint="refused")

    def stop_outcome(self) -> Outcome:
        return stopped(self.stop_reason or StopReason.CANCEL, self.job, self.options)

    def _execute(self, task: Task, args: dict[str, Any]) -> Outcome:
        if not self.in_thread:
            assert self.settings.run_isolated is not None  # noqa: S101 - all that run tasks pass it
            try:
                if task.kind is TaskKind.COMMAND and self.claim_task_target():
                    return success(self.targets.result)
            except BaseException as error:
                return self._outcome_of_error(error, task)
            return self.settings.run_isolated(self, task, args)
        outcome: Outcome | None = None
        try:
            try:
                self._thread.enter()
                outcome = self._run_task(task, args)
            finally:
                self._thread.leave()
        except Interrupt:  # raised just after the pipeline ended by itself; there is no second one
            self._thread.leave()
        return outcome or self.stop_outcome()

    def _run_task(self, task: Task, args: dict[str, Any]) -> Outcome:
        try:
            if self.task_target is not None and self.claim_task_target():
                return success(self.targets.result)
            self.owns_connections = task.options.connection_check
            if task.options.argv is None:
                result = self.run_owning_connections(run_task, task, args, self)
            else:
                with _command_line(task, args):
                    result = self.run_owning_connections(run_task, task, args, self)
        except BaseException as error:
            return self._outcome_of_error(error, task)
        return success(result)

    def _outcome_of_error(self, error: BaseException, task: Task) -> Outcome:
        if isinstance(error, Wait):
            return Released(ReleaseReason.WAITS, awaited=error.jobs, offloads=error.offloads)
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return success(None)
        if isinstance(error, WorkDone):
            return success(self.targets.result)
        is_stop = self.stop_reason is not None and (
            caused_by_stop(error) or (self.stop_signal.step is StopStep.TERMINATE_SESSION and is_connection_loss(error))
        )
        if is_stop or isinstance(error, Stop):
            return self.stop_outcome()
        if isinstance(error, RemoteWorkerLost):
            return crashed(self.job, str(error), self.options, error_fingerprint=fingerprint(error, task.module))
        outcome = failed(self.job, error, self.options, error_fingerprint=fingerprint(error, task.module))
        if outcome.status is Status.FAILED and not self.is_settled_by_task:
            self.is_failure_reported = report_error(error, self.job)
        return outcome

    # ── for the stop escalation ─────────────────────────────────────────────────────────────────────────────────

    def interrupt(self) -> bool:
        """Raise Interrupt in the pipeline's thread, once; return False if the pipeline has ended."""
        return self._thread.interrupt()

    @property
    def thread_ident(self) -> int | None:
        """Of the thread that runs the pipeline in this process, while it runs."""
        return self._thread.ident

    def end_sessions(self) -> None:
        """End its database sessions and refuse new ones. May take seconds where a server does not answer."""
        self.refuse_sessions()
        if self.connections is not None:
            self.record_ended_sessions(self.connections.terminate())

    # ── for its offloads ────────────────────────────────────────────────────────────────────────────────────────

    def write_lines(self, stream: str, lines: Sequence[str]) -> None:
        text = "\n".join(self.redactor.redact_text(line) for line in lines)
        self.settings.log(self.job_id, self.attempt, "INFO", stream, text)

    def write_log_position(self, name: str, position: str) -> None:
        text = position_line(name, self.job.run_id, position)
        self.settings.log(self.job_id, self.attempt, "INFO", POSITION_STREAM, text)

    @property
    def is_owner(self) -> bool:
        """Whether the job is this attempt's, as far as this process knows."""
        return self.stop_reason is not StopReason.LEASE_LOST and self.lease.is_trusted(clock())

    @property
    def is_shutting_down(self) -> bool:
        return StopReason.SHUTDOWN in self.stop_signal.all_reasons

    def pause(self, seconds: float) -> None:
        """Wait in the stop of its offloads; less if there is another reason to stop, or the lease is lost."""
        deadline, reasons, never = clock() + seconds, self.stop_signal.all_reasons, threading.Event()
        while clock() < deadline and self.is_owner and self.stop_signal.all_reasons == reasons:
            never.wait(min(_PAUSE_SLICE_SEC, max(0.0, deadline - clock())))

    def _stop_offloads(self, outcome: Outcome) -> None:
        """Stop what it has left on other engines, if it ends for good or was stopped."""
        service, reason = self.settings.offloads, self.stop_reason
        if service is None or service.offloads is None or isinstance(outcome, LeaseLost):
            return
        is_stopped = reason in _STOPS_OFFLOADS
        is_final = isinstance(outcome, Settlement) and outcome.status is not Status.QUEUED
        if not (is_stopped or (self.has_offloads and is_final)):
            return
        if self.connections is not None:
            self.record_ended_sessions(self.connections.close())
        self.is_stopping_offloads = True
        OffloadStopper(self, service, service.offloads).run()

    def record_ended_sessions(self, sessions: SessionsEnded) -> None:
        """Log which sessions were ended, and keep for the event on which servers a statement may still run."""
        if not sessions.is_complete:
            self.sessions_left = left = sessions.unresolved_targets
            _log.warning("sessions.left", job=str(self.job_id), task=self.job.task, sessions_left=left)
        elif sessions.ended:
            _log.info("sessions.ended", job=str(self.job_id), task=self.job.task, ended=sessions.ended)


def _load_json(name: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _NotRunnable(f"{name} cannot be decoded: {error}") from error
    if isinstance(value, dict) and value.keys() == {"$dropped"}:  # the database could not return the value
        raise _NotRunnable(f"{name} cannot be read: {value['$dropped']}")
    return value


@contextmanager
def _command_line(task: Task, args: dict[str, Any]) -> Iterator[None]:
    """Set sys.argv for a `main()` that runs without a process of its own: on a terminal or in a test."""
    before = sys.argv
    sys.argv = [task.name, *task.command_line(args)]
    try:
        yield
    finally:
        sys.argv = before
