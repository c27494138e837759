"""The pages of queues and workers, with the forms that change them."""

from __future__ import annotations

from uuid import UUID

from flask import Response
from pydantic import Field

from app.admin.queues import Queues, QueueState
from app.errors import DataloaderError
from app.queue.jobs import Executor
from app.web.auth.guard import current_actor
from app.web.pages.base import FormModel, FormText, InvalidForm, PageRenderer, can_operate, form_action, redirect_to
from app.web.routing import ApiBlueprint

_MAX_LIMIT = 2**31 - 1
_NO_LIMIT = "none"


class QueueSettingsForm(FormModel):
    """New settings of a queue; an empty field stays as it is."""

    queue: FormText = Field(min_length=1, description="The queue.")
    state: FormText = Field("", description="open, paused or draining.")
    concurrency: FormText = Field("", description="Jobs at a time in all processes; `none` removes the limit.")
    per_worker: FormText = Field("", description="Jobs at a time in each process; `none` removes the limit.")


class WorkerForm(FormModel):
    """Whether a worker process is drained."""

    draining: FormText = Field(description="yes: claim no more jobs; no: claim again.")


def create_queues_page(source: Executor, renderer: PageRenderer) -> ApiBlueprint:
    blueprint = renderer.blueprint("queues_page")
    queues = Queues(source)

    @renderer.page(blueprint, "/queues")
    def show_queues() -> Response:
        """Show the queues with their jobs, settings and statistics."""
        return renderer.render("queues.html", queues=queues.statuses(), can_operate=can_operate())

    @form_action(blueprint, "/queues", form=QueueSettingsForm)
    def submit_queue_settings(form: QueueSettingsForm) -> Response:
        """Pause, open or drain a queue, or change its concurrency limits."""
        try:
            limits = {"concurrency": form.concurrency, "per_worker": form.per_worker}
            queues.change_settings(
                form.queue,
                state=_parse_state(form.state),
                concurrency=_parse_limit("concurrency", form.concurrency),
                per_worker=_parse_limit("per_worker", form.per_worker),
                remove_limits=[name for name, raw in limits.items() if raw.strip() == _NO_LIMIT],
                changed_by=current_actor().name,
            )
        except (DataloaderError, InvalidForm) as error:
            return renderer.render_failure(error, back_url="/queues")
        return redirect_to("/queues")

    @renderer.page(blueprint, "/workers")
    def show_workers() -> Response:
        """Show the worker processes and the jobs that each runs."""
        return renderer.render("workers.html", workers=queues.workers(), can_operate=can_operate())

    @form_action(blueprint, "/workers/<uuid:worker_id>", form=WorkerForm)
    def submit_worker_drain(form: WorkerForm, worker_id: UUID) -> Response:
        """Drain a worker process, or let it claim again."""
        try:
            queues.drain_worker(worker_id, draining=form.draining == "yes")
        except DataloaderError as error:
            return renderer.render_failure(error, back_url="/workers")
        return redirect_to("/workers")

    return blueprint


def _parse_state(raw: str) -> QueueState | None:
    if not raw:
        return None
    if raw not in set(QueueState):
        raise InvalidForm(f"Unknown state {raw!r}; expected one of: {', '.join(QueueState)}.")
    return QueueState(raw)


def _parse_limit(name: str, raw: str) -> int | None:
    text = raw.strip()
    if text in ("", _NO_LIMIT):
        return None
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_LIMIT:
        raise InvalidForm(f"{name}: {raw!r} is not a whole number from 1 on; {_NO_LIMIT} removes the limit")
    return int(text)
