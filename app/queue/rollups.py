"""What happened over time: folded from the journal by whoever has time for it, and read for lists and charts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from app.queue.counts import Counts
from app.queue.jobqueue import Source, as_uuid
from app.queue.values import array

Period = Literal["1h", "24h", "7d"]

MOST_EVENTS = 10_000  # that one turn folds
RUNS_KEPT = 20  # ends of each task
SPANS: Mapping[Period, tuple[int, timedelta]] = {
    "1h": (60, timedelta(hours=1)),
    "24h": (900, timedelta(hours=24)),
    "7d": (3600, timedelta(days=7)),
}
_DEPTHS_EVERY: Mapping[Period, int] = {"1h": 1, "24h": 5, "7d": 15}  # minutes
_SMALLEST = 0.005  # seconds: the first bucket's upper end; each further one is the root of two times as long
_OUTCOMES = ("succeeded", "failed", "canceled", "lost", "retried")


@dataclass(frozen=True)
class Times:
    """How long something took, as a histogram over half powers of two."""

    buckets: Mapping[int, int] = field(default_factory=dict)
    total_sec: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    @property
    def mean(self) -> float | None:
        return self.total_sec / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """The seconds that this share of all took at most, a fifth off at worst; None: there were none."""
        left = share * self.count
        for bucket in sorted(self.buckets):
            n = self.buckets[bucket]
            if left <= n:
                low, high = (0.0 if bucket == 0 else _upper(bucket - 1)), _upper(bucket)
                return low + (high - low) * left / n
            left -= n
        return None


@dataclass(frozen=True)
class Happened:
    """What happened in a time."""

    queued: int = 0
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    lost: int = 0
    retried: int = 0  # tries that failed and were not the last
    waited: Times = field(default_factory=Times)
    ran: Times = field(default_factory=Times)

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.canceled + self.lost

    @property
    def failure_rate(self) -> float | None:
        """The share of jobs that failed or were lost among those that came to an end of their own."""
        judged = self.succeeded + self.failed + self.lost
        return (self.failed + self.lost) / judged if judged else None


@dataclass(frozen=True)
class Point:
    """A span of a chart."""

    at: datetime
    happened: Happened


@dataclass(frozen=True)
class Depth:
    """How many jobs stood where, at most, in a span."""

    at: datetime
    ready: int
    timed: int
    parked: int
    running: int
    oldest_ready_sec: float | None


@dataclass(frozen=True)
class Chart:
    """What happened over a period, in spans of equal length; one in which nothing happened is left out."""

    span_sec: int
    since: datetime
    until: datetime
    points: list[Point]
    depths: list[Depth]


@dataclass(frozen=True)
class LastRun:
    """How a try of a task's job ended."""

    job_id: UUID
    queue: str
    ended_at: datetime
    outcome: str  # succeeded, failed, canceled, lost or retried
    attempt: int | None
    ran_sec: float | None


class Rollups:
    """The numbers of what happened. Reading them costs the same however many jobs there are."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask

    # ── by keepers ──────────────────────────────────────────────────────────────────────────────────────────────

    def fold(self, most: int = MOST_EVENTS) -> bool:
        """Take the next events of the journal; True: there are more. Any number of processes may do so."""
        rows = self._ask("fold_journal", {"schema": self._source.schema, "most": most, "runs": RUNS_KEPT})
        if not rows:
            return False
        folded, depths_due, pruning_due = rows[0]
        if depths_due:
            self.note_depths()
        if pruning_due:
            self._ask("prune_rollups")
        return bool(folded >= most)

    def note_depths(self) -> None:
        """Write down how much stands where; once a minute, whoever asks."""
        ages = Counts(self._source).oldest_ready()
        self._ask("note_depths", {"queues": array(ages), "ages": array(ages.values())})

    # ── by readers ──────────────────────────────────────────────────────────────────────────────────────────────

    def chart(self, period: Period, *, queue: str | None = None, task: str | None = None) -> Chart:
        span, back = SPANS[period]
        now = self._now()
        since = now - back
        asked = {"span": span, "since": since, "queue": queue, "task": task, "every": _DEPTHS_EVERY[period]}
        lines: dict[datetime, list[tuple[Any, ...]]] = defaultdict(list)
        for at, *line in self._ask("rollup_series", asked):
            lines[at].append(tuple(line))
        depths = [] if task is not None else [Depth(*row) for row in self._ask("depth_series", asked)]
        return Chart(span, since, now, [Point(at, _happened(lines[at])) for at in sorted(lines)], depths)

    def by_queue(self, period: Period = "1h", *, queue: str | None = None) -> dict[str, Happened]:
        return self._totals(period, by_task=False, queue=queue, task=None)

    def by_task(
        self, period: Period = "24h", *, task: str | None = None, queue: str | None = None
    ) -> dict[str, Happened]:
        return self._totals(period, by_task=True, queue=queue, task=task)

    def last_runs(self, *, task: str | None = None, most: int = RUNS_KEPT) -> dict[str, list[LastRun]]:
        """The last ends of each task's jobs, the newest first."""
        runs: dict[str, list[LastRun]] = defaultdict(list)
        for name, job_id, *rest in self._ask("last_runs", {"task": task, "most": most}):
            runs[name].append(LastRun(as_uuid(job_id), *rest))
        return dict(runs)

    def _totals(self, period: Period, *, by_task: bool, queue: str | None, task: str | None) -> dict[str, Happened]:
        span, back = SPANS[period]
        asked = {"span": span, "back": back.total_seconds(), "by_task": by_task, "queue": queue, "task": task}
        lines: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for name, *line in self._ask("rollup_totals", asked):
            lines[name].append(tuple(line))
        return {name: _happened(found) for name, found in lines.items()}

    def _now(self) -> datetime:
        now: datetime = self._ask("database_time")[0][0]
        return now


def _happened(lines: Iterable[tuple[Any, ...]]) -> Happened:
    counts: dict[str, int] = defaultdict(int)
    times: dict[str, dict[int, int]] = {"waited": {}, "ran": {}}
    seconds: dict[str, float] = {"waited": 0.0, "ran": 0.0}
    for what, buckets, ns, sec in lines:
        if what in times:
            times[what] = dict(zip(buckets, ns, strict=True))
            seconds[what] = sec
        else:
            counts[what] = sum(ns)
    told = {name: Times(times[name], seconds[name]) for name in times}
    return Happened(
        queued=counts["queued"],
        started=counts["started"],
        waited=told["waited"],
        ran=told["ran"],
        **{outcome: counts[outcome] for outcome in _OUTCOMES},
    )


def _upper(bucket: int) -> float:
    return float(_SMALLEST * 2 ** (bucket / 2))
