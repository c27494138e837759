"""What callers do with a job of any service: trigger it, cancel it, or queue it again."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from dataloader._job_fields import REQUEST_FIELDS
from dataloader.app.acts.act import Call, Undo, act, undone_by
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.jobs.trigger_request import JobRequest, TriggerResponse
from dataloader.app.http.problems import ProblemCode, RequestRejected
from dataloader.app.http.schemas import JobState, parse_job_id
from dataloader.app.queue.job import Job, Status
from dataloader.app.queue.jobs import JobQueue


class TriggerQuery(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    strict: Annotated[
        bool, Field(description="Reject a job that no live worker would run, instead of returning `warnings`.")
    ] = False


@act(
    "job.triggered",
    "POST",
    "/jobs/trigger",
    problems=(
        ProblemCode.IDEMPOTENCY_CONFLICT,
        ProblemCode.OUTSIDE_KEY_LIMITS,
        ProblemCode.QUEUE_DRAINING,
        ProblemCode.WOULD_NOT_RUN,
    ),
    scope=Scope.TRIGGER,
    unaudited={*REQUEST_FIELDS, "strict"},
)
def trigger_job(call: Call, body: JobRequest, query: TriggerQuery) -> TriggerResponse:
    """Trigger a job.

    Idempotent when `idempotency_key` is given: a repeated request returns the existing job and its current
    status, as does any request with the `live_key` of a queued or running job. A task that this process does not
    know is accepted, since another worker may know it. The args of a known task are validated, and `queue` and
    `lock_key` may be left out if the task has defaults. A `traceparent` header (W3C Trace Context) adds the job
    to the caller's trace.

    `warnings` say why the job may never run: no live worker knows its task or serves its queue, or the queue is
    paused. With `strict` such a request is rejected instead, and no job is created.
    """
    call.jobs.check_request(body)
    warnings = call.jobs.warnings(body.queue, body.task)
    if warnings and query.strict:
        raise RequestRejected(ProblemCode.WOULD_NOT_RUN, "; ".join(warnings), fields={"warnings": warnings})
    enqueued = call.jobs.enqueue_request(body)
    call.audit(
        job_id=enqueued.job_id, queue=body.queue, task=body.task, created=enqueued.created, producer=body.producer
    )
    is_queued = enqueued.status is Status.QUEUED
    return TriggerResponse(enqueued.job_id, enqueued.status, warnings if is_queued else [], enqueued.debounced)


class CancelUndo(Undo):
    subject, fields = "job", frozenset({"status"})

    @classmethod
    def can_undo(cls, before: dict[str, Any] | None, after: dict[str, Any] | None, name: str) -> bool:
        statuses = [(values or {}).get("status") for values in (before, after)]
        return statuses == [Status.QUEUED, Status.CANCELED]

    def lock(self) -> None:
        """Nothing: a retry is of a job that is canceled, and of no other."""

    def current(self) -> Job | None:
        return JobQueue(self.call.executor).get(UUID(self.name))

    def restore(self) -> None:
        JobQueue(self.call.executor).retry(UUID(self.name), keep_time=True)


@undone_by(CancelUndo)
@act("job.canceled", "POST", "/jobs/<job:job_id>/cancel", problems=(ProblemCode.JOB_NOT_FOUND,))
def cancel_job(call: Call, job_id: str) -> JobState:
    """Cancel a job.

    A queued job is canceled at once. A running one is canceled at its next safe point. A finished job
    does not change.
    """
    job = JobQueue(call.executor).cancel(parse_job_id(job_id))
    call.audit(job_id=job.id, queue=job.queue, task=job.task, status=job.status)
    return JobState.from_job(job)


@act(
    "job.retried",
    "POST",
    "/jobs/<job:job_id>/retry",
    problems=(ProblemCode.JOB_NOT_FOUND, ProblemCode.NOT_RETRYABLE),
)
def retry_job(call: Call, job_id: str) -> JobState:
    """Queue a failed, canceled or lost job again, with all its attempts."""
    job = JobQueue(call.executor).retry(parse_job_id(job_id))
    call.audit(job_id=job.id, queue=job.queue, task=job.task)
    return JobState.from_job(job)
