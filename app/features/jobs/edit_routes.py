"""Editing, cloning and deleting jobs over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from dataloader.app.acts.web import add_routes
from dataloader.app.features.jobs.acts import clone_job, delete_job
from dataloader.app.features.jobs.edits import JobEditor
from dataloader.app.features.jobs.job_detail import JobDetail, JobReader
from dataloader.app.features.jobs.list_routes import detail_response
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.jobs.trigger_request import short_lease_message, validate_args
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import DATABASE_PROBLEMS, InvalidRequest, ProblemCode
from dataloader.app.http.routing import ApiBlueprint, VersionedResponse, if_match_version
from dataloader.app.http.schemas import (
    BodyModel,
    IndexedText,
    PositiveInt,
    Priority,
    RetryPolicy,
    Timestamp,
    parse_job_id,
    require_one_field,
)
from dataloader.app.http.site import Site
from dataloader.app.log.masking import unmask
from dataloader.app.queue.job import Job
from dataloader.pipelines.contract import Pipelines


class JobEditRequest(BodyModel):
    """Fields of a queued job to change; those left out stay as they are. Null in `time_limit_sec` and `retry` selects
    the task's default."""

    model_config = ConfigDict(json_schema_extra=require_one_field(null_is_change=True))

    priority: Priority | None = Field(None, description="Smaller runs first.")
    available_at: Timestamp = Field(None, description="The earliest start (RFC 3339 with a zone).")
    args: dict[str, Any] | None = Field(None, description="All arguments of the pipeline.")
    max_attempts: PositiveInt | None = Field(None, description="The maximum number of attempts, including past ones.")
    lease_ttl_sec: PositiveInt | None = Field(None, description="How long the lease lasts without a heartbeat.")
    time_limit_sec: PositiveInt | None = Field(None, description="The time limit of an attempt.")
    retry: RetryPolicy | None = Field(None, description="The delay between attempts.")
    partition_key: IndexedText | None = Field(None, description="The part of the work, such as a day.")

    @model_validator(mode="after")
    def _require_change(self) -> Self:
        if not self.model_fields_set:
            raise PydanticCustomError("change", "there is no change; send at least one field")
        return self


def create_edits_blueprint(site: Site) -> ApiBlueprint:
    queue, pipelines, options = site.queue, site.pipelines, site.options
    blueprint = ApiBlueprint("job_edits", "/api/v1", problems=DATABASE_PROBLEMS)
    editor, reader = JobEditor(queue.executor), JobReader(queue.executor)

    @blueprint.patch(
        "/jobs/<job:job_id>",
        body=JobEditRequest,
        response=JobDetail,
        problems=(ProblemCode.JOB_NOT_FOUND, ProblemCode.NOT_EDITABLE, ProblemCode.CHANGED),
        scope=Scope.OPERATE,
        if_match=True,
    )
    def edit_job(body: JobEditRequest, job_id: str) -> VersionedResponse:
        """Edit a queued job.

        With `If-Match`, the job's `ETag`, nothing is changed if the job has changed since. An `edited` event records
        the values before and after. A repeated trigger with the job's idempotency key still finds it. A value of `args`
        that is sent masked, as it was shown, keeps what the job has.
        """
        job = reader.get_with_version(parse_job_id(job_id)).job
        changes = _unmasked({name: vars(body)[name] for name in body.model_fields_set}, job)
        _validate_edit(body, changes.get("args"), job, pipelines, options)
        editor.edit(job.id, changes, if_version=if_match_version())
        audit_action("job.edited", job_id=job.id, fields=sorted(body.model_fields_set))
        return detail_response(reader, job.id)

    add_routes(blueprint, (clone_job, delete_job), site.runner)
    return blueprint


def _unmasked(changes: dict[str, Any], job: Job) -> dict[str, Any]:
    """The changes with the secrets of the job where their args have the mask."""
    return {**changes, "args": unmask(changes["args"], job.args)} if changes.get("args") else changes


def _validate_edit(
    body: JobEditRequest, args: Mapping[str, Any] | None, job: Job, pipelines: Pipelines, options: WebOptions
) -> None:
    parents = () if job.graph_id is None else None
    errors = [] if args is None else validate_args(pipelines.get(job.task), dict(args), parents=parents)
    if body.lease_ttl_sec is not None and body.lease_ttl_sec < options.min_lease_ttl_sec:
        errors.append(FieldError("lease_ttl_sec", short_lease_message(body.lease_ttl_sec, options.min_lease_ttl_sec)))
    if errors:
        raise InvalidRequest(errors)
