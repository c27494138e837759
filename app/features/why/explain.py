"""Explains why a job waits, still runs, or ended, and what holds up a task or a queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import UUID

from dataloader.app.acts.feature import Feature
from dataloader.app.acts.reasons import (
    MAX_LISTED,
    TRANSIENT_REASONS,
    ExplanationReason,
    JobExplanation,
    ReasonCode,
    Reasons,
    WaitingJob,
)
from dataloader.app.db.encoding import array, from_row
from dataloader.app.db.statements import Executor
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.why.queue_reasons import no_worker_reason, settings_reasons, threads_reason
from dataloader.app.features.why.run_reasons import RunningFacts, ended_reason, running_reasons
from dataloader.app.features.why.wait_reasons import (
    MAX_COUNTED_AHEAD,
    TurnFacts,
    WaitingFacts,
    labels_reason,
    start_estimate,
    waiting_reasons,
)
from dataloader.app.queue.job import Job, Status
from dataloader.app.queue.queues import QueueState, find_requirements
from dataloader.app.state.queues import Queues
from dataloader.app.state.statistics import PeriodStatistics, Statistics
from dataloader.app.wording import format_count, suggestion

_MAX_READY_JOBS = 200  # of each queue, among which a job of a task is looked for
_SETTINGS = (ReasonCode.QUEUE_PAUSED, ReasonCode.QUEUE_DRAINING, ReasonCode.QUEUE_AT_LIMIT)
_WORKERS = (ReasonCode.NO_WORKER, ReasonCode.WORKERS_DRAINING)
_BREAKERS = (ReasonCode.BREAKER_OPEN, ReasonCode.TASK_PAUSED)
# The main reason first; those of one place stay as they come.
_ORDER_OF_QUEUE = (
    _SETTINGS,
    (*_BREAKERS, ReasonCode.LIMIT_CLOSED),
    (*_WORKERS, ReasonCode.THREADS_BUSY),
    (ReasonCode.TASK_UNKNOWN,),
    (ReasonCode.LIMIT_FULL, ReasonCode.RATE_LIMITED),
)
_ORDER_OF_TASK = (
    _BREAKERS,
    (*_SETTINGS, *_WORKERS),
    (ReasonCode.LIMIT_CLOSED,),
    (ReasonCode.SCHEDULE_PAUSED, ReasonCode.SCHEDULE_ORPHANED, ReasonCode.SCHEDULE_STOPPED),
    (ReasonCode.BACKFILL_PAUSED,),
    (ReasonCode.TASK_UNKNOWN, ReasonCode.LABELS_MISSING),
    (ReasonCode.SCHEDULE_NEXT,),
)


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

    def __init__(
        self, executor: Executor, features: Iterable[Feature], options: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """`options` are those of features, by the feature's name."""
        self._execute = executor.execute
        self._reader, self._statistics, self._queues = JobReader(executor), Statistics(executor), Queues(executor)
        self._of_features: list[Reasons] = [
            feature.load(feature.reasons)(executor, options.get(feature.name))
            for feature in features
            if feature.reasons is not None
        ]

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
            of_job = WaitingJob(job, waiting.now, waiting.wait_state, waiting.waits_on, waiting.weight)
            more = [reason for reasons in self._of_features for reason in reasons.of_job(of_job)]
            return _explain_waiting(job, waiting, more, self._turn(waiting, job_id), self._typical_duration(job))
        if job.status is Status.RUNNING:
            rows = self._execute("running_facts", {"job_id": str(job_id)})
            if not rows:
                return None
            reasons = list(running_reasons(from_row(RunningFacts, rows[0]), self._typical_duration(job)))
            reasons[-1:-1] = [reason for reasons in self._of_features for reason in reasons.of_running(job)]
            return JobExplanation(job.id, job.status, reasons, None, True, None)
        reasons = [ended_reason(job, self._reader.attempts(job_id))]
        reasons += [reason for feature in self._of_features for reason in feature.of_ended(job)]
        return JobExplanation(job.id, job.status, reasons, None, True, None)

    def explain_task(self, task: str, *, queue: str | None, default_queue: str) -> TaskExplanation:
        """`queue` is that of the task's jobs unless a trigger names another; without it `default_queue` is."""
        return TaskExplanation(task, _in_order(self._task_reasons(task, queue, default_queue), _ORDER_OF_TASK))

    def explain_queue(self, queue: str) -> QueueExplanation:
        return QueueExplanation(queue, _in_order(self._queue_reasons(queue), _ORDER_OF_QUEUE))

    def _queue_reasons(self, queue: str) -> Iterator[ExplanationReason]:
        statuses = self._queues.statuses(queue=queue)
        if statuses:
            yield from settings_reasons(statuses[0], statuses[0].running)
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
        for reasons in self._of_features:
            yield from reasons.of_queue(queue)

    def _task_reasons(self, task: str, queue: str | None, default_queue: str) -> Iterator[ExplanationReason]:
        own = queue or default_queue
        named = {name for reasons in self._of_features for name in reasons.queues_of_task(task, own)}
        workers = self._queues.live_workers()
        is_known = any(task in worker.tasks for worker in workers)
        yield from self._reasons_of_queues(task, named | {queue} if queue else named, own if is_known else None)
        if not is_known:
            if (requires := find_requirements(task, workers)) is not None:
                yield labels_reason(task, requires, [worker.labels for worker in workers])
            else:
                known = frozenset(name for worker in workers for name in worker.tasks)
                message = f"No live worker knows the task {task!r}{suggestion(task, known) or '.'}"
                yield ExplanationReason(ReasonCode.TASK_UNKNOWN, message, {"task": task})
        for reasons in self._of_features:
            yield from reasons.of_task(task)

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

    def _turn(self, waiting: WaitingFacts, job_id: UUID) -> TurnFacts | None:
        if waiting.wait_state != "ready":
            return None
        rows = self._execute("turn_facts", {"job_id": str(job_id), "max_ahead": MAX_COUNTED_AHEAD})
        return TurnFacts(*rows[0]) if rows else None

    def _typical_duration(self, job: Job) -> PeriodStatistics:
        """The statistics of the job's task in its queue."""
        return self._statistics.by_task("7d", task=job.task, queue=job.queue).get(job.task, PeriodStatistics())


def _in_order(reasons: Iterable[ExplanationReason], order: Sequence[Collection[ReasonCode]]) -> list[ExplanationReason]:
    ranks = {code: rank for rank, codes in enumerate(order) for code in codes}
    return sorted(reasons, key=lambda reason: ranks.get(reason.code, len(order)))


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
    can_estimate = is_in_line and all(reason.code in TRANSIENT_REASONS for reason in reasons)
    estimate = start_estimate(waiting, typical) if can_estimate else None
    if not reasons:
        message = "Nothing blocks the job; it is about to be claimed."
        reasons = [ExplanationReason(ReasonCode.NEXT, message, {"queue": waiting.queue})]
    return JobExplanation(job.id, job.status, reasons, position, ahead <= MAX_COUNTED_AHEAD, estimate)
