"""The part of the overview: running jobs that are not well."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

from dataloader.app.acts.service_problems import MAX_OF_A_KIND, Impact, Problem, ProblemAct
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.features.jobs.job_search import STALLED_AFTER_SEC, JobSummary, read_running_jobs, read_stalled_sec
from dataloader.app.state.queues import read_queue_statuses
from dataloader.app.state.statistics import read_recent_runs
from dataloader.app.ui.formatter import Formatter
from dataloader.app.wording import format_count

_MAX_AGE_SEC = 1_000 * 365 * 86_400.0  # another service may have written a time in the year 4000 BC
_MAX_HEARTBEAT_AGE_SEC = 60.0
_LONG_RUN_SEC, _LONG_RUN_FACTOR = 600.0, 3  # a run is long after both: the seconds, and so many times the longest run


def job_problems(reads: SharedReads) -> Iterator[Problem]:
    problems = (problem for job in reads.get(read_running_jobs) if (problem := _job_problem(job, reads)))
    yield from islice(problems, MAX_OF_A_KIND)
    if next(problems, None) is not None:
        yield Problem(
            kind="stalled",
            subject=("jobs", "running"),
            impact=Impact.DELAYED,
            before="More running jobs have problems",
            acts=(ProblemAct("Jobs", "/jobs?status=running"),),
        )


def _job_problem(job: JobSummary, reads: SharedReads) -> Problem | None:
    """Describe what is wrong with a running job, or return None."""
    now, runs = reads.at, reads.get(read_recent_runs).get(job.task, [])
    stalled_sec = min(reads.get(read_stalled_sec).get(job.job_id, 0.0), _MAX_AGE_SEC)
    on = f" on {job.worker}" if job.worker else ""
    heartbeat_at = job.heartbeat_at or job.started_at or now
    longest_sec = max((run.duration_sec or 0.0 for run in runs if run.outcome == "succeeded"), default=0.0)
    elapsed_sec = (now - job.started_at).total_seconds() if job.started_at else 0.0
    if (now - heartbeat_at).total_seconds() > _MAX_HEARTBEAT_AGE_SEC:
        kind, text, since = "no heartbeat", f" runs{on} without a heartbeat", heartbeat_at
    elif job.cancel_requested:
        kind, text, since = "not canceled", f" still runs{on}, although its cancel is requested", None
    elif stalled_sec >= 5 * STALLED_AFTER_SEC:
        kind, text, since = "stalled", f" runs{on} without progress", now - timedelta(seconds=stalled_sec)
    elif longest_sec and job.attempt == 1 and elapsed_sec > max(_LONG_RUN_SEC, _LONG_RUN_FACTOR * longest_sec):
        usual = f"its last {format_count(len(runs), 'run')} took {Formatter.duration(longest_sec)} at most"
        kind, text, since = "long run", f" runs{on}; {usual}", job.started_at
    else:
        return None
    path = f"/jobs/{job.job_id}"
    link, cancel = ProblemAct("Job", path), ProblemAct("Cancel", f"{path}/cancel", {}, is_danger=True)
    return Problem(
        kind=kind,
        subject=("job", str(job.job_id)),
        impact=Impact.DELAYED,
        task=job.task,
        after=text,
        since=since,
        acts=(link,) if job.cancel_requested else (link, cancel),
        covers=frozenset({"stalled", "expired_leases"}),
    )


def count_running_jobs(reads: SharedReads) -> int:
    return sum(status.running for status in reads.get(read_queue_statuses))
