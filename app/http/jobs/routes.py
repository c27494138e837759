"""Triggering, watching, canceling and retrying jobs over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated
from uuid import UUID

from flask import request
from pydantic import BaseModel, ConfigDict, Field
from werkzeug.routing import BaseConverter

from dataloader.app.acts.web import add_routes
from dataloader.app.errors import JobNotFound
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.jobs.acts import cancel_job, retry_job, trigger_job
from dataloader.app.http.jobs.trigger_request import trigger_request_model
from dataloader.app.http.json_io import dump_json
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ANY_KEY, ApiBlueprint, etag_of
from dataloader.app.http.schemas import JobState, parse_job_id
from dataloader.app.http.site import Site
from dataloader.app.queue.job_records import JobStatus

MAX_WAIT_SEC = 30
_POLL_INTERVAL_SEC = 0.25


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


def create_jobs_blueprint(site: Site) -> ApiBlueprint:
    queue = site.queue
    watcher = site.watcher
    blueprint = ApiBlueprint("jobs", "/api/v1", problems=DATABASE_PROBLEMS)
    trigger = replace(trigger_job, body=trigger_request_model(site.options, site.pipelines))
    add_routes(blueprint, (trigger, cancel_job, retry_job), site.runner)

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
        return JobState.from_job(
            watcher.wait(lambda: _get_visible_status(parse_job_id(job_id)), _should_return, query.wait)
        )

    def _get_visible_status(job_id: UUID) -> JobStatus:
        job = queue.status(job_id)
        if job is None or not current_actor().can_see(job.task, job.queue):
            raise JobNotFound(job_id)
        return job

    return blueprint


def _should_return(job: JobStatus) -> bool:
    """Return whether the job has finished, or differs from what the caller has seen."""
    if job.status.final or not request.headers.get("If-None-Match"):
        return job.status.final
    return not request.if_none_match.contains_weak(etag_of(dump_json(JobState.from_job(job))))
