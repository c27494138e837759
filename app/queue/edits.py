"""Changes that people make to jobs that wait, and the end of those that are over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from app.errors import JobChanged, JobNotFound, NotDeletable, NotEditable
from app.queue.jobqueue import JobQueue, Source
from app.queue.lists import Lists, Versioned
from app.queue.values import array, checked_json, checked_text

_AGAIN = 5  # looks at a job that others change at this very moment


@dataclass(frozen=True, kw_only=True)
class Edit:
    """What a waiting job shall have instead; None: as it is."""

    priority: int | None = None
    available_at: datetime | None = None
    args: Mapping[str, Any] | None = None
    max_attempts: int | None = None
    lease_ttl_sec: int | None = None
    time_limit_sec: int | None = None
    retry: Mapping[str, Any] | None = None
    partition_key: str | None = None
    clear: frozenset[str] = frozenset()  # of time_limit_sec and retry: as the task says, from now on


class Edits:
    """Each is journaled, and changes nothing if the job is not in the version that was seen."""

    def __init__(self, source: Source) -> None:
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask
        self._lists, self._queue = Lists(source), JobQueue(source)

    def edit(self, job_id: UUID, edit: Edit, *, seen: str | None = None) -> Versioned:
        """Change a waiting job; `seen`: only if it still is in this version.

        Raises JobNotFound, NotEditable when it does not wait any more, JobChanged when it is in another version.
        """
        asked = _values(edit)
        for _ in range(_AGAIN):
            found = self._lists.versioned(job_id)
            if seen is not None and found.version != seen:
                raise JobChanged(job_id)
            if found.job.status.value != "queued":
                raise NotEditable(job_id, found.job.status)
            if self._ask("edit", {**asked, "job_id": str(job_id), "version": found.version}):
                return self._lists.versioned(job_id)
        raise JobChanged(job_id)

    def delete(self, job_id: UUID, *, seen: str | None = None) -> None:
        """Delete a finished job. Raises JobNotFound, JobChanged, and NotDeletable while it waits or runs."""
        if self._ask("delete_job", {"job_id": str(job_id), "version": seen}):
            return
        found = self._lists.versioned(job_id)
        if not found.job.status.final:
            raise NotDeletable(job_id, found.job.status)
        if seen is not None and found.version != seen:
            raise JobChanged(job_id)
        raise JobNotFound(job_id)


def _values(edit: Edit) -> dict[str, Any]:
    return {
        "priority": edit.priority,
        "available_at": edit.available_at,
        "args": None if edit.args is None else checked_json("args", dict(edit.args)),
        "max_attempts": edit.max_attempts,
        "lease_ttl_sec": edit.lease_ttl_sec,
        "time_limit_sec": edit.time_limit_sec,
        "retry": None if edit.retry is None else checked_json("retry", dict(edit.retry)),
        "partition_key": None if edit.partition_key is None else checked_text("partition_key", edit.partition_key),
        "clear": array(sorted(edit.clear)),
    }
