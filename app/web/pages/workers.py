"""The page of worker processes: what each serves and runs, what is wrong first; and the form that drains one."""

from __future__ import annotations

from uuid import UUID

from flask import Response
from pydantic import Field

from app.admin.queues import Queues, WorkerStatus
from app.db.statements import Executor
from app.web.options import WebOptions
from app.web.pages.base import FormModel, FormText, PageRenderer
from app.web.routing import ApiBlueprint


class WorkerForm(FormModel):
    """Whether a worker process is drained."""

    draining: FormText = Field(description="yes: claim no more jobs; no: claim again.")


def create_workers_page(source: Executor, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("workers_page", options)
    queues = Queues(source)

    @pages.page("/workers")
    def show_workers() -> Response:
        """Show the worker processes and the jobs that each runs."""
        workers = sorted(queues.workers(), key=lambda worker: not find_problems(worker))
        live = [worker for worker in workers if worker.alive]
        return pages.render(
            "workers.html",
            workers=workers,
            live=live,
            threads=sum(worker.threads for worker in live),
            busy=sum(worker.busy for worker in live),
            versions=sorted({worker.version for worker in live}),
            find_problems=find_problems,
        )

    @pages.action("/workers/<uuid:worker_id>", form=WorkerForm, page_url="/workers")
    def submit_worker_drain(form: WorkerForm, worker_id: UUID) -> None:
        """Drain a worker process, or let it claim again."""
        queues.drain_worker(worker_id, draining=form.draining == "yes")

    return pages.blueprint


def find_problems(worker: WorkerStatus) -> list[str]:
    """What keeps a process from running its jobs, or delays them."""
    if not worker.alive:
        return ["no heartbeat: it was killed, or cannot reach the database"]
    problems = []
    if worker.has_lost_notifications:
        problems.append(f"no notifications ({worker.listener}): it finds jobs by polling, and stops are late")
    return problems
