"""The page of one job: status, attempts, log and events; the actions on it; and its full log, by pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from flask import Response
from pydantic import Field, ValidationError

from app.admin.edits import CLONED_FIELDS, JobEditor
from app.admin.explain import JobExplainer, JobExplanation
from app.admin.job_search import JobSearch
from app.db.statements import Executor
from app.log.masking import mask_secret_fields
from app.queue.job_logs import JobLogSearch, LogFilter
from app.queue.jobs import JobQueue
from app.web.api.job_logs import levels_from
from app.web.api.jobs import parse_job_id
from app.web.auth.guard import current_actor
from app.web.json_io import MAX_JSON_DEPTH
from app.web.options import WebOptions
from app.web.pages.base import (
    FormModel,
    FormText,
    InvalidForm,
    PageRenderer,
    can_operate,
    parse_json_object,
    parse_priority,
    parse_time,
    progress_summary,
    redirect_to,
    unmask,
)
from app.web.problems import ProblemCode
from app.web.routing import ApiBlueprint
from app.web.schemas import apply_task_defaults, field_errors, trigger_request_model, validate_args
from pipelines.contract import Pipelines

MAX_LOG_LINES = 500
MAX_EVENTS = 200
PAGE_LINES = 500  # of the full log
_PAGE_URL = "/jobs/{job_id}"
_NOT_FOUND = (ProblemCode.JOB_NOT_FOUND,)
_LineId = Annotated[int | None, Field(ge=0, le=2**63 - 1)]


class CloneForm(FormModel):
    """The fields of a clone that differ from the original job; an empty field is copied."""

    args: str = Field(description="The args, as a JSON object.")
    queue: FormText = Field("", description="Another queue.")
    lock_key: FormText = Field("", description="Another lock_key.")
    priority: FormText = Field("", description="Another priority.")


class EditForm(FormModel):
    """The new values of a queued job; an empty field stays as it is."""

    version: FormText = Field(description="The version of the job that the form shows.")
    priority: FormText = Field("", description="The priority.")
    available_at: FormText = Field("", description="When the job may start, in the zone of the pages.")
    args: str = Field("", description="The args, as a JSON object.")


class LogPageQuery(FormModel):
    """The filter of the log page. Without `after` and `before` it shows the last lines."""

    search: Annotated[str, Field(max_length=200, description="Only lines that contain this text.")] = ""
    level: Annotated[Literal["", "INFO", "WARNING", "ERROR"], Field(description="The lowest level to show.")] = ""
    after: Annotated[_LineId, Field(description="Lines after this one, from the link of the page before.")] = None
    before: Annotated[_LineId, Field(description="Lines before this one, likewise.")] = None


def create_job_page(queue: JobQueue, pipelines: Pipelines, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("job_page", options)
    search, explainer, editor = JobSearch(queue.executor), JobExplainer(queue.executor), JobEditor(queue.executor)
    request_model, apply_defaults = trigger_request_model(options, pipelines), apply_task_defaults(pipelines)

    @pages.page("/jobs/<job:job_id>", standby=False, problems=_NOT_FOUND)
    def show_job(job_id: str) -> Response:
        """Show a job with its attempts, log and events."""
        parsed_id = parse_job_id(job_id)
        job, explanation = search.detail(parsed_id), explainer.explain(parsed_id)
        events = search.last_events(parsed_id, limit=MAX_EVENTS)
        log = queue.logs(parsed_id, tail=True, limit=MAX_LOG_LINES).lines
        started_at = job.attempts[-1].started_at if job.attempts else job.started_at
        return pages.render(
            "job.html",
            started_at=started_at,
            job=job,
            explanation=explanation,
            args=mask_secret_fields(job.args),
            result=mask_secret_fields(job.result),
            progress_values=mask_secret_fields(job.progress),
            progress=progress_summary(
                job.progress, started_at, finished_at=job.finished_at, stalled_sec=_stalled_sec(explanation)
            ),
            events=events,
            has_more_events=len(events) == MAX_EVENTS,
            log=log,
            has_more_log=len(log) == MAX_LOG_LINES,
            can_clone=can_operate() and current_actor().can_trigger(job.task, job.queue),
        )

    @pages.action("/jobs/<job:job_id>/cancel", page_url=_PAGE_URL, page=show_job, problems=_NOT_FOUND)
    def submit_job_cancel(job_id: str) -> None:
        """Cancel this job."""
        queue.cancel(parse_job_id(job_id))

    @pages.action("/jobs/<job:job_id>/retry", page_url=_PAGE_URL, page=show_job, problems=_NOT_FOUND)
    def submit_job_retry(job_id: str) -> None:
        """Queue this job again."""
        queue.retry(parse_job_id(job_id))

    @pages.action("/jobs/<job:job_id>/delete", page_url=_PAGE_URL, page=show_job, problems=_NOT_FOUND)
    def submit_job_delete(job_id: str) -> Response:
        """Delete this finished job."""
        editor.delete(parse_job_id(job_id))
        return redirect_to("/jobs")

    @pages.action("/jobs/<job:job_id>/edit", form=EditForm, page_url=_PAGE_URL, page=show_job, problems=_NOT_FOUND)
    def submit_job_edit(form: EditForm, job_id: str) -> None:
        """Change this queued job."""
        parsed_id = parse_job_id(job_id)
        original = search.get_with_version(parsed_id).job
        changes = {
            "priority": parse_priority(form.priority),
            "available_at": parse_time("available_at", form.available_at, options.timezone),
            "args": _parse_args(form.args, original.args) if form.args else None,
        }
        editor.edit(parsed_id, changes, if_version=form.version)

    problems = (*_NOT_FOUND, ProblemCode.OUTSIDE_KEY_LIMITS)

    @pages.action("/jobs/<job:job_id>/clone", form=CloneForm, page_url=_PAGE_URL, page=show_job, problems=problems)
    def submit_job_clone(form: CloneForm, job_id: str) -> Response:
        """Create a job like this one, with other args."""
        original = search.get_with_version(parse_job_id(job_id)).job
        current_actor().require_trigger(original.task, form.queue or original.queue)
        changes = {
            "queue": form.queue,
            "lock_key": form.lock_key,
            "args": _parse_args(form.args, original.args),
            "priority": parse_priority(form.priority),
            "producer": current_actor().name,
        }
        fields = {name: getattr(original, name) for name in CLONED_FIELDS if name != "webhook"}
        fields |= {name: value for name, value in changes.items() if value not in (None, "")}
        try:
            clone = request_model.model_validate(apply_defaults(fields))
        except ValidationError as error:
            raise InvalidForm.from_errors(field_errors(error)) from None
        if errors := validate_args(pipelines.get(clone.task), clone.args):
            raise InvalidForm.from_errors(errors)
        new_job = replace(clone.to_new_job(), webhook=original.webhook)
        return redirect_to(f"/jobs/{queue.enqueue(new_job).job_id}")

    return pages.blueprint


def create_log_page(executor: Executor, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("log_page", options)
    search, log_search = JobSearch(executor), JobLogSearch(executor)

    @pages.page("/jobs/<job:job_id>/log", query=LogPageQuery, problems=_NOT_FOUND)
    def show_job_log(query: LogPageQuery, job_id: str) -> Response:
        """Show and search the full log of a job."""
        job = search.get_with_version(parse_job_id(job_id)).job
        log_filter = LogFilter(text=query.search or None, levels=levels_from(query.level))
        page = log_search.page(job.id, log_filter, after=query.after, before=query.before, limit=PAGE_LINES)
        filters = {name: value for name, value in (("search", query.search), ("level", query.level)) if value}
        return pages.render(
            "log.html",
            job=job,
            query=query,
            page=page,
            has_filter=bool(filters),
            previous=None if page.previous is None else urlencode(filters | {"before": page.previous}),
            next=None if page.next is None else urlencode(filters | {"after": page.next}),
            first=urlencode(filters | {"after": 0}),
            last=urlencode(filters),
            is_last_page=query.after is None and query.before is None,
        )

    return pages.blueprint


def _stalled_sec(explanation: JobExplanation) -> float | None:
    """Seconds since the last change of the progress, if that is long."""
    for reason in explanation.reasons:
        if reason.code == "progress_old":
            return float(reason.details["progress_age_sec"])
    return None


def _parse_args(raw: str, original: dict[str, Any]) -> dict[str, Any]:
    """Parse edited args; masked secrets keep their original values."""
    args, errors = parse_json_object("args", raw, MAX_JSON_DEPTH)
    if errors:
        raise InvalidForm.from_errors(errors)
    return dict(unmask(args, original))
