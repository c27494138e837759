"""What the context of a task asks of limits: whether calls may be made now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dataloader.app.features.limits.rows import seconds_to_wait


def count_calls(execute: Callable[..., list[tuple[Any, ...]]], limit: str, n: int) -> float:
    """Count calls in a rate; return 0.0, or the seconds to wait before the next try."""
    return seconds_to_wait(execute("acquire_limit", {"name": limit, "weight": n}), n)
