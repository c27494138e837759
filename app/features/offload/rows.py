"""The rows of dl_offloads: what jobs gave to other engines, and how far that is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from dataloader.app.db.encoding import array, from_row

Execute = Callable[[str, Mapping[str, Any]], list[tuple[Any, ...]]]
Outcome = Literal["succeeded", "failed", "stopped", "abandoned"]


@dataclass(frozen=True)
class OffloadIntent:
    """Work of a job under one name on an engine."""

    name: str
    job_id: UUID
    run_id: UUID
    call: str
    number: int
    engine: str
    address: str
    fingerprint: str
    fence_token: str
    engine_timeout_sec: float
    grace_sec: float
    stop_on_shutdown: bool
    is_abandoned: bool


@dataclass(frozen=True)
class Offload(OffloadIntent):
    """Such work as it is found later."""

    left_sec: float | None  # until its deadline
    is_awaited: bool
    log_position: str
    unavailable_sec: float | None  # since when its engine does not answer
    has_ended: bool
    outcome: str | None
    is_stop_requested: bool
    detail: str  # why the work has not started


@dataclass(frozen=True)
class DuePoll:
    """An offload that this process polls for a job that waits or has ended."""

    name: str
    job_id: UUID
    run_id: UUID  # the last one of its job, until another claims the job
    engine: str
    task: str  # empty if the job is deleted, as the next
    secrets: list[str]  # names in its args, of a waiting job
    is_orphan: bool  # its job has ended: it is stopped
    attempt: int
    log_position: str
    is_abandoned: bool
    is_unavailable: bool  # longer than its engine's time limit
    is_late: bool  # behind its deadline
    waited_sec: float


@dataclass(frozen=True, kw_only=True)
class NewOffload(OffloadIntent):
    """The intent, as it is written before the submission. Each field is a parameter."""

    timeout_sec: float | None


class Offloads:
    """Reads and writes rows; `execute` is a session's, or that of an attempt that still owns its job."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def of_call(self, job_id: UUID, call: str) -> list[Offload]:
        """What was submitted for this call, the newest last."""
        rows = self._execute("job_offloads", {"job_id": str(job_id), "call": call})
        return [from_row(Offload, row) for row in rows]

    def of_job(self, job_id: UUID) -> list[Offload]:
        rows = self._execute("job_offloads", {"job_id": str(job_id), "call": None})
        return [from_row(Offload, row) for row in rows]

    def open_of_run(self, job_id: UUID, run_id: UUID) -> list[Offload]:
        """Those of the job that have not ended; none if the run does not own the job any more."""
        rows = self._execute("open_offloads", {"job_id": str(job_id), "run_id": str(run_id)})
        return [from_row(Offload, row) for row in rows]

    def intend(self, new: NewOffload) -> None:
        values = vars(new) | {"job_id": str(new.job_id), "run_id": str(new.run_id)}
        self._execute("intend_offload", values)

    def count_submission(self, name: str) -> int:
        """Return how often the name was submitted, this time included."""
        rows = self._execute("count_offload_submission", {"name": name})
        return int(rows[0][0]) if rows else 0

    def request_stop(self, name: str) -> None:
        self._execute("stop_offload", {"name": name})

    def end(self, name: str, outcome: Outcome) -> None:
        self._execute("end_offload", {"name": name, "outcome": outcome})

    # Called by the poller and the maintenance leader

    def claim_polls(self, engines: Iterable[str], *, limit: int) -> list[DuePoll]:
        rows = self._execute("claim_offload_polls", {"engines": array(engines), "limit": limit})
        return [from_row(DuePoll, row) for row in rows]

    def record_poll(
        self, name: str, *, next_sec: float, is_unavailable: bool = False, detail: str | None = None
    ) -> None:
        """`detail` says why the work has not started; None: as before."""
        values = {"name": name, "next_sec": next_sec, "is_unavailable": is_unavailable, "detail": detail}
        self._execute("record_offload_poll", values)

    def record_progress(self, job_id: UUID, fields: Mapping[str, Any]) -> None:
        """Add to the progress of a job that waits."""
        self._execute("record_offload_progress", {"job_id": str(job_id), "progress": json.dumps(fields)})

    def wake_job(self, job_id: UUID, name: str) -> None:
        """Make the job ready, unless it waits for others too."""
        self._execute("wake_offload_job", {"job_id": str(job_id), "name": name})

    def old(self, *, keep_sec: float, limit: int) -> list[tuple[str, str]]:
        """Names and engines of what ended long ago."""
        return [(row[0], row[1]) for row in self._execute("old_offloads", {"keep_sec": keep_sec, "limit": limit})]

    def delete(self, names: Iterable[str]) -> None:
        self._execute("delete_offloads", {"names": array(names)})
