"""The overview page: problems first, then numbers, running jobs, throughput, what is due next, and the queues."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from flask import Response

from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.features.jobs.job_search import (
    Filter,
    JobSearch,
    JobSummary,
    read_running_jobs,
    read_stalled_sec,
)
from dataloader.app.features.overview.notes import NoteReader
from dataloader.app.features.overview.problems import ProblemReader, count_open
from dataloader.app.features.overview.throughput import Throughput
from dataloader.app.features.schedules.calendar import is_frequent
from dataloader.app.features.schedules.reader import ScheduleReader
from dataloader.app.features.schedules.rows import Schedule
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.state.queues import QueueStatus, read_queue_statuses, read_worker_statuses
from dataloader.app.state.statistics import Statistics
from dataloader.app.ui.base import PageRenderer, progress_summary

MAX_RUNNING_SHOWN = 10
_MAX_PROBLEMS_SHOWN = 5  # the rest is folded
_MAX_DUE_SHOWN = 5
_MAX_DUE_READ = 300
_MAX_QUEUES_SHOWN = 10


def create_overview_page(site: Site) -> ApiBlueprint:
    source, pipelines, options = site.executor, site.pipelines, site.options
    pages = PageRenderer("overview_page", options)
    reader, search, statistics = ProblemReader(site.features), JobSearch(source), Statistics(source)
    schedules, notes = ScheduleReader(source, pipelines, options), NoteReader(site)

    @pages.page("/")
    def show_overview() -> Response:
        """Show problems, running jobs, throughput, what is due next, and the queues."""
        reads = SharedReads(source)
        problems = reader.read(reads)
        queues, stalled = reads.get(read_queue_statuses), reads.get(read_stalled_sec)
        shown = reads.get(read_running_jobs)[:MAX_RUNNING_SHOWN]
        starts = search.attempt_starts(shown)
        throughput = Throughput.from_chart(statistics.chart("24h", has_depths=False, has_times=False))
        due, frequent = _split_due(schedules)
        is_new = not _has_jobs(queues) and not throughput.has_ended and not search.page(Filter(), limit=1).jobs

        def row(job: JobSummary) -> tuple[JobSummary, datetime | None, dict[str, Any] | None]:
            started_at, stalled_sec = starts.get(job.job_id, job.started_at), stalled.get(job.job_id)
            return job, started_at, progress_summary(job.progress, started_at, stalled_sec=stalled_sec)

        alive = [worker for worker in reads.get(read_worker_statuses) if worker.alive]
        open_count = count_open(problems)
        return pages.render(
            "overview.html",
            is_new=is_new,
            problems=problems[:open_count],
            handled=problems[open_count:],
            max_problems=_MAX_PROBLEMS_SHOWN,
            problem_count=lambda: open_count,
            alert_count=sum(len(problem.alerts) for problem in problems),
            notes=notes.get(),
            running=[row(job) for job in shown],
            running_count=sum(status.running for status in queues),
            queues=sorted(queues, key=_attention, reverse=True)[:_MAX_QUEUES_SHOWN],
            all_queues=queues,
            threads=sum(worker.threads for worker in alive),
            workers=alive,
            succeeded=sum(status.last_hour.succeeded for status in queues),
            failed=sum(status.last_hour.failed + status.last_hour.lost for status in queues),
            oldest_ready_sec=max((status.oldest_ready_sec or 0.0 for status in queues), default=0.0),
            throughput=throughput,
            due=due,
            frequent=frequent,
        )

    return pages.blueprint


def _split_due(reader: ScheduleReader) -> tuple[list[Schedule], list[Schedule]]:
    """The schedules that fire next, and those that fire hourly or more often, which would hide the others."""
    rare: list[Schedule] = []
    frequent: list[Schedule] = []
    for schedule in reader.schedules.due_next(limit=_MAX_DUE_READ):
        (frequent if is_frequent(reader, schedule) else rare).append(schedule)
    return rare[:_MAX_DUE_SHOWN], frequent


def _attention(status: QueueStatus) -> tuple[bool, int, int]:
    """The queues with work and without a worker first, then the busy ones."""
    return bool(status.ready) and status.workers == 0, status.running + status.ready, status.last_hour.finished


def _has_jobs(queues: Iterable[QueueStatus]) -> bool:
    return any(status.running or status.ready or status.scheduled or status.blocked for status in queues)
