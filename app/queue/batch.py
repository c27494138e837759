"""Enqueues many jobs in one statement, with an outcome for each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from dataloader.app.db.encoding import validate_json
from dataloader.app.db.statements import Executor
from dataloader.app.queue.job import NewJob, Status, encode_request
from dataloader.pipelines.json_values import encode_strictly

_MAYBE_UNSTORABLE = re.compile(r"\\u0000|[\ud800-\udfff]|\d{300}")


class Outcome(StrEnum):
    CREATED = "created"
    EXISTS = "exists"  # a job with one of its keys serves the request already
    DEBOUNCED = "debounced"  # the request changed the queued job that has its debounce key
    CONFLICT = "conflict"  # the idempotency key belongs to another request
    INVALID = "invalid"
    SKIPPED = "skipped"  # valid, but another request of an all-or-none batch is not


_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_STATUSES = {status.value: status for status in Status}


class BatchOutcome(NamedTuple):
    outcome: Outcome
    job_id: UUID | None  # of the job that serves the request; in a conflict, of the job that has the key
    status: Status | None
    field: str | None = None  # of an invalid request: the field, and its problem
    detail: str | None = None


def enqueue_batch(executor: Executor, jobs: Sequence[NewJob], *, all_or_none: bool = False) -> list[BatchOutcome]:
    """Enqueue jobs in their order; return an outcome for each."""
    if not jobs:
        return []
    rows = executor.execute("enqueue_batch", {"jobs": encode_requests(jobs), "all_or_none": all_or_none})
    return [
        BatchOutcome(_OUTCOMES[outcome], job_id and UUID(job_id), status and _STATUSES[status], field, detail)
        for outcome, job_id, status, field, detail in rows
    ]


def encode_requests(jobs: Sequence[NewJob]) -> str:
    """Return the requests as JSON. Raises InvalidJob for a value that PostgreSQL cannot store."""
    requests = [encode_request(job) for job in jobs]
    with suppress(TypeError, ValueError, RecursionError):
        text = json.dumps(requests, ensure_ascii=False, allow_nan=False)
        if not _MAYBE_UNSTORABLE.search(text):
            return text
    return f"[{', '.join(map(_encode_by_field, requests))}]"


def encode_job(job: NewJob) -> str:
    """Return one request as JSON. Raises InvalidJob."""
    fields = encode_request(job)
    try:
        return encode_strictly(fields)
    except (TypeError, ValueError, RecursionError):
        return _encode_by_field(fields)


def _encode_by_field(fields: Mapping[str, Any]) -> str:
    """Each field is checked by itself, so that an error names it."""
    values = (f'"{name}": {validate_json(name, value)}' for name, value in fields.items())
    return f"{{{', '.join(values)}}}"
