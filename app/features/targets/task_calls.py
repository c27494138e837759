"""What the context of a task asks of targets: a fence for its attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID


def draw_fence(
    execute: Callable[..., list[tuple[Any, ...]]], job_id: UUID, run_id: UUID, target: str, problem: str | None
) -> tuple[int, int]:
    """Return a number that is higher than those of all earlier attempts of the job, and that of the last attempt that
    had a fence in this target, or 0."""
    parameters = {"job_id": str(job_id), "run_id": str(run_id), "target": target, "problem": problem}
    ((number, former),) = execute("draw_fence", parameters)
    return int(number), int(former)
