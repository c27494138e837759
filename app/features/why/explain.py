"""Explains why a job waits, still runs, or ended, and what holds up a task or a queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from dataloader.app.db.encoding import array, from_row
from dataloader.app.db.statements import Executor
from dataloader.app.errors import BreakerNotFound, LimitNotFound
from dataloader.app.features.backfills.rows import Backfills, BackfillState
from dataloader.app.features.graphs.rows import Graphs
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.limits.breakers import Breakers, BreakerState, BreakerStatus
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.offload.rows import Offloads
from dataloader.app.features.queues.rows import Queues
from dataloader.app.features.schedules.rows import Schedules
from dataloader.app.features.statistics.rows import PeriodStatistics, Statistics
from dataloader.app.features.why.queue_reasons import (
    closed_limit_reason,
    full_limit_reason,
    no_worker_reason,
    settings_reasons,
    threads_reason,
)
from dataloader.app.features.why.reasons import MAX_LISTED, ExplanationReason, ReasonCode
from dataloader.app.features.why.run_reasons import RunningFacts, ended_reason, running_reasons
from dataloader.app.features.why.task_reasons import backfill_reason, breaker_reason, is_next, schedule_reason
from dataloader.app.features.why.wait_reasons import (
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
from dataloader.app.queue.job import Job, Status
from dataloader.app.queue.queues import QueueState, find_requirements
from dataloader.app.wording import format_count, suggestion

_MAX_READY_JOBS = 200  # of each queue, among which a job of a task is looked for
_MAX_LIMITED_JOBS = 1_000  # of each limit


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
    """What keeps jobs of a task from being made and from starting, and when its schedules make the next."""

    task: str
    reasons: list[ExplanationReason]


@dataclass(frozen=True)
class QueueExplanation:
    """What keeps jobs of a queue from starting; no reason if nothing does."""

    queue: str
    reasons: list[ExplanationReason]


class JobExplainer:
    """Explains jobs, tasks and queues."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute
        self._reader, self._statistics, self._limits = JobReader(executor), Statistics(executor), Limits(executor)
        self._offloads = Offloads(executor.execute)
        self._graphs, self._breakers = Graphs(executor), Breakers(executor)
        self._schedules, self._backfills, self._queues = Schedules(executor), Backfills(executor), Queues(executor)

    def explain(self, job_id: UUID) -> JobExplanation:
        """Raises JobNotFound."""
        explanation = None
        while explanation is None:  # its state has changed since it was read
            explanation = self._explain(self._reader.get_with_version(job_id).job)
        return explanation

    def _explain(self, job: Job) -> JobExplanation | None:
        """Return None if it is not in that state any more."""
        job_id = job.id
        if job.status is Status.QUEUED:
            rows = self._execute("waiting_facts", {"job_id": str(job_id), "max_ahead": MAX_COUNTED_AHEAD})
            if not rows:
                return None
            waiting = from_row(WaitingFacts, rows[0])
            more = [] if waiting.wait_state != "limited" else [*self._limit_reasons(waiting)]
            if waiting.wait_state == "waiting":
                more = [self._wait_reason(job)]
            return _explain_waiting(job, waiting, more, self._turn(waiting, job_id), self._typical_duration(job))
        if job.status is Status.RUNNING:
            rows = self._execute("running_facts", {"job_id": str(job_id)})
            if not rows:
                return None
            reasons = list(running_reasons(from_row(RunningFacts, rows[0]), self._typical_duration(job)))
            return JobExplanation(job.id, job.status, reasons, None, True, None)
        ended = ended_reason(job, self._reader.attempts(job_id))
        return JobExplanation(job.id, job.status, [ended], None, True, None)

    def explain_task(self, task: str, *, queue: str | None, default_queue: str) -> TaskExplanation:
        """`queue` is that of the task's jobs unless a trigger names another; without it `default_queue` is."""
        return TaskExplanation(task, list(self._task_reasons(task, queue, default_queue)))

    def explain_queue(self, queue: str) -> QueueExplanation:
        return QueueExplanation(queue, list(self._queue_reasons(queue)))

    def _queue_reasons(self, queue: str) -> Iterator[ExplanationReason]:
        statuses = self._queues.statuses(queue=queue)
        if statuses:
            yield from settings_reasons(statuses[0], statuses[0].running)
        waiting = self._limits.of_queue(queue)
        limits = {limit.name: limit for limit in self._limits.statuses() if limit.name in {*waiting, f"queue:{queue}"}}
        for limit in limits.values():
            kind, _, task = limit.name.partition(":")
            breaker = self._open_breaker(task) if kind == "task" else None
            if breaker is not None:
                yield breaker_reason(breaker)
            elif limit.concurrency == 0:
                yield closed_limit_reason(limit)
        workers = self._queues.live_workers()
        if (no_worker := no_worker_reason(queue, workers)) is not None:
            yield no_worker
        elif statuses and (busy := threads_reason(statuses[0], self._queues.workers())) is not None:
            yield busy
        for task, jobs in self._execute("unknown_tasks_of_queue", {"queue": queue, "max_tasks": MAX_LISTED}):
            message = (
                f"No live worker of queue {queue!r} knows the task {task!r}: {format_count(jobs, 'job')} deferred."
            )
            yield ExplanationReason(ReasonCode.TASK_UNKNOWN, message, {"task": task, "jobs": jobs})
        full = (
            full_limit_reason(limit, waiting.get(name, 0)) for name, limit in limits.items() if limit.concurrency != 0
        )
        yield from [reason for reason in full if reason is not None][:MAX_LISTED]

    def _task_reasons(self, task: str, queue: str | None, default_queue: str) -> Iterator[ExplanationReason]:
        if (breaker := self._open_breaker(task)) is not None:
            yield breaker_reason(breaker)
        found = self._schedules.list_by_name(task=task)
        backfills = self._backfills.newest(task=task, is_open=True)
        own = queue or default_queue
        named = {*(s.effective_definition.get("queue") or own for s in found), *(b.queue for b in backfills)}
        workers = self._queues.live_workers()
        is_known = any(task in worker.tasks for worker in workers)
        yield from self._reasons_of_queues(task, named | {queue} if queue else named, own if is_known else None)
        yield from self._closed_limits(task, is_breaker_open=breaker is not None)
        schedules = sorted(map(schedule_reason, found), key=is_next)
        yield from (reason for reason in schedules if not is_next(reason))
        for backfill in backfills:
            if backfill.state is BackfillState.PAUSED:
                yield backfill_reason(backfill)
        if not is_known:
            if (requires := find_requirements(task, workers)) is not None:
                yield labels_reason(task, requires, [worker.labels for worker in workers])
            else:
                known = frozenset(name for worker in workers for name in worker.tasks)
                message = f"No live worker knows the task {task!r}{suggestion(task, known) or '.'}"
                yield ExplanationReason(ReasonCode.TASK_UNKNOWN, message, {"task": task})
        yield from (reason for reason in schedules if is_next(reason))

    def _reasons_of_queues(self, task: str, named: set[str], otherwise: str | None) -> Iterator[ExplanationReason]:
        """Of the queues where its jobs are or go, `otherwise` if none: which are closed, and which no worker serves."""
        parameters = {"task": task, "queues": array(self._queues.names()), "max_jobs": _MAX_READY_JOBS}
        used = dict(self._execute("queues_of_task", parameters))
        if not named and not used and otherwise is not None:
            named = {otherwise}
        settings, workers = self._queues.settings(), self._queues.live_workers()
        for queue in sorted(named | used.keys()):
            if queue in settings and settings[queue].state is not QueueState.OPEN:
                yield from settings_reasons(settings[queue], 0)
            if (queue in named or used.get(queue)) and (reason := no_worker_reason(queue, workers)) is not None:
                yield reason

    def _closed_limits(self, task: str, *, is_breaker_open: bool) -> Iterator[ExplanationReason]:
        """Limits at 0 that hold up the task; those of breakers and backfills have reasons of their own."""
        own = f"task:{task}"
        closed = {limit.name: limit for limit in self._limits.statuses() if limit.concurrency == 0}
        names = [name for name in closed if not name.startswith("backfill:") and (name != own or not is_breaker_open)]
        rows = self._execute("limits_of_task", {"task": task, "names": array(names), "max_jobs": _MAX_LIMITED_JOBS})
        waited = {row[0] for row in rows}
        yield from (closed_limit_reason(closed[name]) for name in names if name in waited or name == own)

    def _open_breaker(self, task: str) -> BreakerStatus | None:
        with suppress(BreakerNotFound):
            breaker = self._breakers.status(task)
            if breaker.state is not BreakerState.CLOSED:
                return breaker
        return None

    def _wait_reason(self, job: Job) -> ExplanationReason:
        awaited = [offload for offload in self._offloads.of_job(job.id) if offload.is_awaited]
        return engine_reason(awaited) if awaited else parents_reason(job, self._graphs.parents(job.id))

    def _limit_reasons(self, waiting: WaitingFacts) -> Iterator[ExplanationReason]:
        name, weight = waiting.waits_on or "", waiting.weight or 1
        if name == f"task:{waiting.task}":
            breaker = self._open_breaker(waiting.task)
            if breaker is not None:
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
