"""The page of circuit breakers, limits and rates: what is used by whom, who waits since when; and their forms."""

from __future__ import annotations

from flask import Response
from pydantic import Field

from app.admin.breakers import Breakers, BreakerState, BreakerStatus
from app.admin.limits import Limits
from app.db.statements import Executor
from app.errors import LimitInUse, LimitNotFound
from app.web.api.breakers import BreakerSetting
from app.web.api.limits import LimitSetting, limit_name_problem, names_in_limit
from app.web.auth.guard import current_actor
from app.web.json_io import FieldError
from app.web.known_names import NameCheck
from app.web.options import WebOptions
from app.web.pages.base import FormModel, FormText, InvalidForm, PageRenderer, parse_choice
from app.web.pages.forms import NamingForm, format_duration, validate_fields
from app.web.routing import ApiBlueprint
from pipelines.contract import Pipelines

_MAX_HOLDERS_SHOWN = 4
_BREAKER_ACTIONS = ("pause", "resume", "set", "delete")


class LimitsPageQuery(FormModel):
    edit: FormText = Field("", description="The limit that the form shows.")


class LimitForm(NamingForm):
    """A limit: its name and what it allows. An empty field allows any number."""

    name: FormText = Field(description="The limit.")
    concurrency: FormText = Field("", description="Weight of the jobs that run at a time.")
    rate: FormText = Field("", description="Weight of the jobs that start in a period.")
    per_sec: FormText = Field("", description="The period, such as 60 or 1m; by default a second.")
    burst: FormText = Field("", description="How many starts of the rate may come at once.")
    note: FormText = Field("", description="A reason.")
    action: FormText = Field("set", description="set or delete.")


class BreakerForm(NamingForm):
    """Whether jobs of a task may start, and after how many failures none may."""

    task: FormText = Field(min_length=1, max_length=250, description="The task.")
    action: FormText = Field(description="pause: no job starts; resume: they start again; set: change it; delete.")
    failures: FormText = Field("", description="It opens after so many failed attempts in a row.")
    window_sec: FormText = Field("", description="A row of failures ends so long after its last one.")
    resume_sec: FormText = Field("", description="How long after opening one job may start.")
    reason: FormText = Field("", description="Why it is paused.")


def create_limits_page(source: Executor, pipelines: Pipelines, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("limits_page", options)
    limits, breakers, names = Limits(source), Breakers(source), NameCheck(source, pipelines)

    @pages.page("/limits", query=LimitsPageQuery)
    def show_limits(query: LimitsPageQuery | None = None) -> Response:
        """Show what each limit allows, who holds it, how many jobs wait since when, and the tasks' breakers."""
        statuses, of_tasks = limits.statuses(), breakers.statuses()
        name = "" if query is None else query.edit
        return pages.render(
            "limits.html",
            concurrency_limits=[status for status in statuses if status.concurrency is not None or not status.rate],
            rates=[status for status in statuses if status.rate],
            holders={status.name: limits.holders(status.name) for status in statuses if status.used},
            max_holders=_MAX_HOLDERS_SHOWN,
            breakers=of_tasks,
            open_breakers=[breaker for breaker in of_tasks if breaker.state is not BreakerState.CLOSED],
            waiting=sum(status.waiting for status in statuses),
            own=[status for status in statuses if status.setting == status.name],
            edited=next((status for status in statuses if status.name == name), None),
            format_duration=format_duration,
            breaker_word=_breaker_word,
        )

    @pages.action("/limits", form=LimitForm, page_url="/limits", page=show_limits)
    def submit_limit(form: LimitForm) -> None:
        """Create, change or delete a limit."""
        if form.action == "delete":
            try:
                limits.delete(form.name)
            except (LimitInUse, LimitNotFound) as error:
                raise InvalidForm(str(error)) from None
            return
        setting = _parse_limit(form)
        queue, task = names_in_limit(form.name)
        form.require_known(names, queue=queue, task=task, field="name")
        per_sec = 1.0 if setting.rate is not None and setting.per_sec is None else setting.per_sec
        values = vars(setting) | {"per_sec": per_sec, "changed_by": current_actor().name}
        limits.set(form.name, **values)

    @pages.action("/breakers", form=BreakerForm, page_url="/limits#breakers", page=show_limits)
    def submit_breaker(form: BreakerForm) -> None:
        """Pause or resume a task, or change when its breaker opens."""
        action = parse_choice("action", form.action, _BREAKER_ACTIONS)
        if action == "delete":
            breakers.delete(form.task)
            return
        state = {"pause": BreakerState.OPEN, "resume": BreakerState.CLOSED}.get(action)
        setting = validate_fields(
            BreakerSetting,
            form,
            numbers=["failures"],
            durations=["window_sec", "resume_sec"],
            state=None if state is None else state.value,
            reason=form.reason or None,
        )
        form.require_known(names, task=form.task)
        breakers.set(form.task, **(vars(setting) | {"state": state}), changed_by=current_actor().name)

    return pages.blueprint


def _parse_limit(form: LimitForm) -> LimitSetting:
    """Raises InvalidForm."""
    problem = limit_name_problem(form.name)
    if problem:
        raise InvalidForm.from_errors([FieldError("name", problem)])
    numbers, note = ("concurrency", "rate", "burst"), form.note or None
    return validate_fields(LimitSetting, form, numbers=numbers, durations=["per_sec"], note=note)


def _breaker_word(breaker: BreakerStatus) -> str:
    """The state as people call it: a breaker that a person opened is a paused task."""
    if breaker.state is BreakerState.OPEN and breaker.probe_at is None:
        return "paused"
    return breaker.state.value.replace("_", "-")
