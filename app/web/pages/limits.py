"""The page of limits and circuit breakers, with the forms that change them."""

from __future__ import annotations

from flask import Response
from pydantic import Field

from app.admin.breakers import Breakers, BreakerState
from app.admin.limits import Limits
from app.db.statements import Executor
from app.errors import LimitInUse
from app.web.auth.guard import current_actor
from app.web.options import WebOptions
from app.web.pages.base import FormModel, FormText, InvalidForm, PageRenderer
from app.web.routing import ApiBlueprint
from pipelines.limits import check_limit_name

_MAX_INT = 2**31 - 1
_MAX_HOLDERS_SHOWN = 5


class LimitForm(FormModel):
    """A limit: its name and what it allows. An empty field allows any number."""

    name: FormText = Field(description="The limit.")
    concurrency: FormText = Field("", description="Weight of the jobs that run at a time.")
    rate: FormText = Field("", description="Weight of the jobs that start in a period.")
    per_sec: FormText = Field("", description="The period in seconds; by default 1.")
    burst: FormText = Field("", description="How many starts of the rate may come at once.")
    note: FormText = Field("", description="A reason.")
    action: FormText = Field("set", description="set or delete.")


class BreakerForm(FormModel):
    """Whether jobs of a task may start."""

    task: FormText = Field(min_length=1, max_length=250, description="The task.")
    action: FormText = Field(description="pause: no job starts; resume: they start again.")
    reason: FormText = Field("", description="Why it is paused.")


def create_limits_page(source: Executor, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("limits_page", options)
    limits, breakers = Limits(source), Breakers(source)

    @pages.page("/limits")
    def show_limits() -> Response:
        """Show what each limit allows, who holds it, how many jobs wait since when, and the tasks' breakers."""
        statuses = limits.statuses()
        holders = {status.name: limits.holders(status.name) for status in statuses if status.used}
        return pages.render(
            "limits.html",
            limits=statuses,
            holders=holders,
            max_holders=_MAX_HOLDERS_SHOWN,
            breakers=breakers.statuses(),
        )

    @pages.action("/limits", form=LimitForm, page_url="/limits")
    def submit_limit(form: LimitForm) -> None:
        """Create, change or delete a limit."""
        if form.action == "delete":
            try:
                limits.delete(form.name)
            except LimitInUse as error:
                raise InvalidForm(str(error)) from None
            return
        try:
            check_limit_name(form.name)
        except ValueError as error:
            raise InvalidForm(str(error)) from None
        concurrency, rate = _parse_number("concurrency", form.concurrency, 0), _parse_number("rate", form.rate, 1)
        per_sec, burst = _parse_number("per_sec", form.per_sec, 1), _parse_number("burst", form.burst, 1)
        if concurrency is None and rate is None:
            raise InvalidForm("a limit needs a concurrency or a rate")
        if rate is None and (burst is not None or per_sec is not None):
            raise InvalidForm("a period and a burst belong to a rate")
        per_sec = per_sec or (None if rate is None else 1)
        limits.set(
            form.name, concurrency=concurrency, rate=rate, per_sec=per_sec, burst=burst, note=form.note or None,
            changed_by=current_actor().name,
        )  # fmt: skip

    @pages.action("/breakers", form=BreakerForm, page_url="/limits#breakers")
    def submit_breaker(form: BreakerForm) -> None:
        """Pause a task, or let its jobs start again."""
        state = BreakerState.OPEN if form.action == "pause" else BreakerState.CLOSED
        breakers.set(form.task, state=state, reason=form.reason or None, changed_by=current_actor().name)

    return pages.blueprint


def _parse_number(name: str, raw: str, least: int) -> int | None:
    text = raw.strip()
    if not text:
        return None
    if not text.isdecimal() or not least <= int(text) <= _MAX_INT:
        raise InvalidForm(f"{name}: {raw!r} is not a whole number from {least} on")
    return int(text)
