"""Explains why a job waits, still runs, or ended, and what holds up a task or a queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from app.admin.backfills import Backfills, BackfillState
from app.admin.breakers import Breakers, BreakerState
from app.admin.job_detail import JobReader
from app.admin.limits import Limits
from app.admin.queues import Queues, find_requirements
from app.admin.reasons import MAX_LISTED, ExplanationReason, ReasonCode
from app.admin.run_reasons import RunningFacts, ended_reason, running_reasons
from app.admin.schedules import Schedules
from app.admin.statistics import PeriodStatistics, Statistics
from app.admin.task_reasons import backfill_reason, breaker_reason, is_next, schedule_reason
from app.admin.wait_reasons import (
    MAX_COUNTED_AHEAD,
    TRANSIENT,
    StartEstimate,
    TurnFacts,
    WaitingFacts,
    engine_reason,
    labels_reason,
    limit_reason,
    parents_reason,
    start_estimate,
    waiting_reasons,
)
from app.db.encoding import from_row
from app.db.statements import Executor
from app.errors import BreakerNotFound, LimitNotFound
from app.queue.graphs import Graphs
from app.queue.job import Job, Status
from app.queue.offloads import Offloads


@dataclass(frozen=True)
class JobExplanation:
    """Why a job waits, runs or ended. The first reason is the main one. `position` is its place among waiting jobs."""

    job_id: UUID
    status: Status
    reasons: list[ExplanationReason]
    position: int | None
    position_exact: bool
    estimate: StartEstimate | None


@dataclass(frozen=True)
class TaskExplanation:
    """What keeps jobs of a task from being made and from running, and when its schedules make the next."""

    task: str
    reasons: list[ExplanationReason]


class JobExplainer:
    """Explains single jobs."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute
        self._reader, self._statistics, self._limits = JobReader(executor), Statistics(executor), Limits(executor)
        self._offloads = Offloads(executor.execute)
        self._graphs, self._breakers = Graphs(executor), Breakers(executor)
        self._schedules, self._backfills, self._queues = Schedules(executor), Backfills(executor), Queues(executor)

    def explain(self, job_id: UUID) -> JobExplanation:
        """Raises JobNotFound."""
        job = self._reader.get_with_version(job_id).job
        if job.status is Status.QUEUED:
            rows = self._execute("waiting_facts", {"job_id": str(job_id), "max_ahead": MAX_COUNTED_AHEAD})
            if rows:
                waiting = from_row(WaitingFacts, rows[0])
                more = [] if waiting.wait_state != "limited" else [*self._limit_reasons(waiting)]
                if waiting.wait_state == "waiting":
                    more = [self._wait_reason(job)]
                return _explain_waiting(job, waiting, more, self._turn(waiting, job_id), self._typical_duration(job))
        elif job.status is Status.RUNNING:
            rows = self._execute("running_facts", {"job_id": str(job_id)})
            if rows:  # else it has just ended
                reasons = list(running_reasons(from_row(RunningFacts, rows[0]), self._typical_duration(job)))
                return JobExplanation(job.id, job.status, reasons, None, True, None)
            job = self._reader.get_with_version(job_id).job
        ended = ended_reason(job, self._reader.attempts(job_id))
        return JobExplanation(job.id, job.status, [ended], None, True, None)

    def explain_task(self, task: str) -> TaskExplanation:
        return TaskExplanation(task, list(self._task_reasons(task)))

    def _task_reasons(self, task: str) -> Iterator[ExplanationReason]:
        with suppress(BreakerNotFound):
            breaker = self._breakers.status(task)
            if breaker.state is not BreakerState.CLOSED:
                yield breaker_reason(breaker)
        schedules = sorted(map(schedule_reason, self._schedules.list_by_name(task=task)), key=is_next)
        yield from (reason for reason in schedules if not is_next(reason))
        for backfill in self._backfills.newest(task=task, is_open=True):
            if backfill.state is BackfillState.PAUSED:
                yield backfill_reason(backfill)
        workers = self._queues.live_workers()
        if not any(task in worker.tasks for worker in workers):
            if (requires := find_requirements(task, workers)) is not None:
                yield labels_reason(task, requires, [worker.labels for worker in workers])
            else:
                message = f"No live worker knows the task {task!r}."
                yield ExplanationReason(ReasonCode.TASK_UNKNOWN, message, {"task": task})
        yield from (reason for reason in schedules if is_next(reason))

    def _wait_reason(self, job: Job) -> ExplanationReason:
        awaited = [offload for offload in self._offloads.of_job(job.id) if offload.is_awaited]
        return engine_reason(awaited) if awaited else parents_reason(job, self._graphs.parents(job.id))

    def _limit_reasons(self, waiting: WaitingFacts) -> Iterator[ExplanationReason]:
        name, weight = waiting.waits_on or "", waiting.weight or 1
        if name == f"task:{waiting.task}":
            with suppress(BreakerNotFound):
                breaker = self._breakers.status(waiting.task)
                if breaker.state is not BreakerState.CLOSED:
                    yield breaker_reason(breaker)
                    return
        with suppress(LimitNotFound):  # it has just been deleted
            limit = self._limits.status(name)
            yield limit_reason(waiting, limit, weight, self._limits.holders(name)[:MAX_LISTED])

    def _turn(self, waiting: WaitingFacts, job_id: UUID) -> TurnFacts | None:
        if waiting.wait_state != "ready":
            return None
        rows = self._execute("turn_facts", {"job_id": str(job_id), "max_ahead": MAX_COUNTED_AHEAD})
        return TurnFacts(*rows[0]) if rows else None

    def _typical_duration(self, job: Job) -> PeriodStatistics:
        """The statistics of the job's task in its queue."""
        return self._statistics.by_task("7d", task=job.task, queue=job.queue).get(job.task, PeriodStatistics())


def _explain_waiting(
    job: Job,
    waiting: WaitingFacts,
    more_reasons: list[ExplanationReason],
    turn: TurnFacts | None,
    typical: PeriodStatistics,
) -> JobExplanation:
    reasons = [*more_reasons, *waiting_reasons(job, waiting, turn)]
    ahead_by_state = {"blocked": waiting.blocked_ahead, "limited": waiting.limited_ahead}
    ahead = ahead_by_state.get(waiting.wait_state, waiting.ready_ahead)
    is_in_line = turn is None and waiting.wait_state in ("ready", "blocked", "limited")
    position = min(ahead, MAX_COUNTED_AHEAD) + 1 if is_in_line else None
    can_estimate = is_in_line and all(reason.code in TRANSIENT for reason in reasons)
    estimate = start_estimate(waiting, typical) if can_estimate else None
    if not reasons:
        message = "Nothing blocks the job; it is about to be claimed."
        reasons = [ExplanationReason(ReasonCode.NEXT, message, {"queue": waiting.queue})]
    return JobExplanation(job.id, job.status, reasons, position, ahead <= MAX_COUNTED_AHEAD, estimate)
