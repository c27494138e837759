"""The pages of queues and workers, with the forms that change them."""

from __future__ import annotations

from uuid import UUID

from flask import Response
from pydantic import Field

from app.admin.queues import FAIR_RULE, Queues, QueueState
from app.db.statements import Executor
from app.web.auth.guard import current_actor
from app.web.options import WebOptions
from app.web.pages.base import FormModel, FormText, InvalidForm, PageRenderer, parse_choice
from app.web.routing import ApiBlueprint

_MAX_LIMIT = 2**31 - 1
_NO_LIMIT = "none"


class QueueSettingsForm(FormModel):
    """New settings of a queue; an empty field stays as it is."""

    queue: FormText = Field(min_length=1, description="The queue.")
    state: FormText = Field("", description="open, paused or draining.")
    concurrency: FormText = Field("", description="Jobs at a time in all processes; `none` removes the limit.")
    per_worker: FormText = Field("", description="Jobs at a time in each process; `none` removes the limit.")
    fair: FormText = Field("", description="What distinguishes tenants, which are served in turn; `none`: by age.")
    share: FormText = Field("", description="The part of the threads that one tenant may have; `none`: half.")


class WorkerForm(FormModel):
    """Whether a worker process is drained."""

    draining: FormText = Field(description="yes: claim no more jobs; no: claim again.")


def create_queues_page(source: Executor, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("queues_page", options)
    queues = Queues(source)

    @pages.page("/queues")
    def show_queues() -> Response:
        """Show the queues with their jobs, settings and statistics."""
        return pages.render("queues.html", queues=queues.statuses())

    @pages.action("/queues", form=QueueSettingsForm, page_url="/queues")
    def submit_queue_settings(form: QueueSettingsForm) -> None:
        """Pause, open or drain a queue, change its concurrency limits, or serve its tenants in turn."""
        given = {name: getattr(form, name).strip() for name in ("concurrency", "per_worker", "fair", "share")}
        queues.change_settings(
            form.queue,
            state=parse_choice("state", form.state, QueueState) if form.state else None,
            concurrency=_parse_limit("concurrency", form.concurrency),
            per_worker=_parse_limit("per_worker", form.per_worker),
            fair=_parse_rule(given["fair"]),
            share=_parse_share(given["share"]),
            remove=[name for name, raw in given.items() if raw == _NO_LIMIT],
            changed_by=current_actor().name,
        )

    @pages.page("/workers")
    def show_workers() -> Response:
        """Show the worker processes and the jobs that each runs."""
        return pages.render("workers.html", workers=queues.workers())

    @pages.action("/workers/<uuid:worker_id>", form=WorkerForm, page_url="/workers")
    def submit_worker_drain(form: WorkerForm, worker_id: UUID) -> None:
        """Drain a worker process, or let it claim again."""
        queues.drain_worker(worker_id, draining=form.draining == "yes")

    return pages.blueprint


def _parse_rule(raw: str) -> str | None:
    if raw in ("", _NO_LIMIT):
        return None
    if not FAIR_RULE.fullmatch(raw):
        raise InvalidForm(f"fair: {raw!r} is neither partition_key, producer nor a path such as args.tenant")
    return raw


def _parse_share(raw: str) -> float | None:
    if raw in ("", _NO_LIMIT):
        return None
    try:
        share = float(raw)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InvalidForm(f"share: {raw!r} is not a number above 0 and up to 1")
    return share


def _parse_limit(name: str, raw: str) -> int | None:
    text = raw.strip()
    if text in ("", _NO_LIMIT):
        return None
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_LIMIT:
        raise InvalidForm(f"{name}: {raw!r} is not a whole number from 1 on; {_NO_LIMIT} removes the limit")
    return int(text)
