"""Parents of requests: a caller that is limited to tasks or queues waits for jobs that it sees, and for no others.

A job learns how its parents ended, and `{"$result": ID}` in its args is a parent's result.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.db.statements import Executor
from app.errors import InvalidJob
from app.web.auth.guard import Actor
from app.web.trigger_request import ParentReference


def parent_problem(executor: Executor, actor: Actor, parents: Sequence[ParentReference] | None) -> str | None:
    """What is wrong with `after`: the first parent that the caller does not see, as one that does not exist."""
    if not parents or actor.sees_all_jobs:
        return None
    ids = [str(parent.job_id) for parent in parents]
    limits = {name: None if names is None else sorted(names) for name, names in actor.limits.items()}
    visible = {str(job_id) for (job_id,) in executor.execute("visible_jobs", {"job_ids": ids, **limits})}
    unseen = (f"[{n}].job_id: there is no job {job_id}" for n, job_id in enumerate(ids) if job_id not in visible)
    return next(unseen, None)


def require_visible_parents(executor: Executor, actor: Actor, parents: Sequence[ParentReference] | None) -> None:
    """Raises InvalidJob, as the database does for a job that does not exist."""
    if problem := parent_problem(executor, actor, parents):
        raise InvalidJob(f"PostgreSQL refused a value: after {problem}", field="after")
