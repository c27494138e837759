"""DL_KEEP_TASKS: how many days the jobs of single tasks are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

ENDS = ("succeeded", "failed", "canceled", "lost")
_LONGEST = 36_500
_EXAMPLE = 'such as {"heartbeat.check": 1, "load.cbr.rates": {"succeeded": 3, "failed": 90}}'


def of_tasks(told: Any) -> Mapping[str, Mapping[str, float]]:
    """Task → status → days. One number stands for all statuses; a status that is not named has its usual age."""
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except (ValueError, RecursionError):
            raise ValueError(f"a JSON object would do, {_EXAMPLE}") from None
    if not isinstance(told, Mapping):
        raise ValueError(f"a JSON object would do, {_EXAMPLE}")
    return {task: _ages(task, ages) for task, ages in told.items()}


def _ages(task: str, told: Any) -> Mapping[str, float]:
    if isinstance(told, Mapping):
        unknown = sorted(set(told) - set(ENDS))
        if unknown:
            raise ValueError(f"{task!r} names {', '.join(unknown)}; the statuses a job ends in are {', '.join(ENDS)}")
        return {status: _days(task, days) for status, days in told.items()}
    return dict.fromkeys(ENDS, _days(task, told))


def _days(task: str, told: Any) -> float:
    if (
        isinstance(told, bool)
        or not isinstance(told, int | float)
        or not math.isfinite(told)
        or not 0 < told <= _LONGEST
    ):
        raise ValueError(f"{task!r} has {told!r}; a number of days from 0.01 to {_LONGEST} would do")
    return float(told)
