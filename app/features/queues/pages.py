"""The pages of queues: the list, and one queue with its jobs, workers, limits and settings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from flask import Response
from pydantic import Field

from dataloader.app.acts.audit_log import AuditEntry, AuditLog
from dataloader.app.acts.known_names import NameCheck
from dataloader.app.acts.matches import Match, match_names
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.queues.acts import REMOVABLE, QueueSettingsEdit, change_queue_settings
from dataloader.app.features.queues.charts import QueueChart
from dataloader.app.http.links import quote_name
from dataloader.app.http.problems import ProblemCode, RequestRejected
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.queue.queues import QueueState
from dataloader.app.state.queues import Queues, WorkerStatus
from dataloader.app.state.statistics import Period, RecentRun, Statistics
from dataloader.app.ui.base import (
    FormModel,
    FormText,
    InvalidForm,
    PageRenderer,
    can_operate,
    parse_choice,
    redirect_to,
)
from dataloader.app.ui.cells import run_cells
from dataloader.app.ui.forms import NamingForm, validate_fields, validate_form

_MAX_CHANGES_SHOWN = 8


class QueueStateForm(NamingForm):
    """Whether jobs of a queue are claimed."""

    queue: FormText = Field(min_length=1, description="The queue.")
    state: FormText = Field(description="open, paused or draining.")
    note: FormText = Field("", max_length=500, description="A reason, shown with the queue.")


class QueueActionForm(FormModel):
    """Whether jobs of the queue are claimed, with a reason."""

    state: FormText = Field(description="open, paused or draining.")
    note: FormText = Field("", max_length=500, description="A reason, shown with the queue.")


class QueueSettingsForm(FormModel):
    """The settings of a queue; an empty field removes one."""

    concurrency: FormText = Field("", description="Jobs at a time in all processes.")
    per_worker: FormText = Field("", description="Jobs at a time in each process.")
    fair: FormText = Field("", description="What distinguishes tenants, which are served in turn; empty: by age.")
    share: FormText = Field("", description="The part of the threads that one tenant may have; empty: half.")
    weights: FormText = Field("", description="Jobs of a tenant for each job of another: `acme=3, beta=2`.")


class QueuePageQuery(FormModel):
    period: Period = Field("24h", description="How far back the chart goes.")


def find_queues(site: Site, text: str) -> Iterator[Match]:
    return match_names("queue", "/queues/", Queues(site.executor).names(), text)


def create_queues_page(site: Site) -> ApiBlueprint:
    source, pipelines, options = site.executor, site.pipelines, site.options
    pages = PageRenderer("queues_page", options)
    runner = site.runner
    queues, limits = Queues(source), Limits(source)
    statistics, audit, names = Statistics(source), AuditLog(source), NameCheck(source, pipelines)

    @pages.page("/queues")
    def show_queues() -> Response:
        """Show the queues with their jobs, settings and statistics."""
        statuses = queues.statuses()
        unserved = [status for status in statuses if not status.workers and status.ready]
        return pages.render("queues.html", queues=statuses, unserved=unserved)

    def change(settings: QueueSettingsEdit) -> None:
        runner.perform(change_queue_settings, {}, settings, strict=False)

    @pages.action("/queues", form=QueueStateForm, page_url="/queues", page=show_queues)
    def submit_queue_state(form: QueueStateForm) -> None:
        """Pause, open or drain a queue. One that has had no job, worker or setting is refused without `create`."""
        state = parse_choice("state", form.state, QueueState)
        form.require_known(names, queue=form.queue)
        change(validate_form(QueueSettingsEdit, {"queue": form.queue, "state": state, "note": form.note or None}))

    @pages.page("/queues/<path:name>", query=QueuePageQuery, problems=(ProblemCode.NOT_FOUND,))
    def show_queue(query: QueuePageQuery | None = None, *, name: str) -> Response:
        """Show a queue: its jobs, who serves it, what limits it, how it did, and who changed it."""
        found = queues.statuses(queue=name)
        if not found:
            raise RequestRejected(ProblemCode.NOT_FOUND, f"there is no queue {name!r}; its first job creates it")
        status, waiting_for = found[0], limits.of_queue(name)
        period: Period = "24h" if query is None else query.period
        workers = [worker for worker in queues.workers() if name in worker.queues]
        return pages.render(
            "queue.html",
            queue=status,
            path=queue_path(name),
            period=period,
            day=statistics.by_queue("24h", queue=name).get(name),
            chart=QueueChart.from_chart(statistics.chart(period, queue=name), period),
            by_task=statistics.by_task("24h", queue=name),
            run_cells=run_cells,
            runs=_runs_in(name, statistics.recent_runs()),
            next_jobs=queues.next_jobs(name),
            running=sorted((run for worker in workers for run in worker.running if run.queue == name), key=_started),
            tenants=queues.tenants(name) if status.fair else [],
            workers=workers,
            threads=sum(_threads_in(name, worker) for worker in workers if worker.alive),
            limits=[limit for limit in limits.statuses() if limit.name in {*waiting_for, f"queue:{name}"}],
            waiting_for=waiting_for,
            changes=_changes(audit, name),
            weights_text=_format_weights,
        )

    @pages.action("/queues/<path:name>/state", form=QueueActionForm, page_url="/queues/{name}", page=show_queue)
    def submit_queue_action(form: QueueActionForm, name: str) -> Response:
        """Pause, open or drain the queue, with a reason."""
        state = parse_choice("state", form.state, QueueState)
        names.warnings(queue=name, strict=True)
        change(validate_form(QueueSettingsEdit, {"queue": name, "state": state, "note": form.note or None}))
        return redirect_to(queue_path(name))

    @pages.action("/queues/<path:name>/settings", form=QueueSettingsForm, page_url="/queues/{name}", page=show_queue)
    def submit_queue_settings(form: QueueSettingsForm, name: str) -> Response:
        """Change the concurrency limits of the queue, or serve its tenants in turn."""
        settings = _parse_settings(form, name)
        names.warnings(queue=name, strict=True)
        values: dict[str, Any] = {setting: getattr(settings, setting) for setting in REMOVABLE}
        known = next((status.weights for status in queues.statuses(queue=name)), {})
        weights: dict[str, int | None] = {**dict.fromkeys(known), **settings.weights}
        change(settings.model_copy(update=values | {"weights": weights}))  # null of each that is empty removes it
        return redirect_to(queue_path(name))

    return pages.blueprint


def queue_path(name: str) -> str:
    return f"/queues/{quote_name(name)}"


def _started(run: Any) -> datetime:
    started_at: datetime = run.started_at
    return started_at


def _threads_in(queue: str, worker: WorkerStatus) -> int:
    return worker.queue_threads.get(queue, worker.threads)


def _runs_in(queue: str, runs: dict[str, list[RecentRun]]) -> dict[str, list[RecentRun]]:
    """The recent runs in this queue by task, the newest first."""
    within = {task: [run for run in of_task if run.queue == queue] for task, of_task in runs.items()}
    return {task: found for task, found in within.items() if found}


def _changes(audit: AuditLog, queue: str) -> list[AuditEntry]:
    """The last changes of the settings, for those who may read the audit."""
    if not can_operate():
        return []
    return audit.entries(subject="queue", subject_id=queue, limit=_MAX_CHANGES_SHOWN)


def _format_weights(weights: dict[str, int]) -> str:
    return ", ".join(f"{tenant}={weight}" for tenant, weight in sorted(weights.items()))


def _parse_settings(form: QueueSettingsForm, name: str) -> QueueSettingsEdit:
    """The settings of the form, None where a field is empty. Raises InvalidForm."""
    numbers, weights = ("concurrency", "per_worker", "share"), _parse_weights(form.weights)
    fair = form.fair.strip() or None
    return validate_fields(QueueSettingsEdit, form, numbers=numbers, queue=name, fair=fair, weights=weights)


def _parse_weights(raw: str) -> dict[str, int]:
    weights: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in raw.split(","))):
        tenant, equals, weight = part.rpartition("=")
        if not equals or not weight.strip().isdecimal():
            raise InvalidForm.at_field("weights", f"{part!r} is not a tenant with a whole number, such as acme=3")
        weights[tenant.strip()] = int(weight)
    return weights
