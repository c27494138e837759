"""Edits of queued jobs, and deletion of finished ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from app.admin.job_search import JobSearch
from app.db.encoding import array, validate_json, validate_texts
from app.errors import JobChanged, JobNotFound, NotDeletable, NotEditable
from app.queue.job import Status
from app.queue.jobs import Executor

_MAX_CONFLICT_RETRIES = 5  # while other sessions change the job


@dataclass(frozen=True, kw_only=True)
class JobEdit:
    """New values of a queued job; None leaves a value as it is."""

    priority: int | None = None
    available_at: datetime | None = None
    args: Mapping[str, Any] | None = None
    max_attempts: int | None = None
    lease_ttl_sec: int | None = None
    time_limit_sec: int | None = None
    retry: Mapping[str, Any] | None = None
    partition_key: str | None = None
    clear: frozenset[str] = frozenset()  # of time_limit_sec and retry: use the task's defaults


class JobEditor:
    """Edits and deletes jobs. With `if_version` nothing is changed if the job has another version."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute
        self._job_search = JobSearch(executor)

    def edit(self, job_id: UUID, edit: JobEdit, *, if_version: str | None = None) -> None:
        """Raises JobNotFound, NotEditable if the job is not queued, and JobChanged if it has another version."""
        parameters = (
            vars(edit)
            | validate_texts({"partition_key": edit.partition_key})
            | {
                "args": None if edit.args is None else validate_json("args", dict(edit.args)),
                "retry": None if edit.retry is None else validate_json("retry", dict(edit.retry)),
                "clear": array(sorted(edit.clear)),
            }
        )
        for _ in range(_MAX_CONFLICT_RETRIES):
            found = self._job_search.get_with_version(job_id)
            if if_version is not None and found.version != if_version:
                raise JobChanged(job_id)
            if found.job.status is not Status.QUEUED:
                raise NotEditable(job_id, found.job.status)
            if self._execute("edit_job", {**parameters, "job_id": str(job_id), "version": found.version}):
                return
        raise JobChanged(job_id)

    def delete(self, job_id: UUID, *, if_version: str | None = None) -> None:
        """Raises JobNotFound, JobChanged, and NotDeletable if the job is not finished."""
        if self._execute("delete_job", {"job_id": str(job_id), "version": if_version}):
            return
        found = self._job_search.get_with_version(job_id)
        if not found.job.status.final:
            raise NotDeletable(job_id, found.job.status)
        if if_version is not None and found.version != if_version:
            raise JobChanged(job_id)
        raise JobNotFound(job_id)
