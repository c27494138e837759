"""Queues and workers: how they do, and what people rule about them."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from flask import Response
from pydantic import Field

from app.errors import DataloaderError
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.queue.queues import Queues, QueueState
from app.web.auth import current_actor
from app.web.operations import HTML, Subject
from app.web.pages.frame import FormModel, Frame, Unreadable, acting, go

_Text = Annotated[str, Field(max_length=1000)]
_LARGEST = 2**31 - 1


class RuleForm(FormModel):
    """What shall hold for a queue from now on."""

    queue: _Text = Field(min_length=1, description="The queue.")
    state: _Text = Field("", description="open, paused or draining; empty: as it is.")
    concurrency: _Text = Field("", description="Jobs at once in all processes together; `none` lifts the limit.")
    per_worker: _Text = Field("", description="Jobs at once in each process; `none` lifts the limit.")


class WorkerForm(FormModel):
    """What a worker process shall do."""

    draining: _Text = Field(description="yes: claim nothing more; no: claim again.")


class NotUnderstood(ValueError):
    """What somebody wrote cannot be meant."""


def queues(source: Source, frame: Frame) -> Subject:
    subject = Subject("queue_pages", "", frame.options.max_json_depth)
    all_ = Queues(source)

    @subject.get("/queues", answer=str, media_type=HTML, scope=Scope.READ)
    def queues_page() -> Response:
        """See how the queues do."""
        try:
            lines = all_.lines()
        except Unreadable as error:
            return frame.away("The queues", error)
        return frame.show("queues.html", lines=lines, may=current_actor().may((Scope.OPERATE,)))

    @acting(subject, "/queues", form=RuleForm)
    def rule_here(asked: RuleForm) -> Response:
        """Pause a queue, open it, drain it, or limit how much of it runs at once."""
        try:
            told = {"concurrency": asked.concurrency, "per_worker": asked.per_worker}
            all_.rule(
                asked.queue,
                state=_state(asked.state),
                concurrency=_limit("concurrency", asked.concurrency),
                per_worker=_limit("per_worker", asked.per_worker),
                unlimit=[name for name, said in told.items() if said.strip() == "none"],
                by=current_actor().name,
            )
        except (DataloaderError, NotUnderstood) as error:
            return frame.refused(error, back="/queues")
        return go("/queues")

    @subject.get("/workers", answer=str, media_type=HTML, scope=Scope.READ)
    def workers_page() -> Response:
        """See who is alive, and what each runs."""
        try:
            workers = all_.workers()
        except Unreadable as error:
            return frame.away("The workers", error)
        return frame.show("workers.html", workers=workers, may=current_actor().may((Scope.OPERATE,)))

    @acting(subject, "/workers/<uuid:worker_id>", form=WorkerForm)
    def drain_here(asked: WorkerForm, worker_id: UUID) -> Response:
        """Tell a worker to claim nothing more, or to claim again."""
        try:
            all_.drain_worker(worker_id, draining=asked.draining == "yes")
        except DataloaderError as error:
            return frame.refused(error, back="/workers")
        return go("/workers")

    return subject


def _state(told: str) -> QueueState | None:
    if not told:
        return None
    if told not in set(QueueState):
        raise NotUnderstood(f"A queue cannot be {told!r}; it may be {', '.join(QueueState)}.")
    return QueueState(told)


def _limit(name: str, told: str) -> int | None:
    said = told.strip()
    if said in ("", "none"):
        return None
    if not said.isdecimal() or not 1 <= int(said) <= _LARGEST:
        raise NotUnderstood(f"{name}: {told!r} is no whole number from 1 on; none lifts the limit")
    return int(said)
