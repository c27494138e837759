"""Triggering many jobs with one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dataloader.app.errors import DataloaderError, IdempotencyConflict
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.jobs.trigger_request import JobRequest, trigger_request_model
from dataloader.app.http.json_io import MAX_JSON_DEPTH, FieldError
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.problems import (
    DATABASE_PROBLEMS,
    InvalidRequest,
    ItemProblem,
    ProblemCode,
    RequestRejected,
    problem_code,
)
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import BodyModel, field_errors
from dataloader.app.http.site import Site
from dataloader.app.queue.batch import BatchOutcome, Outcome
from dataloader.app.queue.job import NewJob, Status

MAX_JOBS = 10_000
_MAX_ERRORS_SHOWN = 20  # per item
_MAX_WARNINGS = 20  # per batch


class BatchRequest(BodyModel):
    """Requests for jobs, each as `POST /api/v1/jobs/trigger` takes it."""

    jobs: list[Any] = Field(
        min_length=1,
        max_length=MAX_JOBS,
        description="Requests for jobs, each an object as `POST /api/v1/jobs/trigger` takes it.",
        examples=[[{"queue": "etl.default", "task": "noop", "lock_key": "noop", "idempotency_key": "noop-1"}]],
        json_schema_extra={"items": {"description": "Validated separately; its errors are in its outcome."}},
    )
    mode: Literal["best_effort", "all_or_none"] = Field(
        "best_effort", description="Whether valid jobs are created although others are rejected."
    )


@dataclass(frozen=True)
class BatchItem:
    """The outcome of one job of the batch. `job_id` is the job created, found, or in conflict."""

    index: int
    outcome: Outcome
    job_id: UUID | None
    status: Status | None
    problem: ItemProblem | None


@dataclass(frozen=True)
class BatchResponse:
    """The number of jobs by outcome, and the outcome of each in order. `warnings`: why some jobs may never run."""

    created: int
    exists: int
    debounced: int
    conflict: int
    invalid: int
    skipped: int
    items: list[BatchItem]
    warnings: list[str]


def create_batch_blueprint(site: Site) -> ApiBlueprint:
    jobs, options = site.jobs, site.options
    blueprint = ApiBlueprint("batch", "/api/v1", MAX_JSON_DEPTH + 2, problems=DATABASE_PROBLEMS)
    model = trigger_request_model(options, site.pipelines)
    all_requests = TypeAdapter(list[model], config=ConfigDict(defer_build=True))  # type: ignore[valid-type]  # made at run time

    @blueprint.post(
        "/jobs/batch",
        body=BatchRequest,
        response=BatchResponse,
        problems=(ProblemCode.BATCH_REFUSED,),
        scope=Scope.TRIGGER,
        max_body_bytes=options.max_batch_bytes,
    )
    def trigger_jobs(body: BatchRequest) -> BatchResponse:
        """Trigger many jobs.

        At most 10,000, in one statement and one transaction. Each has an outcome: `created`; `exists`, when its
        `idempotency_key`, `live_key` or `throttle` finds a job already; `debounced`, when it changed a queued job;
        `conflict`, when the key belongs to another request;
        `invalid`, with a problem that says why. With the mode `all_or_none` either every job is created or exists, or
        the answer is a 409 with the outcomes and nothing was done. A batch whose answer was lost can be sent again as
        it is when every request has an idempotency key.
        """
        all_or_none = body.mode == "all_or_none"
        checked = _validate(body.jobs)
        valid_jobs = [job for job in checked if isinstance(job, NewJob)]
        if all_or_none and len(valid_jobs) < len(checked):
            outcomes = iter([BatchOutcome(Outcome.SKIPPED, None, None)] * len(valid_jobs))
        else:
            outcomes = iter(jobs.enqueue_batch(valid_jobs, all_or_none=all_or_none))
        items = [
            _invalid_item(n, job) if isinstance(job, ItemProblem) else _item_of_outcome(n, job, next(outcomes))
            for n, job in enumerate(checked)
        ]
        counts = Counter(item.outcome for item in items)
        by_outcome = {outcome.value: counts[outcome] for outcome in Outcome}
        response = BatchResponse(**by_outcome, items=items, warnings=_batch_warnings(valid_jobs))
        audit_action(
            "job.batch_triggered", jobs=len(items), created=response.created, exists=response.exists, mode=body.mode
        )
        if all_or_none and response.created + response.exists + response.debounced < len(items):
            detail = (
                f"{response.invalid} requests are invalid and {response.conflict} are in conflict; nothing was done"
            )
            raise RequestRejected(ProblemCode.BATCH_REFUSED, detail, fields=vars(response))
        return response

    def _validate(items: Sequence[Any]) -> Sequence[NewJob | ItemProblem]:
        requests = items
        with suppress(ValidationError):  # then each by itself: it has its own problem
            requests = all_requests.validate_python(items)
        return [_checked(item) for item in requests]

    def _checked(item: Any) -> NewJob | ItemProblem:
        try:
            valid: JobRequest = item if isinstance(item, model) else model.model_validate(item)
            jobs.check_request(valid)
        except ValidationError as error:
            return _item_problem(InvalidRequest(field_errors(error)))
        except (InvalidRequest, RequestRejected, DataloaderError) as error:
            return _item_problem(error)
        return valid.to_new_job()

    def _batch_warnings(new_jobs: Sequence[NewJob]) -> list[str]:
        found: dict[str, None] = {}
        for queue, task in dict.fromkeys((job.queue, job.task) for job in new_jobs):
            found.update(dict.fromkeys(jobs.warnings(queue, task)))
            if len(found) >= _MAX_WARNINGS:
                break
        return [*found][:_MAX_WARNINGS]

    return blueprint


def _invalid_item(index: int, problem: ItemProblem) -> BatchItem:
    return BatchItem(index, Outcome.INVALID, None, None, problem)


def _item_of_outcome(index: int, job: NewJob, outcome: BatchOutcome) -> BatchItem:
    problem = None
    if outcome.outcome is Outcome.CONFLICT and (outcome.job_id or outcome.detail):
        problem = _item_problem(IdempotencyConflict(job.unique_keys, outcome.job_id, outcome.detail or ""))
    elif outcome.outcome is Outcome.INVALID:
        problem = _item_problem(InvalidRequest([FieldError(outcome.field or "body", outcome.detail or "")]))
    return BatchItem(index, outcome.outcome, outcome.job_id, outcome.status, problem)


def _item_problem(error: Exception) -> ItemProblem:
    code = problem_code(error)
    errors = error.errors if isinstance(error, InvalidRequest) else ()
    return ItemProblem(code.text, code.title, code.status, str(error), list(errors[:_MAX_ERRORS_SHOWN]))
