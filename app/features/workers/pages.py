"""The page of worker processes: hosts, what each process runs, what is wrong first; and the form that drains one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

from flask import Response
from pydantic import Field

from dataloader.app.acts.web import ActForms
from dataloader.app.features.queues.acts import drain_host, drain_worker, undrain_host, undrain_worker
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.state.queues import Queues, WorkerStatus
from dataloader.app.ui.base import FormModel, FormText, PageRenderer


@dataclass(frozen=True)
class Host:
    """The worker processes of a host."""

    name: str
    workers: tuple[WorkerStatus, ...]

    @property
    def live(self) -> list[WorkerStatus]:
        return [worker for worker in self.workers if worker.alive]

    @property
    def states(self) -> Counter[str]:
        return Counter(worker_state(worker) for worker in self.workers)

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """The tasks whose jobs run, the most frequent first."""
        return Counter(run.task for worker in self.workers for run in worker.running).most_common()

    @property
    def claiming(self) -> int:
        """The processes that a drain would stop from claiming."""
        return sum(not worker.draining and not worker.stopping for worker in self.live)

    @property
    def drained(self) -> int:
        return sum(worker.draining and not worker.stopping for worker in self.live)

    @property
    def would_lose_sec(self) -> float:
        return sum(worker.would_lose_sec for worker in self.live)


_LEAVING = ("stopping", "draining", "drained")
_STATE_LOOKS = {
    "lost": "lost", "stopping": "paused", "draining": "paused", "drained": "paused", "warning": "warning",
    "live": "succeeded",
}  # fmt: skip


class WorkerForm(FormModel):
    """Whether a worker process is drained."""

    draining: FormText = Field(description="yes: claim no more jobs; no: claim again.")


def create_workers_page(site: Site) -> ApiBlueprint:
    source, runner, options = site.executor, site.runner, site.options
    pages = PageRenderer("workers_page", options)
    queues = Queues(source)

    @pages.page("/workers")
    def show_workers() -> Response:
        """Show the worker processes and the jobs that each runs."""
        workers = sorted(queues.workers(), key=_worst_first)
        live = [worker for worker in workers if worker.alive]
        return pages.render(
            "workers.html",
            workers=workers,
            live=live,
            hosts=group_by_host(workers),
            draining=[worker for worker in live if worker_state(worker) in _LEAVING],
            threads=sum(worker.threads for worker in live),
            busy=sum(worker.busy for worker in live),
            versions={version: group_by_host(found) for version, found in _by_version(live)},
            find_problems=find_problems,
            worker_state=worker_state,
            state_looks=_STATE_LOOKS,
        )

    @pages.action("/workers/<uuid:worker_id>", form=WorkerForm, page_url="/workers")
    def submit_worker_drain(form: WorkerForm, worker_id: UUID) -> None:
        """Drain a worker process, or let it claim again."""
        runner.perform(drain_worker if form.draining == "yes" else undrain_worker, {"worker_id": worker_id})

    forms = ActForms(pages=pages, runner=runner, page_url="/workers")
    forms.add_button("/hosts/<path:host>/drain", "submit_host_drain", drain_host)
    forms.add_button("/hosts/<path:host>/undrain", "submit_host_undrain", undrain_host)
    return pages.blueprint


def worker_state(worker: WorkerStatus) -> str:
    """lost, stopping, draining, drained, warning or live."""
    if not worker.alive:
        return "lost"
    if worker.stopping:
        return "stopping"
    if worker.draining:
        return "draining" if worker.running else "drained"
    return "warning" if find_problems(worker) else "live"


def group_by_host(workers: Sequence[WorkerStatus]) -> list[Host]:
    """The hosts, those with a problem first, then by name."""
    by_name = sorted(workers, key=lambda worker: worker.host)
    hosts = [Host(name, tuple(found)) for name, found in groupby(by_name, key=lambda worker: worker.host)]
    return sorted(hosts, key=lambda host: not any(find_problems(worker) for worker in host.workers))


def _by_version(workers: Sequence[WorkerStatus]) -> list[tuple[str, list[WorkerStatus]]]:
    by_version = sorted(workers, key=lambda worker: worker.version)
    return [(version, list(found)) for version, found in groupby(by_version, key=lambda worker: worker.version)]


def _worst_first(worker: WorkerStatus) -> tuple[bool, bool, str, str]:
    return worker.alive, not find_problems(worker), worker.host, worker.name


def find_problems(worker: WorkerStatus) -> list[str]:
    """What keeps a process from running its jobs, or delays them."""
    if not worker.alive:
        return ["no heartbeat: it was killed, or cannot reach the database"]
    problems = []
    if worker.has_lost_notifications:
        problems.append(f"no notifications ({worker.listener}): it finds jobs by polling, and stops are late")
    return problems
