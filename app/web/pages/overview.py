"""The overview page: problems first, then running jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode
from uuid import UUID

from flask import Response

from app.admin.alerts import Alerts
from app.admin.breakers import Breakers, BreakerState, BreakerStatus
from app.admin.job_search import Filter, JobSearch, JobSummary, TooManyActiveJobs
from app.admin.queues import Queues, QueueState, QueueStatus, WorkerStatus
from app.admin.statistics import PeriodStatistics, RecentRun, Statistics
from app.db.statements import Executor
from app.queue.job import Status
from app.web.options import WebOptions
from app.web.pages.base import PageRenderer, progress_summary
from app.web.pages.formatter import Formatter
from app.web.routing import ApiBlueprint
from app.wording import format_count

MAX_RUNNING_SHOWN = 50
_LONG_WAIT_SEC = 300.0
_MAX_HEARTBEAT_AGE_SEC = 60.0
_STALLED_AFTER_SEC = 60.0  # older progress shows no remaining time; five times as old, it is an issue
_LONG_RUN_SEC, _LONG_RUN_FACTOR = 600.0, 3  # a run is long after both: the seconds, and so many times the longest run
_STARTUP_PERIOD = timedelta(seconds=20)  # in which a worker may still connect its listener
_MAX_FAILURE_RATE = 0.2
_MAX_ISSUES = 20  # of one kind; the rest is one line


@dataclass(frozen=True)
class Issue:
    """A problem to look at, with a link to its page."""

    text: str
    link: str | None = None


def create_overview_page(source: Executor, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("overview_page", options)
    search, queues, statistics, alerts = JobSearch(source), Queues(source), Statistics(source), Alerts(source)
    breakers = Breakers(source)

    @pages.page("/")
    def show_overview() -> Response:
        """Show problems and running jobs."""
        running, stalled_sec = _running_jobs(search), search.stalled(min_sec=_STALLED_AFTER_SEC)
        starts = search.attempt_starts(running)
        statuses, workers, formatter = queues.statuses(), queues.workers(), pages.formatter
        issues = [
            *_breaker_issues(breakers.statuses()),
            *(Issue(f"Alert {alert.name}: {alert.detail}") for alert in alerts.all(limit=_MAX_ISSUES)),
            *_failure_issues(statistics.by_task("1h")),
            *_stalled_issues(running, stalled_sec, statistics.recent_runs(), formatter),
            *_queue_issues(statuses, formatter),
            *_worker_issues(workers, formatter),
        ]
        last_hours = [status.last_hour for status in statuses]

        def row(job: JobSummary) -> tuple[JobSummary, datetime | None, dict[str, Any] | None]:
            started_at = starts.get(job.job_id, job.started_at)
            return job, started_at, progress_summary(job.progress, started_at, stalled_sec=stalled_sec.get(job.job_id))

        return pages.render(
            "overview.html",
            issues=issues,
            running=[row(job) for job in running],
            more_running=max(0, sum(status.running for status in statuses) - len(running)),
            queues=statuses,
            workers=[worker for worker in workers if worker.alive],
            last_hour={
                "succeeded": sum(hour.succeeded for hour in last_hours),
                "failed": sum(hour.failed + hour.lost for hour in last_hours),
            },
        )

    return pages.blueprint


def _running_jobs(search: JobSearch) -> list[JobSummary]:
    """The jobs that run longest, or the newest running jobs when there are too many to sort."""
    running = Filter(status=frozenset({Status.RUNNING}))
    try:
        return search.page(running, sort="started_at", limit=MAX_RUNNING_SHOWN).jobs
    except TooManyActiveJobs:
        return search.page(running, limit=MAX_RUNNING_SHOWN).jobs


def _breaker_issues(breakers: list[BreakerStatus]) -> Iterator[Issue]:
    for breaker in islice((b for b in breakers if b.state is not BreakerState.CLOSED), _MAX_ISSUES):
        if breaker.state is BreakerState.OPEN and breaker.probe_at is None:
            by = f" by {breaker.changed_by}" if breaker.changed_by else ""
            what = f"Task {breaker.task} is paused{by}"
        else:
            what = f"The circuit breaker of {breaker.task} is {breaker.state.value.replace('_', '-')}"
        reason = f": {breaker.reason}" if breaker.reason else ""
        waiting = f"; {format_count(breaker.waiting, 'job')} waiting" if breaker.waiting else ""
        yield Issue(f"{what}{reason}{waiting}", "/limits#breakers")


def _failure_issues(by_task: dict[str, PeriodStatistics]) -> Iterator[Issue]:
    for task, counts in sorted(by_task.items()):
        if (counts.failure_rate or 0.0) >= _MAX_FAILURE_RATE:
            failed, runs = counts.failed + counts.lost, counts.finished - counts.canceled
            text = f"{task} failed {failed} of {format_count(runs, 'time')} in the last hour"
            yield Issue(text, f"/tasks/{quote(task, safe='')}")


def _stalled_issues(
    running: list[JobSummary], stalled_sec: dict[UUID, float], runs: dict[str, list[RecentRun]], formatter: Formatter
) -> Iterator[Issue]:
    now = datetime.now(UTC)
    issues = (
        Issue(f"{job.task}: {text}", f"/jobs/{job.job_id}")
        for job in running
        if (text := _stalled_text(job, now, stalled_sec.get(job.job_id, 0.0), runs.get(job.task, []), formatter))
    )
    yield from islice(issues, _MAX_ISSUES)
    if next(issues, None) is not None:
        yield Issue("More running jobs have issues", "/jobs?status=running")


def _stalled_text(
    job: JobSummary, now: datetime, stalled_sec: float, runs: list[RecentRun], formatter: Formatter
) -> str | None:
    """Describe what is wrong with a running job, or return None."""
    heartbeat_age_sec = (now - (job.heartbeat_at or job.started_at or now)).total_seconds()
    if heartbeat_age_sec > _MAX_HEARTBEAT_AGE_SEC:
        return f"no heartbeat for {formatter.duration(heartbeat_age_sec)}"
    if job.cancel_requested:
        return "cancel requested, still running"
    if stalled_sec >= 5 * _STALLED_AFTER_SEC:
        return f"no progress for {formatter.duration(stalled_sec)}"
    elapsed_sec = (now - job.started_at).total_seconds() if job.started_at else 0.0
    longest_sec = max((run.duration_sec or 0.0 for run in runs if run.outcome == "succeeded"), default=0.0)
    if longest_sec and job.attempt == 1 and elapsed_sec > max(_LONG_RUN_SEC, _LONG_RUN_FACTOR * longest_sec):
        usual = f"its last {format_count(len(runs), 'run')} took {formatter.duration(longest_sec)} at most"
        return f"running for {formatter.duration(elapsed_sec)}; {usual}"
    return None


def _queue_issues(statuses: list[QueueStatus], formatter: Formatter) -> Iterator[Issue]:
    for status in statuses:
        link = "/jobs?" + urlencode({"queue": status.queue, "status": "queued"})
        ready = f"{'' if status.ready_exact else 'about '}{format_count(status.ready, 'ready job')}"
        wait_sec = status.oldest_ready_sec or 0.0
        if status.state is not QueueState.OPEN:
            note = f": {status.note}" if status.note else ""
            actor = f" by {status.changed_by}" if status.changed_by else ""
            yield Issue(f"Queue {status.queue} is {status.state}{actor}{note}; {ready}", "/queues")
        elif (status.ready or status.scheduled or status.blocked or status.limited) and status.workers == 0:
            yield Issue(f"No live worker serves queue {status.queue}; {ready}", link)
        elif wait_sec > _LONG_WAIT_SEC:
            yield Issue(f"The oldest job of queue {status.queue} is ready for {formatter.duration(wait_sec)}", link)


def _worker_issues(workers: list[WorkerStatus], formatter: Formatter) -> Iterator[Issue]:
    for worker in workers:
        if not worker.alive:
            lost = f"; it ran {format_count(len(worker.running), 'job')}" if worker.running else ""
            last_seen = formatter.time_ago(worker.last_beat_at)
            yield Issue(f"Worker {worker.name} was last seen {last_seen}{lost}", "/workers")
        elif worker.listener not in (None, "listening") and worker.last_beat_at - worker.started_at > _STARTUP_PERIOD:
            text = f"Worker {worker.name} is not receiving notifications ({worker.listener}), polling"
            yield Issue(text, "/workers")
    if not any(worker.alive for worker in workers):
        yield Issue("No live worker: no job will run", "/workers")
