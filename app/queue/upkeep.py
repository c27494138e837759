"""What maintenance and workers do now and then, for jobs that no attempt is about."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array
from dataloader.app.queue.job import ClaimedJob


@dataclass(frozen=True)
class RepairResult:
    cursor: str  # the last scanned key; "" when there was none
    unblocked: tuple[str, ...]  # keys whose blocked job became ready
    made_ready: tuple[UUID, ...]  # these jobs


class Upkeep:
    """The part of `JobQueue` that the life of a job seldom needs."""

    _execute: Callable[..., list[tuple[Any, ...]]]

    def expire(self) -> int:
        """Cancel queued jobs that have not started in time; return how many."""
        return int(self._execute("expire")[0][0])

    def repair_blocked(self, *, after: str, repaired_jobs: Iterable[UUID] = (), limit: int = 500) -> RepairResult:
        """Unblock jobs whose key is free, among the next keys after `after`. `repaired_jobs` are those of the repairs
        before: while one of them is ready, no other job of its key becomes so."""
        parameters = {"after": after, "repaired_jobs": array(map(str, repaired_jobs)), "max_keys": limit}
        rows = self._execute("repair_blocked", parameters)
        unblocked = tuple(row[1] for row in rows if row[1] is not None)
        made_ready = tuple(map(UUID, (rows[-1][2] or "").split())) if unblocked else ()
        return RepairResult(cursor=rows[0][0], unblocked=unblocked, made_ready=made_ready)

    def promote_overdue(self) -> None:
        """Make ready what has been due for however long."""
        self._execute("promote_overdue")

    def find_first_ready(
        self, queue: str, tasks: Iterable[str], *, quiet_priority: str | None
    ) -> tuple[Sequence[str] | None, float]:
        """Return the position of the first ready job of these tasks, as the cursor of a claim, and the seconds it took.
        If there is none: one a few seconds ago of this priority, behind which the next ready job of it will be."""
        parameters = {"queue": queue, "tasks": array(tasks), "quiet_priority": quiet_priority}
        ((positions, took_sec),) = self._execute("find_first_ready", parameters)
        return None if positions is None else positions[0], took_sec

    def restore_unknown_tasks(self, queues: Iterable[str], tasks: Iterable[str]) -> None:
        """Make deferred jobs ready whose task a worker knows now."""
        self._execute("restore_unknown_tasks", {"queues": array(queues), "tasks": array(tasks)})

    def defer_unknown_tasks(self, queue: str, tasks: Iterable[str]) -> dict[str, int]:
        """Defer ready jobs whose task no live worker knows; return how many of each task."""
        return dict(self._execute("defer_unknown_tasks", {"queue": queue, "tasks": array(tasks)}))

    def end_former_sessions(self) -> None:
        """End sessions of this process's role whose connection it has lost, and wait until they are gone."""
        self._execute("end_former_sessions")

    def open_sessions(self, names: Sequence[str]) -> set[str]:
        """Return those of these application names that a session of this server has."""
        return {row[0] for row in self._execute("attempt_sessions", {"names": array(names)})}

    def record_stop_pending(self, job: ClaimedJob, *, reason: str, error: str) -> None:
        """Record that a run continues although all stop steps were used."""
        self._execute(
            "record_stop_pending",
            {"job_id": str(job.id), "run_id": str(job.run_id), "reason": reason, "error": error},
        )

    def ping(self) -> float:
        """Return the seconds of a round trip."""
        started_at = time.monotonic()
        self._execute("ping")
        return time.monotonic() - started_at
