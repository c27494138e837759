"""What an operator does with a job of any service: cancel it, or queue it again."""

from __future__ import annotations

from dataloader.app.acts.act import Call, act
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.schemas import JobState, parse_job_id
from dataloader.app.queue.jobs import JobQueue


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
