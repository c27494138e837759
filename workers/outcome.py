"""Decides how an attempt ended from what came out of its pipeline. Values only; the settler writes them."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from app.queue.job import SUCCEEDED, ClaimedJob, ReleaseReason, ReleaseRequest, Settlement, Status
from pipelines.contract import Stop, StopReason, TaskOptions
from pipelines.retry import DEFAULT, Policy, RetryAction, decide, policy_from_json

_MAX_CRASHES = 2  # of a job's process; then the job fails
_CANCELLATION_SQLSTATES = ("57014", "57P01")  # a statement was canceled, a session terminated
_COMMAND_LINE_PARSERS = ("argparse", "optparse", "click")
_USAGE_ERROR = 2  # their exit code


@dataclass(frozen=True)
class RemainingState:
    """What an attempt leaves to be saved with its end. None: as the last heartbeat saved it."""

    progress: Mapping[str, Any] | None = None
    checkpoint: Any = None
    event_fields: Mapping[str, Any] | None = None

    def with_fields(self, **fields: Any) -> RemainingState:
        return replace(self, event_fields={**(self.event_fields or {}), **fields})


UNCHANGED = RemainingState()


@dataclass(frozen=True)
class LeaseLost:
    """The attempt does not own its job any more: nothing is written."""


@dataclass(frozen=True)
class SettledByTask:
    """The pipeline's own final transaction has settled the job."""


@dataclass(frozen=True)
class Released:
    """The attempt ends and does not count."""

    reason: ReleaseReason
    remaining: RemainingState = UNCHANGED

    def request_for(self, job: ClaimedJob) -> ReleaseRequest:
        remaining = self.remaining
        return ReleaseRequest(job, self.reason, remaining.progress, remaining.checkpoint, remaining.event_fields)


Outcome = Settlement | Released | LeaseLost | SettledByTask


@dataclass(frozen=True)
class Failure:
    """An error and what it means for the job; can be sent from an isolated process."""

    message: str
    traceback: str | None
    decision: RetryAction
    pause_sec: float


def success(result: Any, remaining: RemainingState) -> Settlement:
    if result is None and remaining is UNCHANGED:
        return SUCCEEDED
    return _with_state(Settlement(Status.SUCCEEDED, result=result), remaining)


def decide_failure(job: ClaimedJob, error: BaseException, options: TaskOptions, default_policy: Policy) -> Failure:
    """Decide whether and when to retry after an error."""
    policy = retry_policy_of(job, options, default_policy)
    decision = decide(error, attempt=job.attempt, max_attempts=job.max_attempts, policy=policy, rules=options.rules)
    message = describe_error(error) + usage_hint(error, options)
    return Failure(message, "".join(traceback.format_exception(error)), decision.action, decision.delay_sec)


def retry_policy_of(job: ClaimedJob, options: TaskOptions, default_policy: Policy) -> Policy:
    """The job's own policy, else its task's, else the default. One that cannot be parsed (another service may have
    written the row) does not count."""
    if job.retry_text is not None:
        with suppress(ValueError, TypeError, AttributeError):
            return policy_from_json(json.loads(job.retry_text))
    return default_policy if options.retry is DEFAULT else options.retry


def failed(failure: Failure, remaining: RemainingState) -> Settlement:
    if failure.decision is RetryAction.FAIL:
        return _with_state(Settlement(Status.FAILED, error=failure.message, traceback=failure.traceback), remaining)
    settlement = Settlement(
        Status.QUEUED,
        error=failure.message,
        traceback=failure.traceback,
        retry_in_sec=failure.pause_sec,
        refund_attempt=failure.decision is RetryAction.SNOOZE,
    )
    return _with_state(settlement, remaining)


def crashed(
    job: ClaimedJob, message: str, options: TaskOptions, default_policy: Policy, remaining: RemainingState
) -> Settlement:
    """The isolated process died without a result. A job whose processes keep dying fails."""
    crashes = job.crashes + 1
    if crashes >= _MAX_CRASHES:
        error = f"poison: its process died {crashes} times, the last time: {message}"
        return _with_state(Settlement(Status.FAILED, error=error, crashed=True), remaining.with_fields(code="poison"))
    failure = decide_failure(job, RuntimeError(message), options, default_policy)
    settlement = failed(failure, remaining.with_fields(code="crash"))
    return replace(settlement, error=message, traceback=None, crashed=True)


def stopped(
    reason: StopReason, job: ClaimedJob, options: TaskOptions, default_policy: Policy, remaining: RemainingState
) -> Outcome:
    """The pipeline ended because it was stopped."""
    match reason:
        case StopReason.CANCEL:
            return _with_state(Settlement(Status.CANCELED, error="canceled on request"), remaining)
        case StopReason.SHUTDOWN:
            return Released(ReleaseReason.SHUTDOWN, remaining)
        case StopReason.LEASE_LOST:
            return LeaseLost()
        case StopReason.KEY_LOST:  # the job is still ours, but another process holds its key: wait for it
            return Released(ReleaseReason.LOCK_BUSY, remaining)
        case StopReason.TIME_LIMIT:
            error = TimeoutError(f"the time limit of {job.time_limit_sec or options.time_limit:g} s was reached")
            return failed(replace(decide_failure(job, error, options, default_policy), traceback=None), remaining)


def caused_by_stop(error: BaseException) -> bool:
    """Whether the error results from our stop: a Stop wrapped by the pipeline's clean-up or by an exception group, or
    a statement that was canceled."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop()
        if isinstance(cause, Stop) or getattr(cause, "pgcode", None) in _CANCELLATION_SQLSTATES:
            return True
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            pending += [cause.__context__, cause.__cause__]
            pending += cause.exceptions if isinstance(cause, BaseExceptionGroup) else ()
    return False


def describe_error(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # its own __str__ may fail
        text = "(it could not be printed)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def usage_hint(error: BaseException, options: TaskOptions) -> str:
    """A hint for a callable that parsed a command line that is not its own; else an empty string."""
    if not isinstance(error, SystemExit) or error.code != _USAGE_ERROR or options.argv is not None:
        return ""
    modules = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__))
    if not any(module.partition(".")[0] in _COMMAND_LINE_PARSERS for module in modules):
        return ""
    return (
        "; it has parsed a command line, and as a task it has none of its own: give it one by the option"
        ' argv, such as ["--date", "{date}"]'
    )


def _with_state(settlement: Settlement, remaining: RemainingState) -> Settlement:
    if remaining is UNCHANGED:
        return settlement
    return replace(
        settlement, progress=remaining.progress, checkpoint=remaining.checkpoint, event_fields=remaining.event_fields
    )
