"""How an attempt ended, decided from what came out of the pipeline. Values only; the settler writes them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.queue.job import Claimed, Release, Settlement, Status
from pipelines.contract import Stop, StopReason

RetryPolicy = Callable[[int], float]


def linear(step: float) -> RetryPolicy:
    """Wait `step` seconds after the first try, twice that after the second, and so on."""
    return lambda attempt: step * attempt


@dataclass(frozen=True)
class Abandoned:
    """The run lost its lease: the job is somebody else's, and nothing is written."""


@dataclass(frozen=True)
class HandedBack:
    """The run ends without costing an attempt."""

    why: Release
    progress: Mapping[str, Any] | None = None


Ending = Settlement | HandedBack | Abandoned


def success(result: Any, progress: Mapping[str, Any] | None) -> Settlement:
    return Settlement(Status.SUCCEEDED, result=result, progress=progress)


def failure(job: Claimed, error: BaseException, progress: Mapping[str, Any] | None, pause: RetryPolicy) -> Settlement:
    """Try again after a pause, until the attempts are used up."""
    told = _told(error)
    trace = "".join(traceback.format_exception(error))
    if job.attempt >= job.max_attempts:
        return Settlement(Status.FAILED, error=told, traceback=trace, progress=progress)
    return Settlement(Status.QUEUED, error=told, traceback=trace, progress=progress, retry_in=pause(job.attempt))


def refused(told: str) -> Settlement:
    """The job cannot be run, and trying again would not help."""
    return Settlement(Status.FAILED, error=told)


def stopped(reason: StopReason, progress: Mapping[str, Any] | None) -> Ending:
    """The pipeline ended because it was told to."""
    match reason:
        case StopReason.CANCEL:
            return Settlement(Status.CANCELED, error="canceled on request", progress=progress)
        case StopReason.SHUTDOWN:
            return HandedBack(Release.SHUTDOWN, progress)
        case StopReason.LEASE_LOST:
            return Abandoned()


def came_from_stop(error: BaseException) -> Stop | None:
    """The Stop that an error grew out of: a pipeline may have wrapped it while it cleaned up."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if isinstance(at, Stop):
            return at
        seen.add(id(at))
        at = at.__cause__ or at.__context__
    return None


def _told(error: BaseException) -> str:
    try:
        said = str(error)
    except Exception:  # an exception whose own __str__ fails still ended the attempt
        said = "(it could not be printed)"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
