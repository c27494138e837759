"""What an operator does with one job."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from app.acts.act import Call, act
from app.admin.edits import JobEditor
from app.queue.jobs import JobQueue
from app.web.problems import ProblemCode
from app.web.schemas import JobState, parse_job_id


@dataclass(frozen=True)
class JobDeleted:
    job_id: UUID
    deleted: bool


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


@act(
    "job.deleted",
    "DELETE",
    "/jobs/<job:job_id>",
    problems=(ProblemCode.JOB_NOT_FOUND, ProblemCode.NOT_DELETABLE, ProblemCode.CHANGED),
    if_match=True,
)
def delete_job(call: Call, job_id: str) -> JobDeleted:
    """Delete a finished job with its events and its log. Its idempotency key can be used again."""
    parsed_id = parse_job_id(job_id)
    JobEditor(call.executor).delete(parsed_id, if_version=call.if_version)
    call.audit(job_id=parsed_id)
    return JobDeleted(parsed_id, True)
