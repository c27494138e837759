"""Makes the jobs of requests, with one list of what refuses a job: trigger, batch, graph, clone and form pass it.

What the values of a request must be by themselves is in its model (`trigger_request.py`) and in `dl_request_problem`
of the schema, which every way of making a job asks, also `ctx.enqueue`, schedules, backfills and `dl_enqueue`. Here is
what depends on the caller, on the queue and on the task.

A job that the caller may not see is as one that does not exist: a job learns how its parents ended, and
`{"$result": ID}` in its args is a parent's result. Of a key that such a job has, only that it is taken is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from flask import request

from dataloader.app.errors import IdempotencyConflict
from dataloader.app.http.auth.guard import Actor, current_actor
from dataloader.app.http.caches import QueueSettingsCache
from dataloader.app.http.jobs.trigger_request import JobRequest, validate_args
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import InvalidRequest
from dataloader.app.queue.batch import BatchOutcome, Outcome, enqueue_batch
from dataloader.app.queue.job import Enqueued, NewJob
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.tracing import Tracer, parse_traceparent
from dataloader.pipelines.contract import Args, Pipelines

_OTHER_OWNER = "a job that this key may not see"


class JobMaker:
    """Checks and makes jobs for the caller of the request that is being handled."""

    def __init__(
        self, queue: JobQueue, pipelines: Pipelines, queue_settings: QueueSettingsCache, tracer: Tracer | None = None
    ) -> None:
        self._queue, self._pipelines, self._queue_settings, self._tracer = queue, pipelines, queue_settings, tracer
        self._executor = queue.executor

    def check_caller(self, task: str, queue: str) -> None:
        """Raise what refuses any job of the task in the queue: RequestRejected or QueueDraining."""
        current_actor().require_trigger(task, queue)
        self._queue_settings.reject_if_draining(queue)

    def check(
        self,
        *,
        task: str,
        queue: str,
        args: Args,
        parent_keys: Collection[str] | None = (),
        parent_ids: Sequence[UUID] = (),
    ) -> None:
        """Raise what refuses a job with these values: RequestRejected, QueueDraining or InvalidRequest.

        `parent_keys` are the names by which args may refer to results of parents; None: any id.
        """
        self.check_caller(task, queue)
        if errors := validate_args(self._pipelines.get(task), args, parents=parent_keys):
            raise InvalidRequest(errors)
        if problem := self._parent_problem(current_actor(), parent_ids):
            raise InvalidRequest([FieldError("after", problem)])

    def check_request(self, job: JobRequest) -> None:
        """Raise what refuses the job of a valid request."""
        self.check(
            task=job.task,
            queue=job.queue,
            args=job.checked_args,
            parent_keys=None if job.after else (),
            parent_ids=[parent.job_id for parent in job.after or ()],
        )

    def warnings(self, queue: str, task: str) -> list[str]:
        """Why no live worker would run such a job."""
        actor = current_actor()
        return self._queue_settings.run_warnings(
            queue, task, can_see_queue=actor.can_see_queue, can_see_task=actor.can_see_task
        )

    def enqueue_request(self, job: JobRequest) -> Enqueued:
        """Enqueue a job that has been checked within the caller's trace, if the request names one."""
        header = request.headers.get("traceparent")
        traceparent = parse_traceparent(header) if header else None
        if self._tracer is None:
            return self.enqueue(job.to_new_job(traceparent))
        attributes = {"dataloader.queue": job.queue, "dataloader.task": job.task}
        with self._tracer.enqueue_span(traceparent, attributes) as span:
            return self.enqueue(job.to_new_job(span.traceparent))

    def enqueue(self, job: NewJob) -> Enqueued:
        """Enqueue a job that has been checked. Raises InvalidJob, and IdempotencyConflict, which names the job that has
        the key only if the caller sees that one."""
        actor = current_actor()
        try:
            enqueued = self._queue.enqueue(job)
        except IdempotencyConflict as conflict:
            if conflict.job_id is None or self._sees(actor, conflict.job_id):
                raise
            raise IdempotencyConflict(conflict.keys, None, _OTHER_OWNER) from None
        if not enqueued.created and not self._sees(actor, enqueued.job_id):  # such as of the same slice
            raise IdempotencyConflict(job.unique_keys, None, _OTHER_OWNER)
        return enqueued

    def enqueue_batch(self, jobs: Sequence[NewJob], *, all_or_none: bool) -> Sequence[BatchOutcome]:
        """Enqueue jobs that have been checked. The outcomes are without ids and states of jobs that the caller does not
        see."""
        outcomes = enqueue_batch(self._executor, jobs, all_or_none=all_or_none)
        actor = current_actor()
        named = [item.job_id for item in outcomes if item.job_id is not None and item.outcome is not Outcome.CREATED]
        if not named or actor.sees_all_jobs:
            return outcomes
        hidden = {str(job_id) for job_id in named} - self._visible_ids(actor, named)
        return [
            item._replace(job_id=None, status=None, detail=_OTHER_OWNER) if str(item.job_id) in hidden else item
            for item in outcomes
        ]

    def _parent_problem(self, actor: Actor, job_ids: Sequence[UUID]) -> str | None:
        """The first parent that the caller does not see, in the words of the database for one that does not exist."""
        if not job_ids or actor.sees_all_jobs:
            return None
        seen = self._visible_ids(actor, job_ids)
        unseen = (
            f"[{n}].job_id: there is no job {job_id}" for n, job_id in enumerate(job_ids) if str(job_id) not in seen
        )
        return next(unseen, None)

    def _sees(self, actor: Actor, job_id: UUID) -> bool:
        return actor.sees_all_jobs or bool(self._visible_ids(actor, [job_id]))

    def _visible_ids(self, actor: Actor, job_ids: Iterable[UUID]) -> set[str]:
        limits = {name: None if names is None else sorted(names) for name, names in actor.limits.items()}
        rows = self._executor.execute("visible_jobs", {"job_ids": [str(job_id) for job_id in job_ids], **limits})
        return {str(job_id) for (job_id,) in rows}
