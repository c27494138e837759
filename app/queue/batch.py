"""Many jobs at once: one statement, and an outcome for each."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from app.db.encoding import validate_json
from app.db.rows import from_row
from app.queue.job import NewJob, Status
from app.queue.jobs import Executor

_MAYBE_UNSTORABLE = re.compile(r"\\u0000|[\ud800-\udfff]|\d{300}")


class Outcome(StrEnum):
    CREATED = "created"
    EXISTS = "exists"  # a job stands for this request already
    CONFLICT = "conflict"  # the idempotency key belongs to another request
    INVALID = "invalid"
    SKIPPED = "skipped"  # nothing is wrong with it, but with another one, and all or none was asked for


@dataclass(frozen=True)
class BatchOutcome:
    """What became of one request."""

    outcome: Outcome
    job_id: UUID | None  # of the job that stands for it; in a conflict, of the one that is in the way
    status: Status | None
    field: str | None = None  # of an invalid one: what is wrong, and why
    detail: str | None = None


class BatchEnqueuer:
    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def enqueue(self, jobs: Sequence[NewJob], *, all_or_none: bool = False) -> list[BatchOutcome]:
        """Put jobs into the queue, in their order; `whole`: all of them or none. An outcome for each."""
        if not jobs:
            return []
        text = json.dumps([_to_dict(job) for job in jobs], ensure_ascii=False, allow_nan=False, default=_json_default)
        if _MAYBE_UNSTORABLE.search(text):
            for job in jobs:  # whichever it is, it is told by name
                validate_json("jobs", json.loads(json.dumps(_to_dict(job), default=_json_default)))
        rows = self._execute("enqueue_batch", {"jobs": text, "whole": all_or_none})
        return [from_row(BatchOutcome, row) for row in rows]


def _to_dict(job: NewJob) -> dict[str, Any]:
    return {name: value for name, value in vars(job).items() if value is not None}


def _json_default(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    return dict(value)  # a mapping of another kind
