"""Jobs that a request names by id or by a key: one that the caller may not see is as one that does not exist.

A job learns how its parents ended, and `{"$result": ID}` in its args is a parent's result. A key that a job of others
has is taken, and by which job is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from uuid import UUID

from dataloader.app.db.statements import Executor
from dataloader.app.errors import IdempotencyConflict, InvalidJob
from dataloader.app.http.auth.guard import Actor
from dataloader.app.http.jobs.trigger_request import ParentReference
from dataloader.app.queue.batch import BatchOutcome, Outcome
from dataloader.app.queue.job import Enqueued, NewJob
from dataloader.app.queue.jobs import JobQueue

_OTHER_OWNER = "a job that this key may not see"


def _visible_ids(executor: Executor, actor: Actor, job_ids: Iterable[UUID]) -> set[str]:
    limits = {name: None if names is None else sorted(names) for name, names in actor.limits.items()}
    rows = executor.execute("visible_jobs", {"job_ids": [str(job_id) for job_id in job_ids], **limits})
    return {str(job_id) for (job_id,) in rows}


def parent_problem(executor: Executor, actor: Actor, parents: Sequence[ParentReference] | None) -> str | None:
    """What is wrong with `after`: the first parent that the caller does not see, as one that does not exist."""
    if not parents or actor.sees_all_jobs:
        return None
    ids = [parent.job_id for parent in parents]
    visible = _visible_ids(executor, actor, ids)
    unseen = (f"[{n}].job_id: there is no job {job_id}" for n, job_id in enumerate(ids) if str(job_id) not in visible)
    return next(unseen, None)


def require_visible_parents(executor: Executor, actor: Actor, parents: Sequence[ParentReference] | None) -> None:
    """Raises InvalidJob, as the database does for a job that does not exist."""
    if problem := parent_problem(executor, actor, parents):
        raise InvalidJob(f"PostgreSQL refused a value: after {problem}", field="after")


def enqueue_visible(queue: JobQueue, actor: Actor, job: NewJob) -> Enqueued:
    """Enqueue a job. Raises IdempotencyConflict, without the job that has the key unless the caller sees that."""
    try:
        enqueued = queue.enqueue(job)
    except IdempotencyConflict as conflict:
        if conflict.job_id is None or _sees(queue.executor, actor, conflict.job_id):
            raise
        raise IdempotencyConflict(conflict.key, None, _OTHER_OWNER) from None
    if not enqueued.created and not _sees(queue.executor, actor, enqueued.job_id):  # such as of the same slice
        raise IdempotencyConflict(job.unique_key, None, _OTHER_OWNER)
    return enqueued


def hide_foreign(executor: Executor, actor: Actor, outcomes: Sequence[BatchOutcome]) -> Sequence[BatchOutcome]:
    """The outcomes without ids and states of jobs that the caller does not see."""
    named = [item.job_id for item in outcomes if item.job_id is not None and item.outcome is not Outcome.CREATED]
    if not named or actor.sees_all_jobs:
        return outcomes
    hidden = {str(job_id) for job_id in named} - _visible_ids(executor, actor, named)
    return [
        replace(item, job_id=None, status=None, detail=_OTHER_OWNER) if str(item.job_id) in hidden else item
        for item in outcomes
    ]


def _sees(executor: Executor, actor: Actor, job_id: UUID) -> bool:
    return actor.sees_all_jobs or bool(_visible_ids(executor, actor, [job_id]))
