"""What the context of a task asks of data checks: their last values."""

from __future__ import annotations

from uuid import UUID

from dataloader.app.db.statements import Executor


def check_history(executor: Executor, job_id: UUID, task: str, name: str, count: int) -> list[float]:
    """The last values of a check that did not fail, other than this job's; newest first."""
    parameters = {"task": task, "name": name, "job_id": str(job_id), "count": count}
    return [row[0] for row in executor.execute("check_history", parameters)]
