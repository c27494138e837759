"""Triggering, watching, canceling and retrying jobs over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from flask import request
from pydantic import BaseModel, ConfigDict, Field
from werkzeug.routing import BaseConverter

from dataloader.app.acts.web import add_routes
from dataloader.app.errors import JobNotFound
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.jobs.acts import cancel_job, retry_job
from dataloader.app.http.jobs.trigger_request import JobRequest, TriggerResponse, trigger_request_model
from dataloader.app.http.jobs.visible_jobs import enqueue_visible, require_visible_parents
from dataloader.app.http.json_io import dump_json
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.problems import DATABASE_PROBLEMS, InvalidRequest, ProblemCode, RequestRejected
from dataloader.app.http.routing import ANY_KEY, ApiBlueprint, etag_of
from dataloader.app.http.schemas import JobState, parse_job_id
from dataloader.app.http.site import Site
from dataloader.app.queue.job import Enqueued, Job, Status
from dataloader.app.tracing import parse_traceparent

MAX_WAIT_SEC = 30
_POLL_INTERVAL_SEC = 0.25

T = TypeVar("T")


class JobIdConverter(BaseConverter):
    """Any text in place of a job id, so that an invalid id is a 404 of a job.

    Words of other routes are excluded: `GET /api/v1/jobs/trigger` is a wrong method, not a wrong id.
    """

    regex = r"(?!(?:trigger|batch)\Z)[^/]+"


class StatusQuery(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    wait: Annotated[
        float, Field(ge=0, le=MAX_WAIT_SEC, description="How many seconds to wait until the job is finished.")
    ] = 0


class StrictQuery(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    strict: Annotated[
        bool, Field(description="Reject a job that no live worker would run, instead of returning `warnings`.")
    ] = False


def create_jobs_blueprint(site: Site) -> ApiBlueprint:
    queue = site.queue
    pipelines = site.pipelines
    request_model = trigger_request_model(site.options, site.pipelines)
    tracer = site.tracer
    watcher = site.watcher
    queue_settings = site.queue_settings
    blueprint = ApiBlueprint("jobs", "/api/v1", problems=DATABASE_PROBLEMS)

    @blueprint.post(
        "/jobs/trigger",
        body=request_model,
        query=StrictQuery,
        response=TriggerResponse,
        problems=(
            ProblemCode.IDEMPOTENCY_CONFLICT,
            ProblemCode.OUTSIDE_KEY_LIMITS,
            ProblemCode.QUEUE_DRAINING,
            ProblemCode.WOULD_NOT_RUN,
        ),
        scope=Scope.TRIGGER,
    )
    def trigger_job(body: JobRequest, query: StrictQuery) -> dict[str, Any]:
        """Trigger a job.

        Idempotent when `idempotency_key` is given: a repeated request returns the existing job and its current
        status, as does any request with the `live_key` of a queued or running job. A task that this process does not
        know is accepted, since another worker may know it. The args of a known task are validated, and `queue` and
        `lock_key` may be left out if the task has defaults. A `traceparent` header (W3C Trace Context) adds the job
        to the caller's trace.

        `warnings` say why the job may never run: no live worker knows its task or serves its queue, or the queue is
        paused. With `strict` such a request is rejected instead, and no job is created.
        """
        actor = current_actor()
        actor.require_trigger(body.task, body.queue)
        errors = body.args_errors(pipelines.get(body.task))
        if errors:
            raise InvalidRequest(errors)
        require_visible_parents(queue.executor, actor, body.after)
        queue_settings.reject_if_draining(body.queue)
        warnings = queue_settings.run_warnings(
            body.queue, body.task, can_see_queue=actor.can_see_queue, can_see_task=actor.can_see_task
        )
        if warnings and query.strict:
            raise RequestRejected(ProblemCode.WOULD_NOT_RUN, "; ".join(warnings), fields={"warnings": warnings})
        enqueued = _enqueue(body)
        audit_action(
            "job.triggered",
            job_id=enqueued.job_id,
            queue=body.queue,
            task=body.task,
            created=enqueued.created,
            producer=body.producer,
        )
        is_queued = enqueued.status is Status.QUEUED
        return TriggerResponse(
            enqueued.job_id, enqueued.status, warnings if is_queued else [], enqueued.debounced
        ).to_dict()

    def _enqueue(body: JobRequest) -> Enqueued:
        """Enqueue the job within the caller's trace, if the request names one."""
        header = request.headers.get("traceparent")
        traceparent = parse_traceparent(header) if header else None
        if tracer is None:
            return enqueue_visible(queue, current_actor(), body.to_new_job(traceparent))
        attributes = {"dataloader.queue": body.queue, "dataloader.task": body.task}
        with tracer.enqueue_span(traceparent, attributes) as span:
            return enqueue_visible(queue, current_actor(), body.to_new_job(span.traceparent))

    @blueprint.get(
        "/jobs/<job:job_id>/status",
        query=StatusQuery,
        response=JobState,
        problems=(ProblemCode.JOB_NOT_FOUND, ProblemCode.TOO_MANY_WAITING),
        scope=ANY_KEY,
    )
    def get_job_status(query: StatusQuery, job_id: str) -> JobState:
        """Get the status of a job.

        With `wait` the response comes when the job has finished or the time is over. With the `ETag` of an earlier
        response in `If-None-Match` it comes as soon as the status differs; a 304 means that nothing has changed.
        """
        return JobState.from_job(watcher.wait(lambda: _get_visible_job(job_id), _should_return, query.wait))

    def _get_visible_job(job_id: str) -> Job:
        job = _get_job(job_id)
        if not current_actor().can_see(job.task, job.queue):
            raise JobNotFound(job.id)
        return job

    def _get_job(raw_id: str) -> Job:
        job_id = parse_job_id(raw_id)
        job = queue.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    add_routes(blueprint, (cancel_job, retry_job), site.runner)
    return blueprint


def _should_return(job: Job) -> bool:
    """Return whether the job has finished, or differs from what the caller has seen."""
    if job.status.final or not request.headers.get("If-None-Match"):
        return job.status.final
    return not request.if_none_match.contains_weak(etag_of(dump_json(JobState.from_job(job))))
