"""The page of one job: status, attempts, log and events; and the actions on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from flask import Response
from pydantic import Field, ValidationError

from app.admin.edits import JobEdit, JobEditor
from app.admin.explain import JobExplainer, JobExplanation
from app.admin.job_search import JobSearch
from app.errors import DataloaderError, JobNotFound
from app.log.masking import mask_secret_fields
from app.queue.jobs import JobQueue
from app.web.api.jobs import parse_job_id
from app.web.auth.guard import current_actor
from app.web.pages.base import (
    FormModel,
    FormText,
    InvalidForm,
    PageRenderer,
    can_operate,
    form_action,
    parse_json_object,
    parse_priority,
    parse_time,
    progress_summary,
    redirect_to,
    unmask,
)
from app.web.problems import ProblemCode
from app.web.routing import ApiBlueprint
from app.web.schemas import field_errors, trigger_request_model
from app.web.task_defaults import apply_task_defaults, validate_args
from pipelines.contract import Pipelines

MAX_LOG_LINES = 500
MAX_EVENTS = 200
_NOT_FOUND = (ProblemCode.JOB_NOT_FOUND,)
_CLONED_FIELDS = (
    "task", "queue", "lock_key", "partition_key", "priority", "max_attempts", "lease_ttl_sec", "time_limit_sec", "retry"
)  # fmt: skip


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


def create_job_page(queue: JobQueue, pipelines: Pipelines, renderer: PageRenderer) -> ApiBlueprint:
    blueprint = renderer.blueprint("job_page")
    search, explainer, editor = JobSearch(queue.executor), JobExplainer(queue.executor), JobEditor(queue.executor)

    @renderer.page(blueprint, "/jobs/<job:job_id>", problems=_NOT_FOUND)
    def show_job(job_id: str) -> Response:
        """Show a job with its attempts, log and events."""
        parsed_id = parse_job_id(job_id)
        job, explanation = search.detail(parsed_id), explainer.explain(parsed_id)
        events = search.last_events(parsed_id, limit=MAX_EVENTS)
        log = queue.logs(parsed_id, tail=True, limit=MAX_LOG_LINES).lines
        started_at = job.attempts[-1].started_at if job.attempts else job.started_at
        return renderer.render(
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
            can_operate=can_operate(),
            can_clone=can_operate() and current_actor().can_trigger(job.task, job.queue),
        )

    @form_action(blueprint, "/jobs/<job:job_id>/cancel", problems=_NOT_FOUND)
    def submit_job_cancel(job_id: str) -> Response:
        """Cancel this job."""
        return _apply(job_id, queue.cancel)

    @form_action(blueprint, "/jobs/<job:job_id>/retry", problems=_NOT_FOUND)
    def submit_job_retry(job_id: str) -> Response:
        """Queue this job again."""
        return _apply(job_id, queue.retry)

    @form_action(blueprint, "/jobs/<job:job_id>/delete", problems=_NOT_FOUND)
    def submit_job_delete(job_id: str) -> Response:
        """Delete this finished job."""
        return _apply(job_id, editor.delete, next_url="/jobs")

    @form_action(blueprint, "/jobs/<job:job_id>/edit", form=EditForm, problems=_NOT_FOUND)
    def submit_job_edit(form: EditForm, job_id: str) -> Response:
        """Change this queued job."""

        def edit(parsed_id: UUID) -> None:
            original = search.get_with_version(parsed_id).job
            edit = JobEdit(
                priority=parse_priority(form.priority),
                available_at=parse_time("available_at", form.available_at, renderer.formatter.zone),
                args=_parse_args(form.args, renderer, original.args) if form.args else None,
            )
            editor.edit(parsed_id, edit, if_version=form.version)

        return _apply(job_id, edit)

    def _apply(job_id: str, action: Callable[[UUID], object], *, next_url: str | None = None) -> Response:
        parsed_id = parse_job_id(job_id)
        try:
            action(parsed_id)
        except JobNotFound:
            raise
        except (DataloaderError, InvalidForm) as error:
            return renderer.render_failure(error, back_url=f"/jobs/{parsed_id}")
        return redirect_to(next_url or f"/jobs/{parsed_id}")

    _add_clone_action(blueprint, queue, pipelines, renderer)
    return blueprint


def _add_clone_action(blueprint: ApiBlueprint, queue: JobQueue, pipelines: Pipelines, renderer: PageRenderer) -> None:
    search = JobSearch(queue.executor)
    request_model, apply_defaults = trigger_request_model(renderer.options, pipelines), apply_task_defaults(pipelines)

    @form_action(
        blueprint,
        "/jobs/<job:job_id>/clone",
        form=CloneForm,
        problems=(*_NOT_FOUND, ProblemCode.OUTSIDE_KEY_LIMITS),
    )
    def submit_job_clone(form: CloneForm, job_id: str) -> Response:
        """Create a job like this one, with other args."""
        parsed_id = parse_job_id(job_id)
        original = search.get_with_version(parsed_id).job
        current_actor().require_trigger(original.task, form.queue or original.queue)
        try:
            changes = {
                "queue": form.queue,
                "lock_key": form.lock_key,
                "args": _parse_args(form.args, renderer, original.args),
                "priority": parse_priority(form.priority),
                "producer": current_actor().name,
            }
            fields = {name: getattr(original, name) for name in _CLONED_FIELDS}
            fields |= {name: value for name, value in changes.items() if value not in (None, "")}
            clone = request_model.model_validate(apply_defaults(fields))
            if errors := validate_args(pipelines.get(clone.task), clone.args):
                raise InvalidForm.from_errors(errors)
        except (ValidationError, InvalidForm) as error:
            if isinstance(error, ValidationError):
                error = InvalidForm.from_errors(field_errors(error))
            return renderer.render_failure(error, back_url=f"/jobs/{parsed_id}")
        return redirect_to(f"/jobs/{queue.enqueue(clone.to_new_job()).job_id}")


def _stalled_sec(explanation: JobExplanation) -> float | None:
    """Seconds since the last change of the progress, if that is long."""
    for reason in explanation.reasons:
        if reason.code == "progress_old":
            return float(reason.details["progress_age_sec"])
    return None


def _parse_args(raw: str, renderer: PageRenderer, original: dict[str, Any]) -> dict[str, Any]:
    """Parse edited args; masked secrets keep their original values."""
    args, errors = parse_json_object("args", raw, renderer.options.max_json_depth)
    if errors:
        raise InvalidForm.from_errors(errors)
    return dict(unmask(args, original))
