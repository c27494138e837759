"""Explains why a job waits, still runs, or ended: reasons with a code for programs and a message for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from app.admin.backfills import Backfill, Backfills, BackfillState
from app.admin.breakers import Breakers, BreakerState, BreakerStatus
from app.admin.job_search import AttemptRecord, JobSearch
from app.admin.limits import LimitHolder, Limits, LimitStatus
from app.admin.queues import Queues
from app.admin.schedules import Schedule, Schedules
from app.admin.statistics import PeriodStatistics, Statistics
from app.db.encoding import from_row
from app.db.statements import Executor
from app.errors import BreakerNotFound, LimitNotFound
from app.queue.graphs import Graphs, ParentJob
from app.queue.job import Job, Status
from app.queue.offloads import Offload, Offloads
from app.wording import format_count

MAX_COUNTED_AHEAD = 10_000  # more jobs ahead are not counted
_STALLED_AFTER_SEC = 300.0  # without a change of the progress
_MAX_ERROR_LINE_LENGTH = 300
_MAX_HOLDERS = 5


class ReasonCode(StrEnum):
    """Stable codes of reasons."""

    QUEUE_PAUSED = "queue_paused"
    QUEUE_DRAINING = "queue_draining"
    QUEUE_AT_LIMIT = "queue_at_limit"
    NO_WORKER = "no_worker"
    TASK_UNKNOWN = "task_unknown"
    WORKERS_DRAINING = "workers_draining"
    NOT_DUE = "not_due"
    KEY_BUSY = "key_busy"
    KEY_LOCKED_ELSEWHERE = "key_locked_elsewhere"
    KEY_FREED = "key_freed"
    LIMIT_FULL = "limit_full"
    LIMIT_CLOSED = "limit_closed"
    BREAKER_OPEN = "breaker_open"
    TASK_PAUSED = "task_paused"
    RATE_LIMITED = "rate_limited"
    WAITS_FOR_JOBS = "waits_for_jobs"
    WAITS_FOR_ENGINE = "waits_for_engine"
    SKIPPED = "skipped"
    MEMORY_HIGH = "memory_high"
    PER_WORKER_LIMIT = "per_worker_limit"
    THREADS_BUSY = "threads_busy"
    JOBS_AHEAD = "jobs_ahead"
    TENANTS_IN_TURN = "tenants_in_turn"
    NEXT = "next"
    LEASE_EXPIRED = "lease_expired"
    WORKER_SILENT = "worker_silent"
    STOP_NOT_OBEYED = "stop_not_obeyed"
    PROGRESS_OLD = "progress_old"
    RUNNING = "running"
    SCHEDULE_PAUSED = "schedule_paused"
    SCHEDULE_ORPHANED = "schedule_orphaned"
    SCHEDULE_STOPPED = "schedule_stopped"
    SCHEDULE_NEXT = "schedule_next"
    BACKFILL_PAUSED = "backfill_paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    LOST = "lost"


@dataclass(frozen=True)
class ExplanationReason:
    """One reason why a job waits, still runs, or ended."""

    code: ReasonCode
    message: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StartEstimate:
    """When a waiting job may start, and what the estimate is based on."""

    start_in_sec: float
    basis: str


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


@dataclass(frozen=True)
class WaitingFacts:
    """A row of `waiting_facts`: why a job is not running yet."""

    now: datetime
    wait_state: str
    unknown_task: bool
    available_at: datetime
    queue: str
    task: str
    lock_key: str
    attempt: int
    holder_job_id: UUID | None
    holder_worker: str | None
    holder_since: datetime | None
    session_pid: int | None
    session_name: str | None
    session_since: datetime | None
    queue_state: str
    note: str | None
    changed_by: str | None
    changed_at: datetime | None
    concurrency: int | None
    per_worker: int | None
    running: int
    workers: int
    knowing_workers: int
    stopping_workers: int  # that know the task
    eligible_workers: int  # that know the task and claim
    threads: int  # of eligible workers for this queue, within its per-worker limit
    busy_threads: int  # all threads of a worker whose memory is high
    workers_at_limit: int  # eligible workers that have reached the per-worker limit
    workers_with_high_memory: int  # eligible workers that take no job while one is running
    ready_ahead: int
    blocked_ahead: int
    workers_anywhere: int
    waits_on: str | None  # the limit of a limited job
    weight: int | None  # of the job in it
    limited_ahead: int


@dataclass(frozen=True)
class TurnFacts:
    """A row of `turn_facts`: a ready job of a fair queue."""

    rule: str
    tenant: str
    ahead: int  # jobs of its tenant
    running: int  # of its tenant
    tenants: int  # that wait


@dataclass(frozen=True)
class RunningFacts:
    """A row of `running_facts`: the attempt of a running job."""

    now: datetime
    task: str
    attempt: int
    max_attempts: int
    worker: str | None
    heartbeat_at: datetime | None
    lease_expires_at: datetime | None
    cancel_requested: bool
    started_at: datetime | None
    stop_requested_at: datetime | None
    worker_id: UUID | None
    worker_seen_at: datetime | None
    worker_alive: bool | None
    stop_step: str | None
    stop_reason: str | None
    progress_age_sec: float | None


class JobExplainer:
    """Explains single jobs."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute
        self._job_search, self._statistics, self._limits = JobSearch(executor), Statistics(executor), Limits(executor)
        self._offloads = Offloads(executor.execute)
        self._graphs, self._breakers = Graphs(executor), Breakers(executor)
        self._schedules, self._backfills, self._queues = Schedules(executor), Backfills(executor), Queues(executor)

    def explain(self, job_id: UUID) -> JobExplanation:
        """Raises JobNotFound."""
        job = self._job_search.get_with_version(job_id).job
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
                running_reasons = list(_running_reasons(from_row(RunningFacts, rows[0]), self._typical_duration(job)))
                return JobExplanation(job.id, job.status, running_reasons, None, True, None)
            job = self._job_search.get_with_version(job_id).job
        ended_reason = _ended_reason(job, self._job_search.attempts(job_id))
        return JobExplanation(job.id, job.status, [ended_reason], None, True, None)

    def explain_task(self, task: str) -> TaskExplanation:
        return TaskExplanation(task, list(self._task_reasons(task)))

    def _task_reasons(self, task: str) -> Iterator[ExplanationReason]:
        with suppress(BreakerNotFound):
            breaker = self._breakers.status(task)
            if breaker.state is not BreakerState.CLOSED:
                yield _breaker_reason(breaker)
        schedules = sorted(map(_schedule_reason, self._schedules.list_by_name(task=task)), key=_is_next)
        yield from (reason for reason in schedules if not _is_next(reason))
        for backfill in self._backfills.newest(task=task, is_open=True):
            if backfill.state is BackfillState.PAUSED:
                yield _backfill_reason(backfill)
        if not any(task in worker.tasks for worker in self._queues.live_workers()):
            message = f"No live worker knows the task {task!r}."
            yield ExplanationReason(ReasonCode.TASK_UNKNOWN, message, {"task": task})
        yield from (reason for reason in schedules if _is_next(reason))

    def _wait_reason(self, job: Job) -> ExplanationReason:
        awaited = [offload for offload in self._offloads.of_job(job.id) if offload.is_awaited]
        return _engine_reason(awaited) if awaited else _parents_reason(job, self._graphs.parents(job.id))

    def _limit_reasons(self, waiting: WaitingFacts) -> Iterator[ExplanationReason]:
        name, weight = waiting.waits_on or "", waiting.weight or 1
        if name == f"task:{waiting.task}":
            with suppress(BreakerNotFound):
                breaker = self._breakers.status(waiting.task)
                if breaker.state is not BreakerState.CLOSED:
                    yield _breaker_reason(breaker)
                    return
        with suppress(LimitNotFound):  # it has just been deleted
            limit = self._limits.status(name)
            yield _limit_reason(waiting, limit, weight, self._limits.holders(name)[:_MAX_HOLDERS])

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
    reasons = [*more_reasons, *_waiting_reasons(job, waiting, turn)]
    ahead_by_state = {"blocked": waiting.blocked_ahead, "limited": waiting.limited_ahead}
    ahead = ahead_by_state.get(waiting.wait_state, waiting.ready_ahead)
    is_in_line = turn is None and waiting.wait_state in ("ready", "blocked", "limited")
    position = min(ahead, MAX_COUNTED_AHEAD) + 1 if is_in_line else None
    can_estimate = is_in_line and all(reason.code in _TRANSIENT for reason in reasons)
    estimate = _start_estimate(waiting, typical) if can_estimate else None
    if not reasons:
        message = "Nothing blocks the job; it is about to be claimed."
        reasons = [ExplanationReason(ReasonCode.NEXT, message, {"queue": waiting.queue})]
    return JobExplanation(job.id, job.status, reasons, position, ahead <= MAX_COUNTED_AHEAD, estimate)


_TRANSIENT = (  # reasons that end without an operator
    ReasonCode.KEY_BUSY,
    ReasonCode.JOBS_AHEAD,
    ReasonCode.THREADS_BUSY,
    ReasonCode.PER_WORKER_LIMIT,
    ReasonCode.QUEUE_AT_LIMIT,
    ReasonCode.LIMIT_FULL,
    ReasonCode.RATE_LIMITED,
)


def _waiting_reasons(job: Job, waiting: WaitingFacts, turn: TurnFacts | None) -> Iterator[ExplanationReason]:
    due = _format_time(waiting.available_at)
    yield from _queue_reasons(waiting)
    if waiting.unknown_task:
        message = (
            f"The job is deferred because no live worker of queue {waiting.queue!r} knows the task {waiting.task!r}. "
            f"It is checked again at {due}, or when a worker that knows the task starts."
        )
        details = {"task": waiting.task, "next_check_at": waiting.available_at}
        yield ExplanationReason(ReasonCode.TASK_UNKNOWN, message, details)
        return
    yield from _worker_reasons(waiting)
    if waiting.available_at > waiting.now:
        is_retry = waiting.attempt > 0 and job.error is not None
        message = f"Attempt {waiting.attempt} failed. The next one" if is_retry else "The job"
        details = {"available_at": waiting.available_at, "after_error": job.error is not None}
        yield ExplanationReason(ReasonCode.NOT_DUE, f"{message} is due at {due}.", details)
        return
    yield from _lock_reasons(waiting)
    if waiting.wait_state in ("ready", "scheduled"):  # a due job is promoted when a thread is free
        yield from _row_reasons(waiting, turn)


def _queue_reasons(waiting: WaitingFacts) -> Iterator[ExplanationReason]:
    details: dict[str, Any] = {"queue": waiting.queue}
    if waiting.queue_state != "open":
        by = f" by {waiting.changed_by}" if waiting.changed_by else ""
        note = f": {waiting.note}" if waiting.note else ""
        closed = f"{waiting.queue_state} since {_format_time(waiting.changed_at)}{by}{note}"
        message = f"Queue {waiting.queue!r} has been {closed}; no jobs are claimed from it."
        details |= {"since": waiting.changed_at, "by": waiting.changed_by, "note": waiting.note}
        yield ExplanationReason(ReasonCode(f"queue_{waiting.queue_state}"), message, details)
    elif waiting.concurrency is not None and waiting.running >= waiting.concurrency:
        limit = format_count(waiting.concurrency, "job")
        message = f"Queue {waiting.queue!r} may run {limit} at a time; running now: {waiting.running}."
        details |= {"concurrency": waiting.concurrency, "running": waiting.running}
        yield ExplanationReason(ReasonCode.QUEUE_AT_LIMIT, message, details)


def _worker_reasons(waiting: WaitingFacts) -> Iterator[ExplanationReason]:
    elsewhere, knowing, task = waiting.workers_anywhere, waiting.knowing_workers, waiting.task
    if waiting.workers == 0:
        other = f"; {elsewhere} serve other queues" if elsewhere else " or any other queue"
        message = f"No live worker serves queue {waiting.queue!r}{other}."
        details = {"queue": waiting.queue, "workers_anywhere": elsewhere}
        yield ExplanationReason(ReasonCode.NO_WORKER, message, details)
    elif knowing == 0:
        message = f"None of the {waiting.workers} live workers of queue {waiting.queue!r} knows the task {task!r}."
        details = {"task": task, "workers": waiting.workers}
        yield ExplanationReason(ReasonCode.TASK_UNKNOWN, message, details)
    elif waiting.eligible_workers == 0:
        counts = {"shutting down": waiting.stopping_workers, "drained": knowing - waiting.stopping_workers}
        states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        workers = f"None of the {knowing} live workers of queue {waiting.queue!r} that know the task {task!r}"
        message = f"{workers} claims jobs: {states}."
        details = {"queue": waiting.queue, "workers": knowing, "stopping": waiting.stopping_workers}
        yield ExplanationReason(ReasonCode.WORKERS_DRAINING, message, details)


def _lock_reasons(waiting: WaitingFacts) -> Iterator[ExplanationReason]:
    key, details = f"Its lock key {waiting.lock_key!r}", dict[str, Any](lock_key=waiting.lock_key)
    if waiting.holder_job_id is not None:
        since = waiting.holder_since or waiting.now
        message = (
            f"{key} is held by job {waiting.holder_job_id}, which has been running on {waiting.holder_worker} since "
            f"{_format_time(since)} ({_format_elapsed(waiting.now, since)})."
        )
        details |= {"job_id": waiting.holder_job_id, "since": since, "worker": waiting.holder_worker}
        yield ExplanationReason(ReasonCode.KEY_BUSY, message, details)
    elif waiting.session_pid is not None and waiting.wait_state == "blocked":
        since_text = f" since {_format_time(waiting.session_since)}" if waiting.session_since else ""
        message = (
            f"{key} is locked by the database session {waiting.session_name or 'unnamed'!r} (PID {waiting.session_pid})"
            f"{since_text}, but no running job has this key. The session belongs to an attempt that lost its lease and "
            "is still running, or to another service."
        )
        details |= {"pid": waiting.session_pid, "application_name": waiting.session_name}
        details["since"] = waiting.session_since
        yield ExplanationReason(ReasonCode.KEY_LOCKED_ELSEWHERE, message, details)
    elif waiting.wait_state == "blocked":
        message = f"{key} has just been released; the next job is unblocked within a second."
        yield ExplanationReason(ReasonCode.KEY_FREED, message, details)


def _parents_reason(job: Job, parents: list[ParentJob]) -> ExplanationReason:
    open_parents = [parent for parent in parents if parent.met is None]
    shown = ", ".join(
        f"{parent.key} ({parent.status.value}, job {parent.job_id})" for parent in open_parents[:_MAX_HOLDERS]
    )
    more = len(open_parents) - _MAX_HOLDERS
    of = "the first of its parents that ends as asked" if job.need == "any" else format_count(len(open_parents), "job")
    message = f"It waits for {of}: {shown}{f' and {more} more' if more > 0 else ''}."
    listed = [{"job_id": p.job_id, "key": p.key, "status": p.status, "on": p.on} for p in open_parents[:_MAX_HOLDERS]]
    details = {"graph_id": job.graph_id, "open": len(open_parents), "parents": listed}
    return ExplanationReason(ReasonCode.WAITS_FOR_JOBS, message, details)


def _engine_reason(awaited: list[Offload]) -> ExplanationReason:
    shown = ", ".join(f"{offload.name} on {offload.engine}" for offload in awaited[:_MAX_HOLDERS])
    more = len(awaited) - _MAX_HOLDERS
    away = next((offload for offload in awaited if offload.unavailable_sec is not None), None)
    outage = "" if away is None else f" The engine {away.engine!r} has not answered for {away.unavailable_sec:.0f} s."
    message = f"It waits for the end of {shown}{f' and {more} more' if more > 0 else ''}.{outage}"
    details = {"offloads": [{"name": o.name, "engine": o.engine, "address": o.address} for o in awaited[:_MAX_HOLDERS]]}
    return ExplanationReason(ReasonCode.WAITS_FOR_ENGINE, message, details)


def _breaker_reason(breaker: BreakerStatus) -> ExplanationReason:
    details: dict[str, Any] = {"task": breaker.task, "state": breaker.state, "opened_at": breaker.opened_at}
    details |= {"probe_at": breaker.probe_at, "reason": breaker.reason, "by": breaker.changed_by}
    reason = f": {breaker.reason}" if breaker.reason else ""
    if breaker.state is BreakerState.HALF_OPEN:
        message = f"The circuit breaker of task {breaker.task!r} is half-open{reason}. One job at a time is tried."
        return ExplanationReason(ReasonCode.BREAKER_OPEN, message, details)
    since = f"since {_format_time(breaker.opened_at)}"
    if breaker.probe_at is None:
        by = f" by {breaker.changed_by}" if breaker.changed_by else ""
        message = f"The task {breaker.task!r} has been paused {since}{by}{reason}."
        return ExplanationReason(ReasonCode.TASK_PAUSED, message, details)
    probe = f"one job is tried at {_format_time(breaker.probe_at)}"
    message = f"The circuit breaker of task {breaker.task!r} has been open {since}{reason}; {probe}."
    return ExplanationReason(ReasonCode.BREAKER_OPEN, message, details)


def _schedule_reason(schedule: Schedule) -> ExplanationReason:
    details: dict[str, Any] = {"schedule": schedule.name}
    name = f"The schedule {schedule.name!r}"
    if schedule.paused_at is not None:
        by = f" by {schedule.paused_by}" if schedule.paused_by else ""
        reason = f": {schedule.paused_reason}" if schedule.paused_reason else ""
        message = f"{name} has been paused since {_format_time(schedule.paused_at)}{by}{reason}. It makes no jobs."
        details |= {"since": schedule.paused_at, "by": schedule.paused_by, "reason": schedule.paused_reason}
        return ExplanationReason(ReasonCode.SCHEDULE_PAUSED, message, details)
    if schedule.orphaned_at is not None:
        since = f"since {_format_time(schedule.orphaned_at)}"
        message = f"{name} makes no jobs: {since} no live worker has had it in its code."
        details["since"] = schedule.orphaned_at
        return ExplanationReason(ReasonCode.SCHEDULE_ORPHANED, message, details)
    if schedule.error is not None:
        message = f"{name} makes no jobs: {schedule.error}."
        return ExplanationReason(ReasonCode.SCHEDULE_STOPPED, message, details | {"error": schedule.error})
    after = schedule.effective_definition.get("after")
    if schedule.next_at is not None:
        when = f"its next job at {_format_time(schedule.next_at)}"
    else:
        when = f"a job when these datasets are updated: {', '.join(after)}" if after else "no further job: it has ended"
    details["next_at"] = schedule.next_at
    return ExplanationReason(ReasonCode.SCHEDULE_NEXT, f"{name} makes {when}.", details)


def _is_next(reason: ExplanationReason) -> bool:
    return reason.code is ReasonCode.SCHEDULE_NEXT


def _backfill_reason(backfill: Backfill) -> ExplanationReason:
    by = f" by {backfill.changed_by}" if backfill.changed_by else ""
    reason = f": {backfill.reason}" if backfill.reason else ""
    message = f"The backfill {backfill.backfill_id} has been paused{by}{reason}."
    details = {"backfill_id": backfill.backfill_id, "by": backfill.changed_by, "reason": backfill.reason}
    return ExplanationReason(ReasonCode.BACKFILL_PAUSED, message, details)


def _limit_reason(
    waiting: WaitingFacts, limit: LimitStatus, weight: int, holders: list[LimitHolder]
) -> ExplanationReason:
    name = f"the limit {limit.name!r}"
    details: dict[str, Any] = {"limit": limit.name, "weight": weight, "concurrency": limit.concurrency}
    details |= {"used": limit.used, "holders": [{"job_id": h.job_id, "task": h.task} for h in holders]}
    if limit.concurrency == 0:
        by = f" by {limit.changed_by}" if limit.changed_by else ""
        note = f": {limit.note}" if limit.note else ""
        message = f"It waits for {name}, which has been closed since {_format_time(limit.changed_at)}{by}{note}."
        return ExplanationReason(ReasonCode.LIMIT_CLOSED, message, details)
    if limit.concurrency is not None and limit.used + weight > limit.concurrency:
        needs = f"; the job needs {weight}" if weight > 1 else ""
        held = "".join(
            f" {'Held by' if n == 0 else 'and'} job {holder.job_id} ({holder.task}, running for "
            f"{_format_elapsed(waiting.now, holder.started_at or waiting.now)})"
            for n, holder in enumerate(holders[:2])
        )
        message = f"It waits for {name}: {limit.used} of {limit.concurrency} in use{needs}.{held}{'.' if held else ''}"
        return ExplanationReason(ReasonCode.LIMIT_FULL, message, details)
    if limit.next_start_in_sec is not None:
        starts = f"{limit.rate} in {_format_duration(limit.per_sec or 1)}"
        message = f"The rate of {name} ({starts}) allows the next start in {limit.next_start_in_sec:.1f} s."
        details |= {"rate": limit.rate, "per_sec": limit.per_sec, "next_start_in_sec": limit.next_start_in_sec}
        return ExplanationReason(ReasonCode.RATE_LIMITED, message, details)
    message = f"It waits for {name}, which has room now; it is woken within a second."
    return ExplanationReason(ReasonCode.LIMIT_FULL, message, details)


def _row_reasons(waiting: WaitingFacts, turn: TurnFacts | None) -> Iterator[ExplanationReason]:
    if waiting.eligible_workers and waiting.busy_threads >= waiting.threads:
        details: dict[str, Any] = {"queue": waiting.queue, "threads": waiting.threads, "busy": waiting.busy_threads}
        if waiting.workers_with_high_memory:
            full, eligible = waiting.workers_with_high_memory, waiting.eligible_workers
            others = "" if full == eligible else "; the threads of the others are busy"
            message = (
                f"Memory is high in {full} of {format_count(eligible, 'worker')} that can run it: no new job "
                f"starts there while one is running{others}."
            )
            details = {"queue": waiting.queue, "workers": eligible, "high": full}
            yield ExplanationReason(ReasonCode.MEMORY_HIGH, message, details)
        elif waiting.workers_at_limit:
            limit = format_count(waiting.per_worker or 0, "job")
            message = (
                f"Each worker process may run {limit} of queue {waiting.queue!r} at a time; "
                f"eligible workers: {waiting.eligible_workers}, jobs that they run: {waiting.busy_threads}."
            )
            details |= {"per_worker": waiting.per_worker, "workers": waiting.eligible_workers}
            yield ExplanationReason(ReasonCode.PER_WORKER_LIMIT, message, details)
        else:
            busy = f"{waiting.threads} for queue {waiting.queue!r}"
            message = f"All threads of the workers that can run it are busy: {busy}."
            yield ExplanationReason(ReasonCode.THREADS_BUSY, message, details)
    if turn is not None:
        tenants = format_count(turn.tenants, "tenant")
        ahead_of_it = f"{format_count(turn.ahead, 'job')} {'is' if turn.ahead == 1 else 'are'} before it"
        message = (
            f"Queue {waiting.queue!r} serves {tenants} in turn, by {turn.rule}. Of its tenant {turn.tenant!r} "
            f"{ahead_of_it}, and {turn.running} running."
        )
        details = {"tenant": turn.tenant, "ahead": turn.ahead, "running": turn.running, "tenants": turn.tenants}
        yield ExplanationReason(ReasonCode.TENANTS_IN_TURN, message, details)
    elif waiting.ready_ahead:
        ahead, is_exact = min(waiting.ready_ahead, MAX_COUNTED_AHEAD), waiting.ready_ahead <= MAX_COUNTED_AHEAD
        counted = format_count(ahead, "ready job") if is_exact else f"more than {ahead} ready jobs"
        message = f"It waits behind {counted} of queue {waiting.queue!r}, in the order of priority and creation."
        yield ExplanationReason(ReasonCode.JOBS_AHEAD, message, {"ahead": ahead, "exact": is_exact})


def _start_estimate(waiting: WaitingFacts, typical: PeriodStatistics) -> StartEstimate | None:
    """Estimate from the mean run time of the task; None if none of its jobs finished recently."""
    mean = typical.run_time.mean
    if mean is None:
        return None
    average = f"jobs of {waiting.task!r} take {mean:.1f} s on average"
    if waiting.wait_state == "blocked":
        before = waiting.blocked_ahead + 1
        basis = f"{format_count(before, 'job')} of its lock key ahead of it, and {average}"
        return StartEstimate(round(mean * before, 1), basis)
    if waiting.wait_state == "limited":
        return None  # other tasks hold the limit too: their run times say nothing of it
    slots, free = waiting.threads, waiting.threads - waiting.busy_threads
    if waiting.concurrency is not None:
        slots, free = min(slots, waiting.concurrency), min(free, waiting.concurrency - waiting.running)
    if slots <= 0:
        return None
    free = max(0, free)
    key_free_sec = 0.0 if waiting.holder_job_id is None else mean
    start_in_sec = max(key_free_sec, mean * max(0, waiting.ready_ahead + 1 - free) / slots)
    ahead, threads = format_count(waiting.ready_ahead, "job"), format_count(slots, "thread")
    return StartEstimate(round(start_in_sec, 1), f"{ahead} ahead of it, {free} of {threads} free, and {average}")


def _running_reasons(running: RunningFacts, typical: PeriodStatistics) -> Iterator[ExplanationReason]:
    details: dict[str, Any] = {"worker": running.worker, "lease_expires_at": running.lease_expires_at}
    if running.lease_expires_at is not None and running.lease_expires_at < running.now:
        expired = _format_elapsed(running.now, running.lease_expires_at)
        message = f"Its lease expired {expired} ago; the reaper will soon take it from {running.worker}."
        yield ExplanationReason(ReasonCode.LEASE_EXPIRED, message, details)
    elif not running.worker_alive:
        seen = f" since {_format_time(running.worker_seen_at)}" if running.worker_seen_at else ""
        lost = f"the job is taken from it when the lease expires at {_format_time(running.lease_expires_at)}"
        message = f"Its worker {running.worker} has sent no heartbeat{seen}; {lost}."
        yield ExplanationReason(ReasonCode.WORKER_SILENT, message, details | {"seen_at": running.worker_seen_at})
    if running.cancel_requested or running.stop_reason:
        requested = _format_elapsed(running.now, running.stop_requested_at or running.now)
        stop_reason = "cancel" if running.cancel_requested else running.stop_reason
        last_step = f"; the last stop step was {running.stop_step!r}" if running.stop_step else ""
        since_text = f"Its stop ({stop_reason}) was requested {requested} ago"
        message = f"{since_text}, but it has not reached a safe point{last_step}."
        details = {"requested_at": running.stop_requested_at, "stop_step": running.stop_step or "request"}
        yield ExplanationReason(ReasonCode.STOP_NOT_OBEYED, message, details | {"reason": stop_reason})
    if running.progress_age_sec is not None and running.progress_age_sec > _STALLED_AFTER_SEC:
        message = f"Its progress has not changed for {_format_duration(running.progress_age_sec)}."
        details = {"progress_age_sec": round(running.progress_age_sec, 1)}
        yield ExplanationReason(ReasonCode.PROGRESS_OLD, message, details)
    yield _duration_reason(running, typical)


def _duration_reason(running: RunningFacts, typical: PeriodStatistics) -> ExplanationReason:
    started_at = running.started_at or running.now
    running_sec = (running.now - started_at).total_seconds()
    p50, p95 = typical.run_time.p50, typical.run_time.p95
    attempt = f"Attempt {running.attempt} of {running.max_attempts}"
    message = f"{attempt} has been running on {running.worker} for {_format_duration(running_sec)}"
    if p95 is not None and running_sec > p95:
        message += f", longer than 95 % of the jobs of {running.task!r} ({_format_duration(p95)})"
    elif p50 is not None:
        message += f"; half of the jobs of {running.task!r} take {_format_duration(p50)} or less"
    heartbeat_age_sec = None
    if running.heartbeat_at is not None:
        heartbeat_age_sec = round(max(0.0, (running.now - running.heartbeat_at).total_seconds()), 1)
        message += f"; its last heartbeat was {_format_duration(heartbeat_age_sec)} ago"
    details = {
        "attempt": running.attempt,
        "worker": running.worker,
        "worker_id": running.worker_id,
        "started_at": started_at,
        "running_sec": round(running_sec, 1),
        "heartbeat_age_sec": heartbeat_age_sec,
        "progress_age_sec": None if running.progress_age_sec is None else round(running.progress_age_sec, 1),
        "typical_p50_sec": p50,
        "typical_p95_sec": p95,
    }
    return ExplanationReason(ReasonCode.RUNNING, message + ".", details)


def _ended_reason(job: Job, attempts: list[AttemptRecord]) -> ExplanationReason:
    details = {
        "finished_at": job.finished_at,
        "attempts": job.attempt,
        "max_attempts": job.max_attempts,
        "worker": job.worker,
        "error": job.error,
        "last_outcome": attempts[-1].outcome if attempts else None,
    }
    at, attempt = _format_time(job.finished_at), f"attempt {job.attempt} of {job.max_attempts}"
    match job.status:
        case Status.SUCCEEDED:
            message = f"It succeeded at {at} in attempt {job.attempt}."
        case Status.FAILED:
            retried = "which was the last" if job.attempt >= job.max_attempts else "and was not retried"
            message = f"It failed at {at} in {attempt}, {retried}: {_first_line(job.error)}"
        case Status.LOST:
            message = f"It was lost at {at}: its worker disappeared during {attempt}, which was the last."
        case _ if job.skipped:
            message = f"It was skipped at {at}: {_first_line(job.error)}"
            return ExplanationReason(ReasonCode.SKIPPED, message, details | {"graph_id": job.graph_id})
        case _:
            during = f"during attempt {job.attempt}" if attempts else "before its first attempt"
            message = f"It was canceled at {at} {during}."
    return ExplanationReason(ReasonCode(job.status.value), message, details)


def _first_line(error: str | None) -> str:
    line = (error or "no error was recorded").strip().partition("\n")[0]
    line = line if len(line) <= _MAX_ERROR_LINE_LENGTH else line[: _MAX_ERROR_LINE_LENGTH - 1] + "…"
    return line if line.endswith(".") else line + "."


def _format_time(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _format_elapsed(now: datetime, since: datetime) -> str:
    return _format_duration(max(0.0, (now - since).total_seconds()))


def _format_duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
