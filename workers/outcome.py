"""How an attempt ended, decided from what came out of the pipeline. Values only; the settler writes them."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from app.queue.job import SUCCEEDED, Claimed, Release, Settlement, Status
from pipelines.contract import Options, Stop, StopReason
from pipelines.retry import DEFAULT, Answer, Policy, decide, from_json

_POISON = 2  # crashes of its process, after which a job is not tried again
_ENDED_BY_US = ("57014", "57P01")  # a statement was cancelled, a session terminated


@dataclass(frozen=True)
class Left:
    """What a run leaves behind, however it ends. None: as the last heartbeat left it."""

    progress: Mapping[str, Any] | None = None
    checkpoint: Any = None
    notes: Mapping[str, Any] | None = None


NOTHING = Left()


@dataclass(frozen=True)
class Abandoned:
    """The run lost its lease: the job is somebody else's, and nothing is written."""


@dataclass(frozen=True)
class Finished:
    """The pipeline's own last transaction has settled the job."""


@dataclass(frozen=True)
class HandedBack:
    """The run ends without costing an attempt."""

    why: Release
    left: Left = NOTHING


Ending = Settlement | HandedBack | Abandoned | Finished


@dataclass(frozen=True)
class Failure:
    """An error, told so that it can cross the border of a process."""

    told: str
    traceback: str | None
    answer: Answer
    pause: float


def success(result: Any, left: Left) -> Settlement:
    if result is None and left is NOTHING:
        return SUCCEEDED
    return Settlement(
        Status.SUCCEEDED, result=result, progress=left.progress, checkpoint=left.checkpoint, notes=left.notes
    )


def failure_of(job: Claimed, error: BaseException, options: Options, default: Policy) -> Failure:
    """What to do about an error: the job's own policy counts first, then its task's."""
    policy = readable_policy(job, options, default)
    verdict = decide(error, attempt=job.attempt, max_attempts=job.max_attempts, policy=policy, rules=options.rules)
    message = describe(error) + hint_of(error, options)
    return Failure(message, "".join(traceback.format_exception(error)), verdict.answer, verdict.pause)


def readable_policy(job: Claimed, options: Options, default: Policy) -> Policy:
    """The job's own; one that cannot be read, of a row that another service has written, does not count."""
    if job.retry_text is not None:
        with suppress(ValueError, TypeError, AttributeError):
            return from_json(json.loads(job.retry_text))
    return default if options.retry is DEFAULT else options.retry


def failed(failure: Failure, left: Left) -> Settlement:
    if failure.answer is Answer.FAIL:
        return _with(Settlement(Status.FAILED, error=failure.told, traceback=failure.traceback), left)
    snoozed = failure.answer is Answer.SNOOZE
    end = Settlement(
        Status.QUEUED, error=failure.told, traceback=failure.traceback, retry_in=failure.pause, refund=snoozed
    )
    return _with(end, left)


def refused(told: str) -> Settlement:
    """The job cannot be run, and trying again would not help."""
    return Settlement(Status.FAILED, error=told)


def crashed(job: Claimed, told: str, options: Options, default: Policy, left: Left) -> Settlement:
    """A process of its own died under the job. A job that does so again is kept from killing more of them."""
    code = {"code": "poison"} if job.crashes + 1 >= _POISON else {"code": "crash"}
    left = replace(left, notes={**(left.notes or {}), **code})
    if code["code"] == "poison":
        told = f"poison: its process died {job.crashes + 1} times, the last time: {told}"
        return _with(Settlement(Status.FAILED, error=told, crashed=True), left)
    end = failed(failure_of(job, RuntimeError(told), options, default), left)
    return replace(end, error=told, traceback=None, crashed=True)


def stopped(reason: StopReason, job: Claimed, options: Options, default: Policy, left: Left) -> Ending:
    """The pipeline ended because it was told to."""
    match reason:
        case StopReason.CANCEL:
            return _with(Settlement(Status.CANCELED, error="canceled on request"), left)
        case StopReason.SHUTDOWN:
            return HandedBack(Release.SHUTDOWN, left)
        case StopReason.LEASE_LOST:
            return Abandoned()
        case StopReason.KEY_LOST:  # the job is still ours, but its key is not: wait for it, at no cost
            return HandedBack(Release.LOCK_BUSY, left)
        case StopReason.TIME_LIMIT:
            limit = job.time_limit_sec or options.time_limit
            failure = failure_of(job, TimeoutError(f"the time limit of {limit:g} s was reached"), options, default)
            return failed(replace(failure, traceback=None), left)


def came_from_stop(error: BaseException) -> bool:
    """Did the error grow out of our stop? A pipeline may have wrapped the Stop while it cleaned up, or a group of its
    tasks has; or it was a statement of its that we cancelled."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        at = left.pop()
        if isinstance(at, Stop) or getattr(at, "pgcode", None) in _ENDED_BY_US:
            return True
        if at is not None and id(at) not in seen:
            seen.add(id(at))
            left += [at.__context__, at.__cause__]
            left += at.exceptions if isinstance(at, BaseExceptionGroup) else ()
    return False


def describe(error: BaseException) -> str:
    try:
        said = str(error)
    except Exception:  # an exception whose own __str__ fails still ended the attempt
        said = "(it could not be printed)"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


_COMMAND_LINE_PARSERS = ("argparse", "optparse", "click")
_USAGE_ERROR = 2  # their exit code


def hint_of(error: BaseException, options: Options) -> str:
    """What to change where a callable has parsed a command line that is not its own; else nothing."""
    if not isinstance(error, SystemExit) or error.code != _USAGE_ERROR or options.argv is not None:
        return ""
    modules = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__))
    if not any(module.partition(".")[0] in _COMMAND_LINE_PARSERS for module in modules):
        return ""
    return (
        "; it has parsed a command line, and as a task it has none of its own: give it one by the option"
        ' argv, such as ["--date", "{date}"]'
    )


def _with(end: Settlement, left: Left) -> Settlement:
    if left is NOTHING:
        return end
    return replace(end, progress=left.progress, checkpoint=left.checkpoint, notes=left.notes)
