"""How long finished jobs, events and logs are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DAY_SEC = 86_400.0
_PROGRESS_SEC = 3 * DAY_SEC


@dataclass(frozen=True, kw_only=True)
class RetentionPeriods:
    """Retention periods in seconds. Those of a task take precedence over those of a status."""

    succeeded: float = 14 * DAY_SEC
    canceled: float = 14 * DAY_SEC
    failed: float = 30 * DAY_SEC
    lost: float = 30 * DAY_SEC
    tasks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # task → status → seconds
    events: float = 30 * DAY_SEC
    logs: float = 14 * DAY_SEC
    audit: float = 365 * DAY_SEC

    @property
    def progress(self) -> float:
        """Of running jobs, whose rows have it within the hour: what pages draw of the last days."""
        return min(_PROGRESS_SEC, self.logs)
