"""The part of the overview: queues that are not open, have no worker, or whose jobs wait long."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlencode

from dataloader.app.acts.service_problems import Impact, Problem, ProblemAct
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.queue.queues import QueueState
from dataloader.app.state.queues import read_queue_statuses
from dataloader.app.ui.formatter import Formatter
from dataloader.app.wording import format_count

_LONG_WAIT_SEC = 300.0
_MAX_AGE_SEC = 1_000 * 365 * 86_400.0  # another service may have created a job in the year 4000 BC


def queue_problems(reads: SharedReads) -> Iterator[Problem]:
    for status in reads.get(read_queue_statuses):
        subject = ("queue", status.queue)
        jobs = ProblemAct("Jobs", "/jobs?" + urlencode({"queue": status.queue, "status": "queued"}))
        ready = f"{'' if status.ready_exact else 'about '}{format_count(status.ready, 'ready job')}"
        wait_sec = status.oldest_ready_sec or 0.0
        since = reads.at - timedelta(seconds=min(wait_sec, _MAX_AGE_SEC)) if wait_sec else None
        if status.state is not QueueState.OPEN:
            by = f" by {status.changed_by}" if status.changed_by else ""
            note = f": {status.note}" if status.note else ""
            yield Problem(
                kind=status.state.value,
                subject=subject,
                impact=Impact.WAITING,
                before="Queue ",
                after=f" is {status.state.value}{by}{note}; {ready}",
                since=status.changed_at,
                acts=(jobs, ProblemAct("Resume", "/queues", {"queue": status.queue, "state": "open"})),
                covers=frozenset({"queue_age"}),
            )
        elif (status.ready or status.scheduled or status.blocked or status.limited) and status.workers == 0:
            yield Problem(
                kind="no worker",
                subject=subject,
                impact=Impact.WAITING,
                state="alert" if status.ready else "warning",
                before="No live worker serves queue ",
                after=f": {ready}",
                since=since,
                acts=(jobs, ProblemAct("Workers", "/workers")),
                covers=frozenset({"queue_age", "queues_without_worker"}),
            )
        elif wait_sec > _LONG_WAIT_SEC:
            yield Problem(
                kind="long wait",
                subject=subject,
                impact=Impact.WAITING,
                before="The oldest job of queue ",
                after=f" is ready for {Formatter.duration(wait_sec)}; {ready}",
                since=since,
                acts=(jobs, ProblemAct("Workers", "/workers")),
                covers=frozenset({"queue_age"}),
            )


def count_paused(reads: SharedReads) -> int:
    return sum(status.state is not QueueState.OPEN for status in reads.get(read_queue_statuses))
