"""The progress of an attempt over time, and what follows from it: the rate and the time left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import from_row
from dataloader.app.db.statements import Executor
from dataloader.app.features.jobs.job_detail import AttemptRecord
from dataloader.app.log.masking import mask_secret_fields
from dataloader.app.queue.job import Status
from dataloader.app.wording import parse_amount

MAX_POINTS = 500
_PARTS = 200  # of the time of a run: each has one or two points
_LATEST_ROWS = 30  # all of the last ones are read: they have the pauses between two changes
# The rate is that of the last tenth of the run so far, of a minute at least, and of the last four changes at least.
_RATE_SHARE, _MIN_RATE_SPAN, _MIN_RATE_CHANGES = 0.1, timedelta(minutes=1), 4
# An attempt stalls when it has not advanced for twice the longest of the last pauses, a minute at least.
_STALL_FACTOR, _MIN_STALL_SEC = 2.0, 60.0


@dataclass(frozen=True)
class ProgressPoint:
    """How much was done at a time. `total` and `unit` are null where none was reported."""

    at: datetime
    done: float
    total: float | None
    unit: str | None


@dataclass(frozen=True)
class Estimate:
    """`rate` is in units a second; `remaining_sec` is None without a total, after the end, and when the attempt stalls:
    it has not advanced for `stalled_sec`, which is long for it."""

    rate: float | None = None
    remaining_sec: float | None = None
    stalled_sec: float | None = None


@dataclass(frozen=True)
class JobProgress:
    """The progress of an attempt over time, the oldest point first. `rate` is in units a second: while the attempt runs
    that of its last tenth, and after its end the mean. `remaining_sec` is the time left at that rate; null without a
    total, after the end, and when the attempt stalls, which means that it has not advanced for `stalled_sec`. `run`
    counts the attempts of this number. If there is no such attempt, all of it is null or empty."""

    job_id: UUID
    status: Status
    attempt: int | None
    run: int | None
    run_id: UUID | None
    started_at: datetime | None
    finished_at: datetime | None
    rate: float | None
    remaining_sec: float | None
    stalled_sec: float | None
    points: list[ProgressPoint]


class ProgressReader:
    """Reads the points of attempts."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def points(self, job_id: UUID, record: AttemptRecord, *, last_progress: Any = None) -> list[ProgressPoint]:
        """Some hundred points of an attempt, oldest first, however long it has run. `last_progress`: what the job has
        of it since its end."""
        if record.run_id is None:  # of another service
            return []
        parameters = {"job_id": str(job_id), "run_id": str(record.run_id), "started_at": record.started_at}
        rows = self._execute("progress_history", parameters | {"parts": _PARTS, "latest": _LATEST_ROWS})
        points = [_masked(from_row(ProgressPoint, row)) for row in rows]
        amount = parse_amount(last_progress)
        if points and amount is not None and record.finished_at is not None and record.finished_at >= points[-1].at:
            end = _masked(ProgressPoint(record.finished_at, *amount[:2], amount[2] or None))
            points += [end] if replace(end, at=points[-1].at) != points[-1] else []
        return points


def _masked(point: ProgressPoint) -> ProgressPoint:
    return replace(point, **mask_secret_fields({"unit": point.unit}))


def select_attempt(attempts: Sequence[AttemptRecord], attempt: int | None) -> AttemptRecord | None:
    """The last attempt of this number; by default the last of all."""
    return next((record for record in reversed(attempts) if attempt in (None, record.attempt)), None)


def thin(points: Sequence[ProgressPoint], limit: int) -> list[ProgressPoint]:
    """At most `limit` of the points, evenly in time, with the last one."""
    if len(points) <= limit:
        return list(points)
    kept, last_slot = [], -1
    span = max(points[-1].at - points[0].at, timedelta.resolution)
    for point in points[:-1]:
        slot = min(limit - 2, int((limit - 1) * ((point.at - points[0].at) / span)))
        if slot > last_slot:
            kept.append(point)
            last_slot = slot
    return [*kept, points[-1]]


def estimate(points: Sequence[ProgressPoint], *, now: datetime, has_ended: bool) -> Estimate:
    """How fast an attempt advances, and how long it takes at that rate. With fewer than two points nothing is known.

    The rate is one of the recent past, since the mean since the start is wrong for all the rest of a run whose first
    part was different.
    """
    steps = _last_steps(points)
    if len(steps) < 2:  # noqa: PLR2004 - a rate needs two
        return Estimate()
    last = steps[-1]
    if has_ended:
        return Estimate(_rate(steps[0], last))
    silent_sec = max(0.0, (now - last.at).total_seconds())
    pauses = [(after.at - before.at).total_seconds() for before, after in pairwise(steps[-_LATEST_ROWS:])]
    if silent_sec > max(_MIN_STALL_SEC, _STALL_FACTOR * max(pauses)):
        return Estimate(stalled_sec=silent_sec)
    since = last.at - max(_MIN_RATE_SPAN, _RATE_SHARE * (last.at - points[0].at))
    by_time = next((n for n in reversed(range(len(steps))) if steps[n].at <= since), 0)
    first = steps[min(by_time, max(0, len(steps) - 1 - _MIN_RATE_CHANGES))]
    rate, total = _rate(first, last), points[-1].total
    if rate is None or total is None or total < last.done:
        return Estimate(rate)
    return Estimate(rate, max(0.0, (total - last.done) / rate - silent_sec))


def _last_steps(points: Sequence[ProgressPoint]) -> list[ProgressPoint]:
    """The first point, and those that have more done than the one before, since the count began again last: with a
    smaller number, or with another unit."""
    steps: list[ProgressPoint] = []
    for point in points:
        if steps and (point.done < steps[-1].done or point.unit != steps[-1].unit):
            steps = []
        if not steps or point.done > steps[-1].done:
            steps.append(point)
    return steps


def _rate(first: ProgressPoint, last: ProgressPoint) -> float | None:
    span_sec = (last.at - first.at).total_seconds()
    return (last.done - first.done) / span_sec if span_sec > 0 else None
