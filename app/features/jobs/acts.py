"""What an operator does with one job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import Field

from dataloader.app.acts.act import Call, act
from dataloader.app.errors import QueueDraining
from dataloader.app.features.jobs.edits import JobEditor
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.queues.rows import Queues
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.jobs.trigger_request import TriggerResponse, validate_args
from dataloader.app.http.jobs.visible_jobs import enqueue_visible
from dataloader.app.http.problems import InvalidRequest, ProblemCode
from dataloader.app.http.schemas import BodyModel, Name, PositiveInt, Priority, Timestamp, parse_job_id
from dataloader.app.log.masking import unmask
from dataloader.app.queue.job import NewJob
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.queues import QueueState


@dataclass(frozen=True)
class JobDeleted:
    job_id: UUID
    deleted: bool


class JobClone(BodyModel):
    """Fields of the new job; those left out are copied."""

    queue: Name | None = Field(None, description="The queue whose workers run the job.")
    lock_key: Name | None = Field(None, description="Jobs with one key never run at the same time.")
    args: dict[str, Any] | None = Field(None, description="All arguments of the pipeline.")
    priority: Priority | None = Field(None, description="Smaller runs first.")
    available_at: Timestamp = Field(None, description="The earliest start; by default at once.")
    max_attempts: PositiveInt | None = Field(None, description="The maximum number of attempts.")
    idempotency_key: Name | None = Field(
        None, description="Makes the request safe to repeat. The original's is not copied."
    )


@act(
    "job.cloned",
    "POST",
    "/jobs/<job:job_id>/clone",
    problems=(
        ProblemCode.JOB_NOT_FOUND,
        ProblemCode.IDEMPOTENCY_CONFLICT,
        ProblemCode.OUTSIDE_KEY_LIMITS,
        ProblemCode.QUEUE_DRAINING,
    ),
    unaudited=set(JobClone.model_fields),
)
def clone_job(call: Call, job_id: str, body: JobClone) -> TriggerResponse:
    """Create a job like this one, with other args if given.

    Its idempotency key, its live key and its parent are not copied; of a task with `unique_by` the live job with
    these args is returned, if there is one. A value of `args` that is sent masked, as it
    was shown, is copied. A queue that is draining takes no clone.
    """
    original = JobReader(call.executor).get_with_version(parse_job_id(job_id)).job
    changes = {name: value for name, value in vars(body).items() if value is not None}
    if "args" in changes:
        changes["args"] = unmask(changes["args"], original.args)
    values = JobEditor(call.executor).copied_fields(original.id) | changes
    actor = current_actor()
    actor.require_trigger(values["task"], values["queue"])
    task = call.pipelines.get(values["task"])
    if errors := validate_args(task, dict(values["args"])):
        raise InvalidRequest(errors)
    setting = Queues(call.executor).settings().get(values["queue"])
    if setting is not None and setting.state is QueueState.DRAINING:
        raise QueueDraining(setting.queue, setting.note)
    new_job = NewJob(**values, live_key=None if task is None else task.unique_live_key(values["args"]))
    clone = enqueue_visible(JobQueue(call.executor), actor, new_job)
    call.audit(job_id=clone.job_id, cloned_from=original.id, queue=new_job.queue, task=new_job.task)
    return TriggerResponse(clone.job_id, clone.status)


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
