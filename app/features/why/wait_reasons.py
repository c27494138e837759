"""Why a queued job is not running yet, and when it may start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dataloader.app.acts.reasons import ExplanationReason, ReasonCode, StartEstimate, format_elapsed
from dataloader.app.features.why.queue_reasons import settings_reasons
from dataloader.app.queue.job import Job
from dataloader.app.queue.labels import Labels, describe_missing
from dataloader.app.queue.queues import QueueSettings, QueueState
from dataloader.app.state.statistics import PeriodStatistics
from dataloader.app.wording import format_count, format_duration, format_utc, suggestion

MAX_COUNTED_AHEAD = 10_000  # more jobs ahead are not counted


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
    requires: dict[str, bool | str] | None  # of the task, if a live worker of the queue leaves it to others
    labels: tuple[dict[str, bool | str], ...]  # of the live workers of the queue
    known_tasks: tuple[str, ...]  # to the live workers of the queue, unless one knows the task


@dataclass(frozen=True)
class TurnFacts:
    """A row of `turn_facts`: a ready job of a fair queue."""

    rule: str
    tenant: str
    ahead: int  # jobs of its tenant
    running: int  # of its tenant
    tenants: int  # that wait


def waiting_reasons(job: Job, waiting: WaitingFacts, turn: TurnFacts | None) -> Iterator[ExplanationReason]:
    due = format_utc(waiting.available_at)
    yield from _queue_reasons(waiting)
    if waiting.unknown_task and waiting.requires is not None and waiting.knowing_workers == 0:
        yield labels_reason(waiting.task, waiting.requires, waiting.labels, queue=waiting.queue)
        return
    if waiting.unknown_task:
        similar = suggestion(waiting.task, frozenset(waiting.known_tasks))
        message = (
            f"The job is deferred because no live worker of queue {waiting.queue!r} knows the task {waiting.task!r}"
            f"{similar or '.'} It is checked again at {due}, or when a worker that knows the task starts."
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
    state = QueueState(waiting.queue_state)
    settings = QueueSettings(
        waiting.queue,
        state,
        waiting.concurrency,
        waiting.per_worker,
        waiting.note,
        waiting.changed_by,
        waiting.changed_at,
    )
    yield from settings_reasons(settings, waiting.running)


def _worker_reasons(waiting: WaitingFacts) -> Iterator[ExplanationReason]:
    elsewhere, knowing, task = waiting.workers_anywhere, waiting.knowing_workers, waiting.task
    if waiting.workers == 0:
        other = f"; {elsewhere} serve other queues" if elsewhere else " or any other queue"
        message = f"No live worker serves queue {waiting.queue!r}{other}."
        details = {"queue": waiting.queue, "workers_anywhere": elsewhere}
        yield ExplanationReason(ReasonCode.NO_WORKER, message, details)
    elif knowing == 0 and waiting.requires is not None:
        yield labels_reason(task, waiting.requires, waiting.labels, queue=waiting.queue)
    elif knowing == 0:
        similar = suggestion(task, frozenset(waiting.known_tasks))
        workers = f"None of the {waiting.workers} live workers of queue {waiting.queue!r}"
        message = f"{workers} knows the task {task!r}{similar or '.'}"
        details = {"task": task, "workers": waiting.workers}
        yield ExplanationReason(ReasonCode.TASK_UNKNOWN, message, details)
    elif waiting.eligible_workers == 0:
        counts = {"shutting down": waiting.stopping_workers, "drained": knowing - waiting.stopping_workers}
        states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        workers = f"None of the {knowing} live workers of queue {waiting.queue!r} that know the task {task!r}"
        message = f"{workers} claims jobs: {states}."
        details = {"queue": waiting.queue, "workers": knowing, "stopping": waiting.stopping_workers}
        yield ExplanationReason(ReasonCode.WORKERS_DRAINING, message, details)


def labels_reason(
    task: str, requires: Labels, labels_of_workers: Sequence[Labels], *, queue: str | None = None
) -> ExplanationReason:
    message = describe_missing(task, requires, labels_of_workers, queue=queue)
    details = {"task": task, "requires": dict(requires)} | ({} if queue is None else {"queue": queue})
    return ExplanationReason(ReasonCode.LABELS_MISSING, f"{message[0].upper()}{message[1:]}.", details)


def _lock_reasons(waiting: WaitingFacts) -> Iterator[ExplanationReason]:
    key, details = f"Its lock key {waiting.lock_key!r}", dict[str, Any](lock_key=waiting.lock_key)
    if waiting.holder_job_id is not None:
        since = waiting.holder_since or waiting.now
        message = (
            f"{key} is held by job {waiting.holder_job_id}, which has been running on {waiting.holder_worker} since "
            f"{format_utc(since)} ({format_elapsed(waiting.now, since)})."
        )
        details |= {"job_id": waiting.holder_job_id, "since": since, "worker": waiting.holder_worker}
        yield ExplanationReason(ReasonCode.KEY_BUSY, message, details)
    elif waiting.session_pid is not None and waiting.wait_state == "blocked":
        since_text = f" since {format_utc(waiting.session_since)}" if waiting.session_since else ""
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


def start_estimate(waiting: WaitingFacts, typical: PeriodStatistics) -> StartEstimate | None:
    """Estimate from the mean run time of the task; None if none of its jobs finished recently."""
    mean = typical.run_time.mean
    if mean is None:
        return None
    average = f"jobs of {waiting.task!r} take {format_duration(mean)} on average"
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
