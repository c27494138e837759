"""The jobs that a running job enqueues: filled in from it, with keys that another attempt computes again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from dataloader.app.queue.job import ClaimedJob, NewJob
from dataloader.pipelines.task import fill_limits, fill_lock_key
from dataloader.pipelines.unique import unique_live_key
from dataloader.workers.reports.secrets import Redactor


class FollowUpSettings(Protocol):
    """What the follow-ups of a pool's attempts have in common."""

    @property
    def follow_up_lease_sec(self) -> int: ...
    @property
    def declared_job_fields(self) -> Mapping[str, Mapping[str, Any]]: ...


class FollowUpContext(Protocol):
    """What a follow-up needs of its parent's context."""

    @property
    def job(self) -> ClaimedJob: ...
    @property
    def settings(self) -> FollowUpSettings: ...
    @property
    def redactor(self) -> Redactor: ...


class FollowUps:
    """Of one attempt. Used by the pipeline's thread alone."""

    def __init__(self, context: FollowUpContext) -> None:
        self._context = context
        self.counts: dict[str, int] = {}  # of equal requests, by digest; put back when a transaction is rolled back

    def make(
        self,
        task: str,
        args: dict[str, Any] | None = None,
        *,
        queue: str | None = None,
        lock_key: str | None = None,
        idempotency_key: str | None = None,
        priority: int | None = None,
        available_at: datetime | None = None,
        max_attempts: int | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> NewJob:
        job, settings = self._context.job, self._context.settings
        job_args = self._context.redactor.restore_references(args or {})
        declared = settings.declared_job_fields.get(task, {})
        complete_args = {**declared.get("defaults", {}), **job_args}
        if limits is None:
            limits = fill_limits(declared.get("limits", {}), complete_args)
        if not lock_key:
            lock_key = fill_lock_key(declared["lock_key"], complete_args) if "lock_key" in declared else task
        unique_by = declared.get("unique_by")
        return NewJob(
            queue=queue or job.queue,
            task=task,
            lock_key=lock_key,
            limits=limits,
            args=job_args,
            live_key=None if unique_by is None else unique_live_key(task, unique_by, complete_args),
            idempotency_key=idempotency_key or self.make_key(task, job_args, queue),
            priority=job.priority if priority is None else priority,
            available_at=available_at,
            max_attempts=5 if max_attempts is None else max_attempts,
            lease_ttl_sec=settings.follow_up_lease_sec,
            producer=f"job:{job.id}",
            parent_id=job.id,
            traceparent=job.traceparent,
        )

    def make_key(self, task: str, args: Mapping[str, Any], queue: str | None) -> str:
        """An idempotency key that another attempt computes again for the same n-th request."""
        request = json.dumps([task, args, queue], sort_keys=True, default=str)
        digest = hashlib.sha256(request.encode("utf-8", "replace")).hexdigest()[:24]
        self.counts[digest] = count = self.counts.get(digest, 0) + 1
        return f"{self._context.job.id}:{digest}:{count}"
