"""What the context of a task asks of graphs: the results of its parents, and jobs with a successor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import from_row
from dataloader.app.db.statements import Executor
from dataloader.app.features.graphs.rows import Graphs, ParentJob
from dataloader.app.queue.job import NewJob
from dataloader.pipelines.context import Upstream
from dataloader.pipelines.retry import Fail


def read_parents(execute: Callable[..., list[tuple[Any, ...]]], job_id: UUID) -> dict[str, Upstream]:
    """Return the parents of a job by their key. Raises Fail if one was deleted with its result."""
    rows = execute("job_parents", {"job_id": str(job_id)})
    deleted = execute("deleted_parents", {"job_id": str(job_id)})
    if deleted:
        raise Fail(f"it waited for job {deleted[0][0]}, which was deleted with its result")
    parents = [from_row(ParentJob, row) for row in rows]
    return {p.key: Upstream(p.job_id, p.status.value, p.result, p.error) for p in parents}


def enqueue_group(
    executor: Executor, jobs: Sequence[NewJob], then: NewJob, *, on: str, need: str
) -> tuple[list[UUID], UUID]:
    """Enqueue jobs and a successor that waits for them."""
    return Graphs(executor).fan_out(jobs, then, on=on, need=need)
