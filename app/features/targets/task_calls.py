"""What the context of a task asks of targets: a fence for its attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID


def draw_fence(
    execute: Callable[..., list[tuple[Any, ...]]], job_id: UUID, run_id: UUID, target: str, problem: str | None
) -> int:
    """Return a number that is higher than those of all earlier attempts of the job."""
    parameters = {"job_id": str(job_id), "run_id": str(run_id), "target": target, "problem": problem}
    fence: int = execute("draw_fence", parameters)[0][0]
    return fence
