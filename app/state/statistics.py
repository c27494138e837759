"""Job statistics over time, which app/features/statistics aggregates from job events; counts of jobs by queue and
status; and metrics of the database.

A small table is counted. In a large one queued, running and unsuccessful jobs are counted along partial indexes up to a
limit; beyond it, and for succeeded jobs, counts are estimated from a sample of the pages and marked so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from dataloader.app.db.encoding import array, as_uuid, from_row, validate_text
from dataloader.app.db.statements import Executor
from dataloader.app.queue.job import Status

Period = Literal["1h", "24h", "7d"]

MAX_RECENT_RUNS = 40  # of each task
SHOWN_RECENT_RUNS = 20  # where many tasks are shown
MAX_TASK_NAMES = 2_000
MAX_USUAL_TASKS = 200
PERIODS: Mapping[Period, tuple[int, timedelta]] = {
    "1h": (60, timedelta(hours=1)),
    "24h": (900, timedelta(hours=24)),
    "7d": (3600, timedelta(days=7)),
}
# Totals of a period read the spans of the second length that begin in it, and those of the first before them.
_LONG_SPANS_SEC = {60: 900, 900: 3600, 3600: 3600}
_DEPTH_INTERVAL_MIN: Mapping[Period, int] = {"1h": 1, "24h": 5, "7d": 15}
_FIRST_BUCKET_SEC = 0.005  # upper bound of the first bucket; each further one is larger by the square root of two
MAX_FULL_SCAN_PAGES = 1_000  # 8 MB: scanned in a few milliseconds; beyond it counts may be estimates
SAMPLED_PAGES = 250
MAX_EXACT_COUNT = 2_000  # index entries of a group
MAX_WAITING_SCANNED = 10_000  # of each wait state
MAX_FAILURES_SCANNED = 500  # of a task, of each status

Group = tuple[str, Status]
UNSUCCESSFUL = frozenset({Status.FAILED, Status.CANCELED, Status.LOST})
_COUNTS = ("queued", "started", "succeeded", "failed", "canceled", "lost", "retried")


@dataclass(frozen=True)
class StatusCount:
    queue: str
    status: Status
    jobs: int
    exact: bool = True  # False: an estimate


@dataclass(frozen=True)
class DurationSummary:
    """Seconds that something took, summarized from a histogram: percentiles are up to a fifth off."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @classmethod
    def from_histogram(cls, buckets: Mapping[int, int], total_sec: float) -> DurationSummary:
        """Summarize the counts of each bucket; the bucket widths grow by the square root of two."""
        count = sum(buckets.values())
        if not count:
            return cls()
        percentiles = (round(_percentile(buckets, share * count), 3) for share in (0.5, 0.95, 0.99))
        return cls(count, round(total_sec / count, 3), *percentiles)


@dataclass(frozen=True, kw_only=True)
class PeriodStatistics:
    """What happened to jobs in a period. `retried` counts failed attempts that were not the last; `failure_rate` is the
    share of failed and lost jobs among those that succeeded, failed or were lost."""

    queued: int = 0
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    lost: int = 0
    retried: int = 0
    failure_rate: float | None = None
    wait_time: DurationSummary = DurationSummary()
    run_time: DurationSummary = DurationSummary()

    @property
    def finished(self) -> int:
        return self.succeeded + self.failed + self.canceled + self.lost


@dataclass(frozen=True)
class ChartPoint:
    """One bucket of a chart."""

    at: datetime
    statistics: PeriodStatistics


@dataclass(frozen=True)
class QueueDepth:
    """The largest number of jobs in each state within a bucket."""

    at: datetime
    ready: int
    scheduled: int
    blocked: int
    running: int
    limited: int
    waiting: int
    oldest_ready_sec: float | None


@dataclass(frozen=True)
class Chart:
    """Statistics over a period in buckets of `bucket_sec`; empty buckets are left out. `depths` is empty for a task."""

    bucket_sec: int
    since: datetime
    until: datetime
    points: list[ChartPoint]
    depths: list[QueueDepth]


@dataclass(frozen=True)
class RecentRun:
    """How a recent attempt of a task ended: succeeded, failed, canceled, lost, or retried (failed, but not the
    last)."""

    job_id: UUID
    queue: str
    finished_at: datetime
    outcome: str
    attempt: int | None
    duration_sec: float | None


@dataclass(frozen=True, kw_only=True)
class TaskFailureGroup:
    """Failed and lost jobs of a task with one fingerprint. `job_id` and `error` are of the job that failed last."""

    fingerprint: str | None
    jobs: int
    last_at: datetime
    job_id: UUID
    error: str | None


@dataclass(frozen=True)
class TaskFailures:
    """The failures of a task in a period by fingerprint, the largest group first; without `complete` of the newest
    ones."""

    groups: list[TaskFailureGroup]
    complete: bool

    @property
    def jobs(self) -> int:
        return sum(group.jobs for group in self.groups)


@dataclass(frozen=True)
class RowSummary:
    """How many rows the last run produced, and how many the middle half of the runs before it."""

    last: int
    low: int | None
    high: int | None

    @classmethod
    def of(cls, rows: Sequence[int]) -> RowSummary | None:
        """Summarize the rows of runs, of which the last one comes first; None: no run has reported any."""
        if not rows:
            return None
        before = sorted(rows[1:])
        if not before:
            return cls(rows[0], None, None)
        return cls(rows[0], before[len(before) // 4], before[-1 - len(before) // 4])


@dataclass(frozen=True)
class RunDatasets:
    """What runs of a task have reported: the datasets that they updated and read, the rows that each job produced, and
    these in short."""

    produced: list[str]
    consumed: list[str]
    rows: dict[UUID, int]
    summary: RowSummary | None


@dataclass(frozen=True)
class WaitingCounts:
    """Queued jobs by task, at `counted_at`; without `exact` there are more than were counted."""

    by_task: dict[str, int]
    exact: bool
    counted_at: datetime


@dataclass(frozen=True)
class DatabaseMetrics:
    """Dead and live rows by table, and what holds up vacuum and notifications."""

    dead_rows: dict[str, int]  # by table
    live_rows: dict[str, int]
    oldest_transaction_sec: float
    oldest_snapshot_xids: int
    notification_queue_usage: float  # from 0 to 1
    live_workers: int


class JobCounts:
    """Counts jobs. Every call queries the database; callers cache the result."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def by_queue(self) -> list[StatusCount]:
        """The number of jobs by queue and status, without zeros."""
        ((pages,),) = self._executor.execute("count_pages", {"schema": self._executor.schema})
        if pages <= MAX_FULL_SCAN_PAGES:
            return [from_row(StatusCount, row, exact=True) for row in self._executor.execute("count_all")]
        counted, capped_groups, capped_statuses = self._count_exact()
        percent = min(100.0, 100.0 * SAMPLED_PAGES / pages)
        sample = self._executor.execute("count_sample", {"percent": percent})
        estimated = Counter({(queue, Status(status)): round(jobs * 100 / percent) for queue, status, jobs in sample})
        counts = []
        for group in sorted(counted.keys() | estimated.keys()):
            queue, status = group
            exact = status is not Status.SUCCEEDED and status not in capped_statuses and group not in capped_groups
            jobs = counted[group] if exact else max(counted[group], estimated[group])
            if jobs:
                counts.append(StatusCount(queue, status, jobs, exact))
        return counts

    def oldest_ready(self) -> dict[str, float]:
        """Seconds since the oldest ready job of each queue became due."""
        return {row[0]: row[1] for row in self._executor.execute("oldest_ready")}

    def waiting_by_task(self) -> WaitingCounts:
        """Queued jobs by task, counted up to a limit of each wait state."""
        rows = self._executor.execute("waiting_by_task", {"max_scanned": MAX_WAITING_SCANNED})
        by_task: Counter[str] = Counter()
        by_wait_state: Counter[str] = Counter()
        for task, wait_state, jobs in rows:
            by_task[task] += jobs
            by_wait_state[wait_state] += jobs
        is_exact = max(by_wait_state.values(), default=0) < MAX_WAITING_SCANNED
        return WaitingCounts(dict(by_task), is_exact, datetime.now(UTC))

    def _count_exact(self) -> tuple[Counter[Group], set[Group], set[Status]]:
        """Return exact counts, the groups that reached the limit, and the statuses whose groups may be incomplete."""
        counted: Counter[Group] = Counter()
        capped_groups: set[Group] = set()
        capped_statuses: set[Status] = set()
        for queue, status, jobs, more in self._executor.execute("count_exact", {"max_exact": MAX_EXACT_COUNT}):
            if queue is None:
                capped_statuses |= UNSUCCESSFUL if status == "unsuccessful" else {Status(status)}
                continue
            group = (queue, Status(status))
            counted[group] += jobs
            if more:
                capped_groups.add(group)
        return counted, capped_groups, capped_statuses


class Statistics:
    """Reads statistics. The cost of reading does not depend on the number of jobs."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._execute = executor.execute

    def chart(
        self,
        period: Period,
        *,
        queue: str | None = None,
        task: str | None = None,
        has_depths: bool = True,
        has_times: bool = True,
    ) -> Chart:
        bucket_sec, length = PERIODS[period]
        now: datetime = self._execute("database_time")[0][0]
        parameters = {
            "span": bucket_sec,
            "since": now - length,
            "queue": queue,
            "task": task,
            "has_times": has_times,
            "interval_min": _DEPTH_INTERVAL_MIN[period],
        }
        points = group_by_first(self._execute("statistics_series", parameters))
        has_depths = has_depths and task is None
        depths = [QueueDepth(*row) for row in self._execute("depth_series", parameters)] if has_depths else []
        chart_points = [ChartPoint(at, statistics_from_rows(points[at])) for at in sorted(points)]
        return Chart(bucket_sec, now - length, now, chart_points, depths)

    def by_queue(self, period: Period = "1h", *, queue: str | None = None) -> dict[str, PeriodStatistics]:
        return self._totals(period, by_task=False, queue=queue, task=None, has_times=True)

    def by_task(
        self, period: Period = "24h", *, task: str | None = None, queue: str | None = None, has_times: bool = True
    ) -> dict[str, PeriodStatistics]:
        """Without `has_times` the counts alone, which are a seventh of the rows."""
        return self._totals(period, by_task=True, queue=queue, task=task, has_times=has_times)

    def last_minutes(self, minutes: int) -> dict[str, PeriodStatistics]:
        """The statistics of the last minutes by queue."""
        filters = {"by_task": False, "queue": None, "task": None}
        parameters = {"span": 60, "long_span": 60, "period_sec": minutes * 60.0, "has_times": True, **filters}
        totals = group_by_first(self._execute("statistics_totals", parameters))
        return {name: statistics_from_rows(rows) for name, rows in totals.items()}

    def recent_runs(self, *, task: str | None = None, limit: int = SHOWN_RECENT_RUNS) -> dict[str, list[RecentRun]]:
        """The last attempts of each task, newest first."""
        runs = group_by_first(self._execute("recent_runs", {"task": task, "limit": limit}))
        return {name: [from_row(RecentRun, row) for row in rows] for name, rows in runs.items()}

    def usual_sec(self, tasks: Sequence[str]) -> dict[str, float]:
        """The median duration of the last successful runs of each task that has one, of at most 200 tasks."""
        parameters = {"tasks": array(tasks[:MAX_USUAL_TASKS]), "limit": MAX_RECENT_RUNS}
        return dict(self._execute("usual_durations", parameters))

    def task_names(self) -> list[str]:
        """The tasks of which an attempt has ended."""
        return [row[0] for row in self._execute("task_names", {"limit": MAX_TASK_NAMES})]

    def failures_of_task(self, task: str, *, period_sec: float) -> TaskFailures:
        """Failed and lost jobs of a task that ended in the period, by fingerprint."""
        parameters = {
            "task": validate_text("task", task),
            "period_sec": period_sec,
            "max_scanned": MAX_FAILURES_SCANNED,
        }
        rows = self._execute("failures_of_task", parameters)
        groups = [from_row(TaskFailureGroup, row[1:]) for row in rows]
        return TaskFailures(groups, not any(row[0] for row in rows))

    def datasets_of_runs(self, runs: Sequence[RecentRun]) -> RunDatasets:
        """The datasets that these runs updated and read, and the rows of each run."""
        names: dict[str, dict[str, None]] = {"produced": {}, "consumed": {}}
        rows: dict[UUID, int] = {}
        jobs = array({str(run.job_id) for run in runs})
        for kind, dataset, raw_id, count in self._execute("datasets_of_runs", {"jobs": jobs}):
            names[kind][dataset] = None
            if kind == "produced" and count is not None:
                job_id = as_uuid(raw_id)
                rows[job_id] = rows.get(job_id, 0) + int(count)
        rows_of_runs = [rows[run.job_id] for run in runs if run.outcome == "succeeded" and run.job_id in rows]
        return RunDatasets([*names["produced"]], [*names["consumed"]], rows, RowSummary.of(rows_of_runs))

    def database_metrics(self) -> DatabaseMetrics:
        return from_row(DatabaseMetrics, self._execute("database_metrics", {"schema": self._executor.schema})[0])

    def _totals(self, period: Period, **parameters: Any) -> dict[str, PeriodStatistics]:
        bucket_sec, length = PERIODS[period]
        spans = {"span": bucket_sec, "long_span": _LONG_SPANS_SEC[bucket_sec]}
        parameters |= {**spans, "period_sec": length.total_seconds()}
        totals = group_by_first(self._execute("statistics_totals", parameters))
        return {name: statistics_from_rows(rows) for name, rows in totals.items()}


def group_by_first(rows: Iterable[tuple[Any, ...]]) -> dict[Any, list[tuple[Any, ...]]]:
    groups: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for key, *rest in rows:
        groups[key].append(tuple(rest))
    return groups


def statistics_from_rows(rows: Iterable[tuple[Any, ...]]) -> PeriodStatistics:
    """Each row has a measure, its histogram buckets with their counts, and its total of seconds."""
    counts: dict[str, int] = defaultdict(int)
    durations = {"waited": DurationSummary(), "ran": DurationSummary()}
    for measure, buckets, bucket_counts, total_sec in rows:
        if measure in durations:
            histogram = dict(zip(buckets, bucket_counts, strict=True))
            durations[measure] = DurationSummary.from_histogram(histogram, total_sec)
        else:
            counts[measure] = sum(bucket_counts)
    unsuccessful = counts["failed"] + counts["lost"]
    decided = counts["succeeded"] + unsuccessful
    return PeriodStatistics(
        **{name: counts[name] for name in _COUNTS},
        failure_rate=round(unsuccessful / decided, 4) if decided else None,
        wait_time=durations["waited"],
        run_time=durations["ran"],
    )


def _percentile(buckets: Mapping[int, int], rank: float) -> float:
    """Interpolate within the bucket that holds the value of this rank."""
    for bucket in sorted(buckets):
        if rank <= buckets[bucket]:
            low, high = (0.0 if bucket == 0 else _bucket_upper_bound(bucket - 1)), _bucket_upper_bound(bucket)
            return low + (high - low) * rank / buckets[bucket]
        rank -= buckets[bucket]
    return _bucket_upper_bound(max(buckets))


def _bucket_upper_bound(bucket: int) -> float:
    return float(_FIRST_BUCKET_SEC * 2 ** (bucket / 2))


def read_last_hour(executor: Executor) -> dict[str, PeriodStatistics]:
    """The counts of the last hour by task."""
    return Statistics(executor).by_task("1h", has_times=False)


def read_recent_runs(executor: Executor) -> dict[str, list[RecentRun]]:
    return Statistics(executor).recent_runs()
