"""Decides how an attempt ended from what came out of its pipeline. Values only; the settler writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dataloader.app.queue.job import SUCCEEDED, ClaimedJob, Released, ReleaseReason, Settlement, Status
from dataloader.app.wording import format_duration
from dataloader.pipelines.contract import StopReason, TaskOptions
from dataloader.pipelines.failures import describe_error, format_traceback, usage_hint
from dataloader.pipelines.json_values import sanitize_text
from dataloader.pipelines.retry import Policy, RetryAction, decide, policy_from_json, snooze_delay

# Masking the secrets in a text takes 0.15 s a megabyte, in which no other thread runs. Longer by far than what is
# stored and the longest secret: of a secret at the cut nothing is stored.
_MAX_UNMASKED_LENGTH = 500_000
_MAX_CRASHES = 2  # of a job's process; then the job fails


@dataclass(frozen=True)
class LeaseLost:
    """The attempt does not own its job any more: nothing is written."""


@dataclass(frozen=True)
class SettledByTask:
    """The pipeline's own final transaction has settled the job."""


Outcome = Settlement | Released | LeaseLost | SettledByTask


def success(result: Any) -> Settlement:
    return SUCCEEDED if result is None else Settlement(Status.SUCCEEDED, result=result)


def failed(
    job: ClaimedJob,
    error: BaseException,
    options: TaskOptions,
    *,
    has_traceback: bool = True,
    error_fingerprint: str | None = None,
) -> Settlement:
    """Decide whether and when to retry after an error. Its fingerprint is its class, unless it is given."""
    policy = retry_policy_of(job, options)
    decision = decide(error, attempt=job.attempt, max_attempts=job.max_attempts, policy=policy, rules=options.rules)
    message = describe_error(error) + usage_hint(error, has_command_line=options.argv is not None)
    text = format_traceback(error) if has_traceback else None
    return failure(
        decision.action, decision.delay_sec, message, text, error_fingerprint=error_fingerprint or type(error).__name__
    )


def failure(
    action: RetryAction,
    delay_sec: float,
    message: str,
    traceback_text: str | None = None,
    *,
    error_fingerprint: str,
) -> Settlement:
    message = sanitize_text(message, _MAX_UNMASKED_LENGTH)
    traceback_text = traceback_text and sanitize_text(traceback_text, _MAX_UNMASKED_LENGTH)
    if action is RetryAction.FAIL:
        return Settlement(Status.FAILED, error=message, traceback=traceback_text, error_fingerprint=error_fingerprint)
    return Settlement(
        Status.QUEUED,
        error=message,
        traceback=traceback_text,
        retry_in_sec=snooze_delay(delay_sec) if action is RetryAction.SNOOZE else delay_sec,
        refund_attempt=action is RetryAction.SNOOZE,
        error_fingerprint=error_fingerprint,
    )


def retry_policy_of(job: ClaimedJob, options: TaskOptions) -> Policy:
    """The job's own policy, else its task's. One that cannot be parsed (another service may have written the row) does
    not count."""
    if job.retry_text is not None:
        with suppress(ValueError, TypeError, AttributeError):
            return policy_from_json(json.loads(job.retry_text))
    return options.retry


def crashed(job: ClaimedJob, message: str, options: TaskOptions, *, error_fingerprint: str) -> Settlement:
    """The isolated process died without a result. A job whose processes keep dying fails."""
    crashes, message = job.crashes + 1, sanitize_text(message, _MAX_UNMASKED_LENGTH)
    if crashes >= _MAX_CRASHES:
        error = f"poison: its process died {crashes} times, the last time: {message}"
        return Settlement(
            Status.FAILED,
            error=error,
            crashed=True,
            event_fields={"code": "poison"},
            error_fingerprint=error_fingerprint,
        )
    settlement = failed(job, RuntimeError(message), options, has_traceback=False, error_fingerprint=error_fingerprint)
    return replace(settlement, error=message, crashed=True, event_fields={"code": "crash"})


def stopped(reason: StopReason, job: ClaimedJob, options: TaskOptions) -> Outcome:
    """The pipeline ended because it was stopped."""
    match reason:
        case StopReason.CANCEL:
            return Settlement(Status.CANCELED, error="canceled on request")
        case StopReason.SHUTDOWN:
            return Released(ReleaseReason.SHUTDOWN)
        case StopReason.LEASE_LOST:
            return LeaseLost()
        case StopReason.KEY_LOST:  # the job is still ours, but another process holds its key: wait for it
            return Released(ReleaseReason.LOCK_BUSY)
        case StopReason.TIME_LIMIT:
            error = TimeoutError(
                f"the time limit of {format_duration(job.time_limit_sec or options.time_limit)} was reached"
            )
            return failed(job, error, options, has_traceback=False)


def add_event_fields(outcome: Outcome, fields: Mapping[str, Any]) -> Outcome:
    """Add how the attempt ended, if anything is to be written."""
    if not fields or not isinstance(outcome, Settlement | Released):
        return outcome
    return replace(outcome, event_fields={**fields, **(outcome.event_fields or {})})
