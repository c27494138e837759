"""The jobs: trigger, watch, cancel, retry."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any
from uuid import UUID

from flask import request
from pydantic import BaseModel, ConfigDict, Field
from werkzeug.routing import BaseConverter

from app import traces
from app.errors import JobNotFound
from app.queue.job import Job, Status
from app.queue.jobqueue import JobQueue
from app.queue.keys import Scope
from app.queue.together import Together
from app.traces import Tracer
from app.web.again import fail_as_before
from app.web.answers import json_text
from app.web.auth import current_actor
from app.web.conditional import tag_of
from app.web.exchange import said
from app.web.models import JobState, Triggered, TriggerRequest
from app.web.operations import ANY_KEY, Subject
from app.web.options import WebOptions
from app.web.problems import Code, InvalidRequest, WouldNotRun
from app.web.queues import Drains
from app.web.tasks import args_faults
from app.web.waiting import LONGEST_WAIT_SEC, Waiting
from pipelines.contract import Pipelines

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_DATABASE = (Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH)


class JobId(BaseConverter):
    """Anything that stands where a job's id is expected: one that is no UUID is told to be no job.

    Except where a route of another method has a word: `GET /api/v1/jobs/trigger` is a wrong method, not a wrong id.
    """

    regex = r"(?!(?:trigger|batch)\Z)[^/]+"


class NoSuchId(JobNotFound):
    """What was asked for is no UUID, so it cannot be the id of a job."""

    def __init__(self, told: str) -> None:
        Exception.__init__(self, f"{told[:64]!r} is not the id of a job; ids are UUIDs, as the trigger returned them")


class StatusQuery(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    wait: Annotated[
        float, Field(ge=0, le=LONGEST_WAIT_SEC, description="How many seconds to wait for the end of the job.")
    ] = 0


class StrictQuery(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    strict: Annotated[
        bool, Field(description="Refuse what no live worker would run, instead of answering with `warnings`.")
    ] = False


def jobs(
    queue: JobQueue,
    together: Together,
    pipelines: Pipelines,
    options: WebOptions,
    asked: type[TriggerRequest],
    tracer: Tracer,
    waiting: Waiting,
    drains: Drains,
) -> Subject:
    subject = Subject("jobs", "/api/v1", options.max_json_depth)

    @subject.post(
        "/jobs/trigger",
        body=asked,
        query=StrictQuery,
        answer=Triggered,
        problems=(
            Code.IDEMPOTENCY_CONFLICT,
            Code.OUTSIDE_KEY_LIMITS,
            Code.QUEUE_DRAINING,
            Code.WOULD_NOT_RUN,
            *_DATABASE,
        ),
        scope=Scope.TRIGGER,
    )
    def trigger(wanted: TriggerRequest, how: StrictQuery) -> dict[str, Any]:
        """Put a job into the queue.

        Idempotent when `idempotency_key` is given: the same request again answers with the job that is there already
        and its present status, as does any request with the `live_key` of a job that waits or runs. A task that this
        process does not know is accepted; another worker may know it. Of one that it knows the args are checked, and
        `queue` and `lock_key` may be left out if the task has them. A `traceparent` header (W3C Trace Context) makes
        the job a part of the caller's trace.

        `warnings` say why the job may never run: no live worker knows its task or serves its queue, or the queue is
        paused. With `strict` such a request is refused instead, and nothing is done.
        """
        current_actor().must_trigger(wanted.task, wanted.queue)
        faults = args_faults(pipelines.get(wanted.task), wanted.args)
        if faults:
            raise InvalidRequest(faults)
        drains.refuse(wanted.queue)
        warnings = drains.doubts(wanted.queue, wanted.task)
        if warnings and how.strict:
            raise WouldNotRun(warnings)
        facts = {"dataloader.queue": wanted.queue, "dataloader.task": wanted.task}
        with tracer.asking(traces.read(request.headers.get("traceparent")), facts) as part:
            fail_as_before()
            enqueued = together.enqueue(wanted.new_job(part.traceparent))
        said(
            "job.trigger",
            job_id=enqueued.job_id,
            queue=wanted.queue,
            task=wanted.task,
            created=enqueued.created,
            producer=wanted.producer,
        )
        waits = enqueued.status is Status.QUEUED
        return Triggered(enqueued.job_id, enqueued.status, warnings if waits else []).answer()

    @subject.get(
        "/jobs/<job:job_id>/status",
        query=StatusQuery,
        answer=JobState,
        problems=(Code.JOB_NOT_FOUND, Code.TOO_MANY_WAITING, *_DATABASE),
        scope=ANY_KEY,
    )
    def status(wanted: StatusQuery, job_id: str) -> JobState:
        """Say how a job does.

        With `wait` the answer comes when the job has ended, or that time is over. With the `ETag` of the answer before
        in `If-None-Match` it comes as soon as it is another one; a 304 says that nothing has changed.
        """
        job = _seen(_existing(job_id))
        return JobState.of(_waited(job, wanted.wait) if wanted.wait else job)

    def _seen(job: Job) -> Job:
        if not current_actor().may_see(job.task, job.queue):
            raise JobNotFound(job.id)
        return job

    def _waited(job: Job, seconds: float) -> Job:
        deadline = time.monotonic() + seconds
        with waiting.place():
            while not _tells_something(job):
                version = waiting.version(job.id)
                job = _existing(str(job.id))  # it may have changed before the version was read
                if _tells_something(job) or not waiting.change(job.id, version, deadline):
                    break
                job = _existing(str(job.id))
        return job

    @subject.post(
        "/jobs/<job:job_id>/cancel",
        answer=JobState,
        problems=(Code.JOB_NOT_FOUND, *_DATABASE),
        scope=Scope.OPERATE,
    )
    def cancel(job_id: str) -> JobState:
        """Cancel a job.

        A queued job is canceled at once. A running one is asked to stop, and is canceled at its next safe point. A
        finished job is left as it is.
        """
        job = queue.cancel(job_id_of(job_id))
        said("job.cancel", job_id=job.id, queue=job.queue, task=job.task, status=job.status)
        return JobState.of(job)

    @subject.post(
        "/jobs/<job:job_id>/retry",
        answer=JobState,
        problems=(Code.JOB_NOT_FOUND, Code.NOT_RETRYABLE, *_DATABASE),
        scope=Scope.OPERATE,
    )
    def retry(job_id: str) -> JobState:
        """Queue a failed, canceled or lost job again, with all its attempts."""
        job = queue.retry(job_id_of(job_id))
        said("job.retry", job_id=job.id, queue=job.queue, task=job.task)
        return JobState.of(job)

    def _existing(told: str) -> Job:
        job_id = job_id_of(told)
        job = queue.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    return subject


def _tells_something(job: Job) -> bool:
    """There is nothing more to wait for: it has ended, or the caller has seen it in another state."""
    if job.status.final or not request.headers.get("If-None-Match"):
        return job.status.final
    return not request.if_none_match.contains_weak(tag_of(json_text(JobState.of(job))))


def job_id_of(told: str) -> UUID:
    if not _UUID.fullmatch(told):
        raise NoSuchId(told)
    return UUID(told)
