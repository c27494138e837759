"""The picture of a job's life: how long it waited, ran and paused between attempts, in percent of its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from dataloader.app.features.jobs.job_attempts import attempt_anchors, attempt_state
from dataloader.app.features.jobs.job_detail import JobDetail
from dataloader.app.queue.job import Status

MAX_ATTEMPTS_DRAWN = 20  # the last ones; the list below has all
_TICKS = 5
_MIN_WIDTH_PERCENT = 0.6
_LABEL_WIDTH_PERCENT = 14  # a narrower part has no text
_MIN_SPAN_SEC = 0.001
_SHORT_SPAN_SEC = 600  # below that the axis shows seconds
_LONG_SPAN_SEC = 86_400  # above that it shows days

PartKind = Literal["waited", "ran", "backoff"]


@dataclass(frozen=True)
class TimelinePart:
    """A stretch of the picture; `anchor` is the id of its attempt's card."""

    kind: PartKind
    style: str
    x: float
    width: float
    label: str
    duration: str
    anchor: str = ""

    @property
    def has_text(self) -> bool:
        return self.width >= _LABEL_WIDTH_PERCENT

    @property
    def sentence(self) -> str:
        return f"{self.label} {self.duration}"


@dataclass(frozen=True)
class Timeline:
    """The parts of the picture with the times below it. `waited_sec` and `ran_sec` are of all attempts."""

    parts: list[TimelinePart]
    ticks: list[tuple[float, str]]
    end_label: str
    waited_sec: float
    ran_sec: float

    @property
    def sentence(self) -> str:
        return ", ".join(part.sentence for part in self.parts)


@dataclass(frozen=True)
class _Stretch:
    kind: PartKind
    style: str
    start: datetime
    end: datetime
    label: str
    anchor: str = ""


def build_timeline(
    job: JobDetail, now: datetime, format_time: Callable[[datetime, str], str], format_duration: Callable[[float], str]
) -> Timeline:
    end = max(job.finished_at if job.finished_at is not None and job.status.final else now, job.created_at)
    stretches = list(_stretches(job, end))
    start = stretches[0].start if stretches else job.created_at
    span_sec = max((end - start).total_seconds(), _MIN_SPAN_SEC)

    def to_percent(moment: datetime) -> float:
        return round(100 * max(0.0, (moment - start).total_seconds()) / span_sec, 2)

    parts = []
    for stretch in stretches:
        x = min(to_percent(stretch.start), 100 - _MIN_WIDTH_PERCENT)
        width = round(max(to_percent(stretch.end) - x, _MIN_WIDTH_PERCENT), 2)
        duration = format_duration(_length_sec(stretch))
        parts.append(TimelinePart(stretch.kind, stretch.style, x, width, stretch.label, duration, stretch.anchor))
    return Timeline(
        parts,
        *time_axis(start, end, format_time, has_ended=job.status.final),
        sum(_length_sec(stretch) for stretch in stretches if stretch.kind == "waited"),
        sum(_length_sec(stretch) for stretch in stretches if stretch.kind == "ran"),
    )


def time_axis(
    start: datetime, end: datetime, format_time: Callable[[datetime, str], str], *, has_ended: bool
) -> tuple[list[tuple[float, str]], str]:
    """The times below a picture with their positions in percent, and the one at its right edge."""
    span_sec = max((end - start).total_seconds(), _MIN_SPAN_SEC)
    pattern = "%d %b %H:%M" if span_sec > _LONG_SPAN_SEC else "%H:%M:%S" if span_sec < _SHORT_SPAN_SEC else "%H:%M"
    step = timedelta(seconds=span_sec / _TICKS)
    ticks = _without_repetition([(100 * n / _TICKS, format_time(start + n * step, pattern)) for n in range(_TICKS)])
    return ticks, format_time(end, pattern) if has_ended else "now"


def _without_repetition(ticks: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """The ticks, without the labels that repeat the one before."""
    labels = ["", *(label for _, label in ticks)]
    return [(x, "" if label == before else label) for (x, label), before in zip(ticks, labels, strict=False)]


def _stretches(job: JobDetail, end: datetime) -> Iterator[_Stretch]:
    """The stretches in their order. Those before the last attempts are left out."""
    attempts, anchors = job.attempts[-MAX_ATTEMPTS_DRAWN:], attempt_anchors(job.attempts)[-MAX_ATTEMPTS_DRAWN:]
    position, due = job.created_at, job.created_at
    if len(job.attempts) > len(attempts):
        position = due = attempts[0].started_at
    for attempt, anchor in zip(attempts, anchors, strict=True):
        yield from _waits(position, due, attempt.started_at, "queue time")
        state = attempt_state(attempt)
        position = attempt.finished_at or end
        yield _Stretch("ran", state.style, attempt.started_at, position, f"{attempt.label} · {state.word}", anchor)
        due = position + timedelta(seconds=attempt.retry_in_sec or 0)
    if job.status is Status.QUEUED:
        place = "ready" if job.wait_state == "scheduled" and job.available_at <= end else job.wait_state
        yield from _waits(position, due, end, place, place)
    elif job.status.final and end > position and not attempts:
        yield _Stretch("waited", job.status.value, position, end, "queue time")


def _waits(start: datetime, due: datetime, end: datetime, label: str, style: str = "") -> Iterator[_Stretch]:
    """The time between attempts: first the backoff, then the time in the queue."""
    due = min(due, end)
    if due > start:
        yield _Stretch("backoff", "", start, due, "backoff")
    if end > due:
        yield _Stretch("waited", style, due, end, label)


def _length_sec(stretch: _Stretch) -> float:
    return max(0.0, (stretch.end - stretch.start).total_seconds())
