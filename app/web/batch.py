"""Many triggers in one request, with an outcome for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.errors import DataloaderError, IdempotencyConflict
from app.queue.batch import Batch, Made, Outcome
from app.queue.job import NewJob, Status
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.web.auth import current_actor
from app.web.exchange import said
from app.web.models import TriggerRequest, faults_of, trigger_request
from app.web.operations import Subject
from app.web.options import WebOptions
from app.web.problems import BatchRefused, Code, FieldError, InvalidRequest, OutsideKeyLimits, code_of
from app.web.queues import Drains
from app.web.strictjson import FieldFault
from app.web.tasks import args_faults
from pipelines.contract import Pipelines

MOST = 10_000
_FAULTS_TOLD = 20  # of one item
_MAX_WARNINGS = 20  # of one batch


class BatchRequest(BaseModel):
    """Requests for jobs, each as `POST /api/v1/jobs/trigger` takes it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    jobs: list[Any] = Field(
        min_length=1,
        max_length=MOST,
        description="Requests for jobs, each an object as `POST /api/v1/jobs/trigger` takes it.",
        examples=[[{"queue": "etl.default", "task": "noop", "lock_key": "noop", "idempotency_key": "noop-1"}]],
        json_schema_extra={
            "items": {"description": "Looked at by itself: what is wrong with it stands in its outcome."}
        },
    )
    mode: Literal["best_effort", "all_or_none"] = Field(
        "best_effort", description="Whether what is in order is done although something else is not."
    )


@dataclass(frozen=True)
class ItemProblem:
    """Why nothing came of a request."""

    code: str
    title: str
    status: int
    detail: str
    errors: list[FieldError]


@dataclass(frozen=True)
class BatchItem:
    """What became of one request. `job_id` is that of the job that stands for it, or that is in the way."""

    index: int
    outcome: Outcome
    job_id: UUID | None
    status: Status | None
    problem: ItemProblem | None


@dataclass(frozen=True)
class BatchAnswer:
    """What became of a batch: how many of each outcome, and each request's own, in their order.

    `warnings` say why some of its jobs may never run.
    """

    created: int
    exists: int
    conflict: int
    invalid: int
    left_out: int
    items: list[BatchItem]
    warnings: list[str]


def batch(source: Source, pipelines: Pipelines, options: WebOptions, drains: Drains) -> Subject:
    subject = Subject("batch", "/api/v1", options.max_json_depth + 2)
    model = trigger_request(options, pipelines)
    jobs = Batch(source)

    @subject.post(
        "/jobs/batch",
        body=BatchRequest,
        answer=BatchAnswer,
        problems=(Code.BATCH_REFUSED, Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH),
        scope=Scope.TRIGGER,
        largest=options.max_batch_bytes,
    )
    def trigger_many(wanted: BatchRequest) -> BatchAnswer:
        """Put many jobs into the queue.

        At most 10,000, in one statement and one transaction. Each has an outcome: `created`; `exists`, when its
        `idempotency_key` or `live_key` finds a job already; `conflict`, when the key belongs to another request;
        `invalid`, with a problem that says why. With the mode `all_or_none` either every job is created or exists, or
        the answer is a 409 with the outcomes and nothing was done. A batch whose answer was lost can be sent again as
        it is when every request has an idempotency key.
        """
        whole = wanted.mode == "all_or_none"
        checked = [_checked(item) for item in wanted.jobs]
        sound = [job for job in checked if isinstance(job, NewJob)]
        spoilt = whole and len(sound) < len(checked)
        made = iter([Made(Outcome.LEFT_OUT, None, None)] * len(sound) if spoilt else jobs.enqueue(sound, whole=whole))
        items = [_item(n, job if isinstance(job, ItemProblem) else next(made)) for n, job in enumerate(checked)]
        answer = _answer(items, _warnings(sound))
        said("job.batch", jobs=len(items), created=answer.created, exists=answer.exists, mode=wanted.mode)
        if whole and answer.created + answer.exists < len(items):
            raise BatchRefused(vars(answer))
        return answer

    def _checked(item: Any) -> NewJob | ItemProblem:
        try:
            valid: TriggerRequest = model.model_validate(item)
            current_actor().must_trigger(valid.task, valid.queue)
            faults: Sequence[FieldFault] = args_faults(pipelines.get(valid.task), valid.args)
            if faults:
                raise InvalidRequest(faults)
            drains.refuse(valid.queue)
        except ValidationError as error:
            return _problem(InvalidRequest(faults_of(error)))
        except (InvalidRequest, OutsideKeyLimits, DataloaderError) as error:
            return _problem(error)
        return valid.new_job()

    def _warnings(wanted: Sequence[NewJob]) -> list[str]:
        found: dict[str, None] = {}
        for queue, task in dict.fromkeys((job.queue, job.task) for job in wanted):
            found.update(dict.fromkeys(drains.doubts(queue, task)))
            if len(found) >= _MAX_WARNINGS:
                break
        return [*found][:_MAX_WARNINGS]

    return subject


def _item(index: int, made: Made | ItemProblem) -> BatchItem:
    if isinstance(made, ItemProblem):
        return BatchItem(index, Outcome.INVALID, None, None, made)
    problem = None
    if made.outcome is Outcome.CONFLICT and made.job_id is not None:
        problem = _problem(IdempotencyConflict("", made.job_id))
    elif made.outcome is Outcome.INVALID:
        problem = _problem(InvalidRequest([FieldFault(made.field or "body", made.detail or "")]))
    return BatchItem(index, made.outcome, made.job_id, made.status, problem)


def _problem(error: Exception) -> ItemProblem:
    code = code_of(error)
    faults = error.faults if isinstance(error, InvalidRequest) else ()
    errors = [FieldError(fault.field, fault.message) for fault in faults[:_FAULTS_TOLD]]
    return ItemProblem(code.text, code.title, code.status, str(error), errors)


def _answer(items: list[BatchItem], warnings: list[str]) -> BatchAnswer:
    tally = Counter(item.outcome for item in items)
    return BatchAnswer(
        created=tally[Outcome.CREATED],
        exists=tally[Outcome.EXISTS],
        conflict=tally[Outcome.CONFLICT],
        invalid=tally[Outcome.INVALID],
        left_out=tally[Outcome.LEFT_OUT],
        items=items,
        warnings=warnings,
    )
