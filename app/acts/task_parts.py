"""Parts of the task's page. `task_parts` of a Feature names a function of a Site and a task's name that yields them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TaskPart:
    """A template of the feature, which has the part as `part`."""

    template: str
    data: Mapping[str, Any]
    is_wide: bool = False  # below the runs, and not above the definition
    has_chart: bool = False
