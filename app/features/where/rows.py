"""Asks worker processes where their runs are, and reads and writes the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, unquoted_array
from dataloader.app.db.statements import Executor

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

    def worker(self, job_id: UUID, run_id: UUID) -> AskedWorker | None:
        """None: the run has ended, or no process has it."""
        rows = self._execute("where_worker", {"job_id": str(job_id), "run_id": str(run_id)})
        return AskedWorker(*rows[0]) if rows else None

    def answer(self, answers: Mapping[str, str]) -> None:
        """Write the answers, JSON by run."""
        self._execute("answer_where", {"run_ids": unquoted_array(answers), "answers": array(answers.values())})
