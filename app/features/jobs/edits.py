"""Edits of queued jobs, and deletion of finished ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, validate_json, validate_texts
from dataloader.app.db.statements import Executor
from dataloader.app.errors import JobChanged, JobNotFound, NotDeletable, NotEditable
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.queue.job import Status

_VALUES = ("priority", "available_at", "max_attempts", "lease_ttl_sec", "time_limit_sec", "partition_key")
_CLEARABLE = ("time_limit_sec", "retry")  # null selects the task's default
_MAX_CONFLICT_RETRIES = 5  # while other sessions change the job


class JobEditor:
    """Edits and deletes jobs. With `if_version` nothing is changed if the job has another version."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute
        self._reader = JobReader(executor)

    def edit(self, job_id: UUID, changes: Mapping[str, Any], *, if_version: str | None = None) -> None:
        """Change the named columns. None in time_limit_sec and retry selects the task's default; in others it changes
        nothing. Raises JobNotFound, NotEditable if the job is not queued, and JobChanged if it has another version."""
        parameters = {name: changes.get(name) for name in _VALUES}
        parameters |= validate_texts({"partition_key": changes.get("partition_key")})
        for name in ("args", "retry"):
            value = changes.get(name)
            parameters[name] = None if value is None else validate_json(name, dict(value))
        parameters["clear"] = array(name for name in _CLEARABLE if name in changes and changes[name] is None)
        for _ in range(_MAX_CONFLICT_RETRIES):
            found = self._reader.get_with_version(job_id)
            if if_version is not None and found.version != if_version:
                raise JobChanged(job_id)
            if found.job.status is not Status.QUEUED:
                raise NotEditable(job_id, found.job.status)
            if self._execute("edit_job", {**parameters, "job_id": str(job_id), "version": found.version}):
                return
        raise JobChanged(job_id)

    def copied_fields(self, job_id: UUID) -> dict[str, Any]:
        """What a clone takes over. Raises JobNotFound."""
        rows = self._execute("copied_fields", {"job_id": str(job_id)})
        if not rows:
            raise JobNotFound(job_id)
        fields: dict[str, Any] = json.loads(rows[0][0])
        return fields

    def delete(self, job_id: UUID, *, if_version: str | None = None) -> None:
        """Raises JobNotFound, JobChanged, and NotDeletable if the job is not finished, or its graph is not."""
        if self._execute("delete_job", {"job_id": str(job_id), "version": if_version}):
            return
        found = self._reader.get_with_version(job_id)
        if not found.job.status.final:
            raise NotDeletable(job_id, found.job.status)
        if if_version is not None and found.version != if_version:
            raise JobChanged(job_id)
        if found.job.graph_id is not None:
            raise NotDeletable(job_id, found.job.status, graph_id=found.job.graph_id)
        raise JobNotFound(job_id)
