"""The first page: what is wrong, before anything else; then what runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode
from uuid import UUID

from flask import Response

from app.queue.alerts import Alerts, Firing
from app.queue.job import Status
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.queue.lists import Filter, JobRow, Lists, TooManyLive
from app.queue.queues import QueueLine, Queues, QueueState, WorkerLine
from app.queue.rollups import Happened, LastRun, Rollups
from app.web.operations import HTML, Subject
from app.web.pages.frame import Frame, Unreadable, Words, progress_of
from app.wording import counted

MOST_RUNNING = 50
_LONG_WAIT_SEC = 300.0  # a ready job that waits longer is told of
_NO_HEARTBEAT_SEC = 60.0
_STILL_SEC = 60.0  # progress that has not changed for longer tells no rate; five times that is a problem
_LONG_RUN_SEC, _LONG_RUN_TIMES = 600.0, 3  # and so many times as long as any of its task's last runs
_JUST_STARTED = timedelta(seconds=20)  # and connections are still being made
_BAD_RATE = 0.2
_FEW_MOST = 20  # problems of one kind; a storm is told in one line more


@dataclass(frozen=True)
class Problem:
    """Something to look at, and where."""

    text: str
    link: str | None = None


def now(source: Source, frame: Frame) -> Subject:
    subject = Subject("now", "", frame.options.max_json_depth)
    lists, queues, rollups, alerts = Lists(source), Queues(source), Rollups(source), Alerts(source)
    words = frame.words

    @subject.get("/", answer=str, media_type=HTML, scope=Scope.READ)
    def now_page() -> Response:
        """See what is wrong, and what runs."""
        try:
            return frame.show("now.html", **_facts())
        except Unreadable as error:
            return frame.away("The tables", error)

    def _facts() -> dict[str, Any]:
        running, still = _running(), lists.standing_still(least_sec=_STILL_SEC)
        began = lists.began(running)
        lines, workers, tasks = queues.lines(), queues.workers(), rollups.by_task("1h")
        problems = [
            *_alerts(alerts.all(limit=_FEW_MOST)),
            *_failing(tasks),
            *_stuck(running, still, rollups.last_runs(), words),
            *_queues(lines, words),
            *_workers(workers, words),
        ]
        hour = [line.happened for line in lines]
        return {
            "problems": problems,
            "running": [
                (
                    row,
                    began.get(row.id, row.started_at),
                    progress_of(row.progress, began.get(row.id, row.started_at), still=still.get(row.id)),
                )
                for row in running
            ],
            "more_running": max(0, sum(line.running for line in lines) - len(running)),
            "lines": lines,
            "workers": [worker for worker in workers if worker.alive],
            "hour": {
                "succeeded": sum(it.succeeded for it in hour),
                "failed": sum(it.failed + it.lost for it in hour),
            },
        }

    def _running() -> list[JobRow]:
        """Those that run longest; where there are too many to be sorted, those that were made last."""
        wanted = Filter(status=frozenset({Status.RUNNING}))
        try:
            return lists.page(wanted, sort="started_at", limit=MOST_RUNNING).jobs
        except TooManyLive:
            return lists.page(wanted, limit=MOST_RUNNING).jobs

    return subject


def _alerts(firing: list[Firing]) -> Iterator[Problem]:
    for alert in firing:
        yield Problem(f"Alert {alert.name}: {alert.detail}")


def _failing(tasks: dict[str, Happened]) -> Iterator[Problem]:
    for name, happened in sorted(tasks.items()):
        rate = happened.failure_rate or 0.0
        if rate >= _BAD_RATE:
            bad, all_ = happened.failed + happened.lost, happened.ended - happened.canceled
            yield Problem(
                f"{name} failed {bad} of {counted(all_, 'time')} in the last hour", f"/tasks/{quote(name, safe='')}"
            )


def _stuck(
    running: list[JobRow], still: dict[UUID, float], runs: dict[str, list[LastRun]], words: Words
) -> Iterator[Problem]:
    at = datetime.now(UTC)
    found = (
        Problem(f"{job.task} {told}", f"/jobs/{job.id}")
        for job in running
        if (told := _stands(job, at, still.get(job.id, 0.0), runs.get(job.task, []), words))
    )
    yield from islice(found, _FEW_MOST)
    if next(found, None) is not None:
        yield Problem("More running jobs are in trouble", "/jobs?status=running")


def _stands(job: JobRow, at: datetime, still: float, runs: list[LastRun], words: Words) -> str | None:
    """What is wrong with a running job; None: nothing that could be seen."""
    quiet = (at - (job.heartbeat_at or job.started_at or at)).total_seconds()
    if quiet > _NO_HEARTBEAT_SEC:
        return f"has had no heartbeat for {words.took(quiet)}"
    if job.cancel_requested:
        return "was asked to stop and still runs"
    if still >= 5 * _STILL_SEC:
        return f"stands still: its progress has not changed for {words.took(still)}"
    ran = (at - job.started_at).total_seconds() if job.started_at else 0.0
    longest = max((run.ran_sec or 0.0 for run in runs if run.outcome == "succeeded"), default=0.0)
    if longest and job.attempt == 1 and ran > max(_LONG_RUN_SEC, _LONG_RUN_TIMES * longest):
        usual = f"none of its last {counted(len(runs), 'run')} took longer than {words.took(longest)}"
        return f"has run for {words.took(ran)}; {usual}"
    return None


def _queues(lines: list[QueueLine], words: Words) -> Iterator[Problem]:
    for line in lines:
        link = "/jobs?" + urlencode({"queue": line.queue, "status": "queued"})
        waits = line.oldest_ready_sec or 0.0
        if line.rule.state is not QueueState.OPEN:
            note = f": {line.rule.note}" if line.rule.note else ""
            by = f" by {line.rule.changed_by}" if line.rule.changed_by else ""
            yield Problem(f"The queue {line.queue} is {line.rule.state}{by}{note}; {_waiting(line)}", "/queues")
        elif (line.ready or line.timed or line.parked) and line.workers == 0:
            yield Problem(f"No live worker works on the queue {line.queue}; {_waiting(line)}", link)
        elif waits > _LONG_WAIT_SEC:
            yield Problem(f"The oldest job of {line.queue} has waited for {words.took(waits)}", link)


def _waiting(line: QueueLine) -> str:
    about = "" if line.ready_exact else "about "
    return f"{about}{counted(line.ready, 'job')} {'waits' if line.ready == 1 else 'wait'}"


def _workers(workers: list[WorkerLine], words: Words) -> Iterator[Problem]:
    for worker in workers:
        if not worker.alive:
            holds = f"; it held {counted(len(worker.running), 'job')}" if worker.running else ""
            yield Problem(f"The worker {worker.name} was last seen {words.ago(worker.seen_at)}{holds}", "/workers")
        elif worker.listener not in (None, "listening") and worker.seen_at - worker.started_at > _JUST_STARTED:
            yield Problem(f"The worker {worker.name} hears no notifications ({worker.listener}); it polls", "/workers")
    if not any(worker.alive for worker in workers):
        yield Problem("No worker is alive: nothing will run", "/workers")
