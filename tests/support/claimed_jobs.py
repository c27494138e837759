"""Claimed jobs that no database has seen, for attempts that are run without a pool."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from dataloader.app.queue.job import ClaimedJob
from dataloader.pipelines.contract import Pipelines, registry
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.isolation.fork_server import NO_FORK_SERVER
from dataloader.workers.isolation.run import run_isolated
from dataloader.workers.outcome import Outcome

fork_server = NO_FORK_SERVER  # of attempts and pools; set by a fixture


def claimed_job(**more: Any) -> ClaimedJob:
    row: dict[str, Any] = {
        "id_text": str(uuid4()), "run_text": str(uuid4()), "queue": "q", "task": "t", "args_text": "{}",
        "lock_key": "k", "key_hash": 1,
        "priority": 100, "attempt": 1, "max_attempts": 3, "lease_ttl_sec": 60, "producer": None, "progress_text": "{}",
        "checkpoint_text": None, "time_limit_sec": None, "retry_text": None, "crashes": 0,
    }  # fmt: skip
    return ClaimedJob(**{**row, **more})


class Source(NamedTuple):
    """What captured output is of."""

    job_id: UUID
    attempt: int = 1


class CapturedLines:
    """What attempts say, as their log would be given it."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []  # level, stream, text

    def __call__(self, job_id: UUID, attempt: int, level: str, stream: str, text: str) -> None:
        self.lines.append((level, stream, text))

    def texts_of(self, stream: str) -> list[str]:
        return [text for _, where, text in self.lines if where == stream]


def attempt_with(
    captured: CapturedLines | None = None, *, settings: dict[str, Any] | None = None, **row: Any
) -> Attempt:
    given: dict[str, Any] = {"stop_step_sec": 0.3, "run_isolated": run_isolated, "fork_server": fork_server}
    given |= {"log": captured or CapturedLines(), **(settings or {})}
    return Attempt(claimed_job(**row), claimed_at=clock(), settings=AttemptSettings(**given))


class Running:
    """An attempt in a thread of its own, as a worker has it."""

    def __init__(self, attempt: Attempt, pipelines: Pipelines = registry) -> None:
        self.attempt = attempt
        self.ends: list[Outcome] = []
        self._thread = threading.Thread(target=lambda: self.ends.append(attempt.run(pipelines.get(attempt.job.task))))
        self._thread.start()

    def end(self, timeout: float = 30) -> Outcome:
        self._thread.join(timeout)
        assert self.ends, "it still runs"
        return self.ends[0]
