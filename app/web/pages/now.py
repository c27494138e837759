"""The first page: what is wrong, before anything else; then what runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from flask import Response

from app.errors import DataloaderError
from app.queue.alerts import Alerts, Firing
from app.queue.job import Status
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.queue.lists import Filter, JobRow, Lists
from app.queue.queues import QueueLine, Queues, QueueState, WorkerLine
from app.queue.rollups import Happened, Rollups
from app.web.operations import HTML, Subject
from app.web.pages.frame import Frame, progress_of

MOST_RUNNING = 50
_LONG_WAIT_SEC = 300.0  # a ready job that waits longer is told of
_NO_HEARTBEAT_SEC = 60.0
_BAD_RATE = 0.2


@dataclass(frozen=True)
class Problem:
    """Something to look at, and where."""

    text: str
    link: str | None = None


def now(source: Source, frame: Frame) -> Subject:
    subject = Subject("now", "", frame.options.max_json_depth)
    lists, queues, rollups, alerts = Lists(source), Queues(source), Rollups(source), Alerts(source)

    @subject.get("/", answer=str, media_type=HTML, scope=Scope.READ)
    def now_page() -> Response:
        """See what is wrong, and what runs."""
        try:
            return frame.show("now.html", **_facts())
        except DataloaderError as error:
            return frame.show("away.html", why=f"The tables cannot be read ({type(error).__name__}).")

    def _facts() -> dict[str, Any]:
        running = lists.page(Filter(status=frozenset({Status.RUNNING})), sort="started_at", limit=MOST_RUNNING).jobs
        lines, workers, tasks = queues.lines(), queues.workers(), rollups.by_task("1h")
        hour = list(rollups.by_queue("1h").values())
        return {
            "problems": list(_problems(alerts.all(limit=20), tasks, running, lines, workers)),
            "running": [(row, progress_of(row.progress, row.started_at)) for row in running],
            "more_running": max(0, sum(line.running for line in lines) - len(running)),
            "lines": lines,
            "workers": [worker for worker in workers if worker.alive],
            "hour": {
                "succeeded": sum(it.succeeded for it in hour),
                "failed": sum(it.failed + it.lost for it in hour),
            },
        }

    return subject


def _problems(
    firing: list[Firing],
    tasks: dict[str, Happened],
    running: list[JobRow],
    lines: list[QueueLine],
    workers: list[WorkerLine],
) -> Iterator[Problem]:
    for alert in firing:
        yield Problem(f"Alert {alert.name}: {alert.detail}")
    for name, happened in sorted(tasks.items()):
        rate = happened.failure_rate or 0.0
        if rate >= _BAD_RATE:
            bad, all_ = happened.failed + happened.lost, happened.ended - happened.canceled
            yield Problem(f"{name} failed {bad} of {all_} times in the last hour", f"/tasks/{quote(name, safe='')}")
    yield from _stuck(running)
    for line in lines:
        yield from _of_queue(line)
    yield from _of_workers(workers)


def _stuck(running: list[JobRow]) -> Iterator[Problem]:
    at = datetime.now(UTC)
    for job in running:
        quiet = (at - (job.heartbeat_at or job.started_at or at)).total_seconds()
        if quiet > _NO_HEARTBEAT_SEC:
            yield Problem(f"{job.task} has had no heartbeat for {round(quiet)} s", f"/jobs/{job.id}")
        elif job.cancel_requested:
            yield Problem(f"{job.task} was asked to stop and still runs", f"/jobs/{job.id}")


def _of_queue(line: QueueLine) -> Iterator[Problem]:
    link = "/jobs?" + urlencode({"queue": line.queue, "status": "queued"})
    waits = (line.oldest_ready_sec or 0.0) > _LONG_WAIT_SEC
    if line.rule.state is not QueueState.OPEN:
        yield Problem(f"The queue {line.queue} is {line.rule.state}; {line.ready} jobs wait", "/queues")
    elif (line.ready or line.timed or line.parked) and line.workers == 0:
        yield Problem(f"No live worker works on the queue {line.queue}; {line.ready} jobs wait", link)
    elif waits:
        yield Problem(f"The oldest job of {line.queue} has waited for {round(line.oldest_ready_sec or 0)} s", link)


def _of_workers(workers: list[WorkerLine]) -> Iterator[Problem]:
    for worker in workers:
        if not worker.alive:
            yield Problem(f"The worker {worker.name} has not been seen since {worker.seen_at:%H:%M:%S} UTC", "/workers")
        elif worker.listener not in (None, "listening"):
            yield Problem(f"The worker {worker.name} hears no notifications ({worker.listener}); it polls", "/workers")
    if not any(worker.alive for worker in workers):
        yield Problem("No worker is alive: nothing will run", "/workers")
