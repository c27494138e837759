"""The dashboard: pages for people, which ask the queue the same questions as the API.

frame.py    what all pages share: whole pages and the parts that refresh themselves, forms, words for times and sizes
now.py      what is wrong, and what runs
jobs.py     lists, search, and acts on all that match
job.py      one job: its tries, its log, why it waits; cancel, retry, clone
log.py      the whole log of a job, searched
tasks.py    each task's last runs, and a form to start one
queues.py   queues and workers: how they do, and the acts on them
charts.py   what happened over time
trail.py    who did what

Everything essential works without scripts: links are links and acts are forms. With them, what is marked as live
refreshes itself every two seconds, unless somebody is at work in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.queue.jobqueue import JobQueue
from app.web.operations import Subject
from app.web.options import WebOptions
from app.web.pages.charts import charts
from app.web.pages.frame import Frame
from app.web.pages.job import job
from app.web.pages.jobs import jobs
from app.web.pages.log import log
from app.web.pages.now import now
from app.web.pages.queues import queues
from app.web.pages.tasks import tasks
from app.web.pages.trail import trail
from pipelines.contract import Pipelines

__all__ = ["pages"]


def pages(queue: JobQueue, pipelines: Pipelines, options: WebOptions) -> Sequence[Subject]:
    """All pages, each a subject of its own."""
    frame = Frame(options)
    source = queue.source
    return (
        now(source, frame),
        jobs(source, frame),
        job(queue, pipelines, frame),
        log(queue, frame),
        tasks(queue, pipelines, frame),
        queues(source, frame),
        charts(source, frame),
        trail(source, frame),
    )
