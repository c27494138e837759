"""Where the attempts of jobs wrote, as the queue and the targets have it; and the tasks that name targets."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, from_row, unquoted_array
from dataloader.app.db.statements import Executor
from dataloader.app.features.targets.server_rows import JobInTarget, TableState, TargetSession, read_job, read_table
from dataloader.app.features.targets.servers import FULL_WAIT_SEC, Answer, Question, TargetServers
from dataloader.app.log import mask_secret_fields

KEEP_SEC = 86_400.0  # rows in targets, after the success of their job
MAX_KEPT_READ = 10_000  # of the oldest rows that are kept
LONG_IDLE_SEC = 600.0  # in an open transaction
_START = ("-infinity", UUID(int=0), "")  # before the first row


@dataclass(frozen=True)
class ClaimedTarget:
    """A target in which an attempt of a job has claimed the job's row, the last one. `problem`: why its transactions
    there are not fenced."""

    target: str
    run_id: UUID
    fence: int
    problem: str | None
    claimed_at: datetime
    deleted_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class JobTarget:
    """A target in which attempts of a job wrote. `run_id` and `fence` are of the last attempt that claimed the job's
    row there. `fenced`: no other attempt commits there; `problem` says why not. `live` is what the target has now;
    `unread` says why it was not read."""

    target: str
    fenced: bool
    problem: str | None
    run_id: UUID
    fence: int
    claimed_at: datetime
    deleted_at: datetime | None
    live: LiveTarget | None
    unread: str | None

    @property
    def holder(self) -> TargetSession | None:
        """The session that holds the job's row there."""
        sessions = [] if self.live is None else self.live.sessions
        return next((session for session in sessions if session.holds_row), None)


@dataclass(frozen=True, kw_only=True)
class LiveTarget:
    """The job's row in a target (its fields are null without one), and the sessions there. `position` is where the next
    attempt resumes; `done_at`: when the work was finished there; `locked`: a transaction is open that has locked the
    row, or changes it."""

    run_id: UUID | None
    fence: int | None
    position: Any
    done_at: datetime | None
    at: datetime | None
    locked: bool
    sessions: list[TargetSession]


@dataclass(frozen=True, kw_only=True)
class TargetStatus:
    """A target of the settings, or one that a task names. `entry` is the entry of the settings that counts for it;
    null: there is none, and the queue's own database is used. `fenced` is null for a target that cannot be reached.
    `queue_database`: its transactions have the job's row as their fence. `rows`: of jobs, up to 100,001."""

    target: str
    entry: str | None
    queue_database: bool
    reachable: bool | None
    fenced: bool | None
    problem: str | None
    tasks: list[str]
    rows: int | None


@dataclass(frozen=True)
class KeptRows:
    """Rows of jobs that a target has, among the oldest of all. `overdue`: that should have been deleted."""

    target: str
    rows: int
    overdue: int


@dataclass(frozen=True)
class ScannedRow:
    """A row that a target still has. `is_due`: no attempt needs it any more."""

    job_id: UUID
    target: str
    fence: int
    claimed_at: str  # in all its digits, as the cursor of the next scan
    is_due: bool


class TargetRows:
    """Reads and writes the queue's side."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def of_job(self, job_id: UUID) -> list[ClaimedTarget]:
        return [from_row(ClaimedTarget, row) for row in self._execute("job_targets", {"job_id": str(job_id)})]

    def declare(self, tasks: Iterable[str], targets: Mapping[str, str]) -> None:
        """Write which of these tasks name which targets."""
        self._execute("declare_task_targets", {"tasks": array(tasks), "targets": json.dumps(dict(targets))})

    def tasks(self) -> dict[str, list[str]]:
        """The tasks that live workers know, by the target that they name."""
        named = defaultdict[str, list[str]](list)
        for task, target in self._execute("task_targets"):
            named[target].append(task)
        return dict(named)

    def kept(self) -> list[KeptRows]:
        """What targets still have, among the oldest rows. A day of grace is given to the duty that deletes them."""
        parameters = {"max_rows": MAX_KEPT_READ, "keep_sec": 2 * KEEP_SEC}
        return [from_row(KeptRows, row) for row in self._execute("kept_target_rows", parameters)]

    def running(self, job_ids: Collection[UUID]) -> dict[UUID, UUID]:
        """The run of each of these jobs that runs now."""
        rows = self._execute("running_runs", {"job_ids": unquoted_array(job_ids)}) if job_ids else []
        return {UUID(str(job_id)): UUID(str(run_id)) for job_id, run_id in rows}

    # Called by the maintenance leader

    def scan(self, after: ScannedRow | None, *, limit: int) -> list[ScannedRow]:
        """The next rows in targets, the oldest first."""
        time, job, target = _START if after is None else (after.claimed_at, after.job_id, after.target)
        cursor = {"after_time": time, "after_job": str(job), "after_target": target}
        rows = self._execute("scan_job_targets", cursor | {"keep_sec": KEEP_SEC, "max_rows": limit})
        return [from_row(ScannedRow, row) for row in rows]

    def mark_deleted(self, target: str, fences: Mapping[UUID, int]) -> None:
        parameters = {"target": target, "job_ids": unquoted_array(fences), "fences": unquoted_array(fences.values())}
        self._execute("mark_target_rows_deleted", parameters)

    def prune(self, after: tuple[UUID, str] | None, *, limit: int) -> tuple[UUID, str] | None:
        """Delete those among the next rows that say nothing any more; return the last of these rows, None: there was
        none."""
        job, target = _START[1:] if after is None else after
        rows = self._execute("prune_job_targets", {"after_job": str(job), "after_target": target, "max_rows": limit})
        return (UUID(str(rows[0][0])), rows[0][1]) if rows else None


class JobTargets:
    """The targets of a job, with what they have of it now."""

    def __init__(self, executor: Executor, servers: TargetServers | None) -> None:
        """`servers` are those of the settings; None: this process has none, and contacts no target."""
        self._rows, self._servers = TargetRows(executor), servers or TargetServers({})

    def of_job(self, job_id: UUID, *, is_live: bool = True, wait_sec: float = FULL_WAIT_SEC) -> list[JobTarget]:
        """Contact no target unless `is_live`, and wait so long for all that are contacted."""
        claimed = self._rows.of_job(job_id)
        questions: dict[tuple[str, Hashable], Question] = {
            (entry.target, job_id): partial(read_job, target=entry.target, job_id=job_id)
            for entry in claimed
            if is_live and entry.deleted_at is None
        }
        answers = self._servers.ask(questions, wait_sec=wait_sec)
        return [_job_target(entry, answers.get((entry.target, job_id))) for entry in claimed]


def _job_target(claimed: ClaimedTarget, answer: Answer | None) -> JobTarget:
    values = vars(claimed) | {"fenced": claimed.problem is None}
    if answer is None:
        return JobTarget(**values, live=None, unread=None)
    if answer.value is None:
        return JobTarget(**values, live=None, unread=answer.problem)
    found: JobInTarget = answer.value
    if found.row is None:
        row: dict[str, Any] = dict.fromkeys(("run_id", "fence", "position", "done_at", "at")) | {"locked": False}
    else:
        row = vars(found.row) | {"position": mask_secret_fields(found.row.position)}
    return JobTarget(**values, live=LiveTarget(**row, sessions=found.sessions), unread=None)


class TargetStatuses:
    """The targets of the settings and those that tasks name, each asked for its table."""

    def __init__(self, executor: Executor, servers: TargetServers | None) -> None:
        self._rows, self._servers = TargetRows(executor), servers or TargetServers({})

    def all(self) -> list[TargetStatus]:
        tasks = self._rows.tasks()
        names = sorted({*self._servers.names, *tasks})
        states = read_states(self._servers, names)
        return [self._status(name, tasks.get(name, []), states.get(name)) for name in names]

    def _status(self, target: str, tasks: list[str], answer: Answer | None) -> TargetStatus:
        status = TargetStatus(
            target=target, entry=self._servers.entry_of(target), queue_database=answer is None, reachable=None,
            fenced=None, problem=None, tasks=tasks, rows=None,
        )  # fmt: skip
        if answer is None:
            return replace(status, fenced=True)
        if answer.value is None:
            return replace(status, reachable=answer.is_reached, problem=answer.problem)
        state: TableState = answer.value
        return replace(status, reachable=True, fenced=state.problem is None, problem=state.problem, rows=state.rows)


def read_states(servers: TargetServers, targets: Iterable[str]) -> dict[str, Answer]:
    """What each of these targets says of its table, but for the queue's own database, which needs none."""
    asked = [target for target in targets if not servers.is_queue_database(target)]
    answers = servers.ask(
        {(target, "table"): partial(read_table, target=target, idle_sec=LONG_IDLE_SEC) for target in asked}
    )
    return {target: answers[target, "table"] for target in asked}
