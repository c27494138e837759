"""Asks worker processes where their runs are, and reads and writes the answers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, from_row, unquoted_array
from dataloader.app.db.statements import Executor
from dataloader.app.queue.job import Status

MAX_ANSWER_BYTES = 60_000  # dl_where has a check
_MAX_AGE_SEC = 1.0  # of an answer that counts for the next who asks


@dataclass(frozen=True)
class Asked:
    """A question, and the answer if one was there that is young enough."""

    answer: Any
    at: datetime


@dataclass(frozen=True)
class AskedWorker:
    """The process of a run: the state of its LISTEN connection, and the age of its last heartbeat."""

    listener: str | None
    heartbeat_age_sec: float | None


@dataclass(frozen=True)
class Run:
    """A running attempt."""

    job_id: UUID
    status: Status
    run_id: UUID
    attempt: int
    worker: str | None
    task: str = ""
    queue: str = ""
    max_attempts: int = 1
    running_sec: float | None = None
    progress: Any = None


class WhereRows:
    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def ask(self, run_id: UUID) -> Asked:
        (row,) = self._execute("ask_where", {"run_id": str(run_id), "max_age_sec": _MAX_AGE_SEC})
        return Asked(None if row[0] is None else json.loads(row[0]), row[1])

    def read(self, run_id: UUID, asked_at: datetime) -> Any:
        """The answer to a question of this time; None: it is not there yet."""
        rows = self._execute("read_where", {"run_id": str(run_id), "asked_at": asked_at})
        return json.loads(rows[0][0]) if rows else None

    def running(self, *, queue: str | None, task: str | None, limit: int) -> list[Run]:
        rows = self._execute("where_running", {"queue": queue, "task": task, "limit": limit})
        return [from_row(Run, row) for row in rows]

    def ask_all(self, run_ids: Collection[UUID]) -> datetime:
        """Ask where these runs are; return the time."""
        parameters = {"run_ids": unquoted_array(run_ids), "max_age_sec": _MAX_AGE_SEC}
        asked_at: datetime = self._execute("ask_where_all", parameters)[0][0]
        return asked_at

    def read_all(self, run_ids: Collection[UUID], asked_at: datetime) -> dict[UUID, Any]:
        """The answers that are there, by run."""
        parameters = {"run_ids": unquoted_array(run_ids), "asked_at": asked_at, "max_age_sec": _MAX_AGE_SEC}
        rows = self._execute("read_where_all", parameters)
        return {UUID(str(run_id)): json.loads(answer) for run_id, answer in rows}

    def worker(self, job_id: UUID, run_id: UUID) -> AskedWorker | None:
        """None: the run has ended, or no process has it."""
        rows = self._execute("where_worker", {"job_id": str(job_id), "run_id": str(run_id)})
        return AskedWorker(*rows[0]) if rows else None

    def answer(self, answers: Mapping[str, str]) -> None:
        """Write the answers, JSON by run."""
        self._execute("answer_where", {"run_ids": unquoted_array(answers), "answers": array(answers.values())})
