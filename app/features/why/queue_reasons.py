"""What keeps jobs of a queue from starting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dataloader.app.acts.reasons import ExplanationReason, ReasonCode
from dataloader.app.queue.queues import LiveWorker, QueueSettings, QueueState
from dataloader.app.state.queues import QueueStatus, WorkerStatus
from dataloader.app.wording import format_count, format_utc


def settings_reasons(settings: QueueSettings, running: int) -> Iterator[ExplanationReason]:
    """That a queue is paused or draining, or that it runs as many jobs as it may."""
    details: dict[str, Any] = {"queue": settings.queue}
    if settings.state is not QueueState.OPEN:
        by = f" by {settings.changed_by}" if settings.changed_by else ""
        note = f": {settings.note}" if settings.note else ""
        closed = f"{settings.state} since {format_utc(settings.changed_at)}{by}{note}"
        message = f"Queue {settings.queue!r} has been {closed}; no jobs are claimed from it."
        details |= {"since": settings.changed_at, "by": settings.changed_by, "note": settings.note}
        yield ExplanationReason(ReasonCode(f"queue_{settings.state}"), message, details)
    elif settings.concurrency is not None and running >= settings.concurrency:
        limit = format_count(settings.concurrency, "job")
        message = f"Queue {settings.queue!r} may run {limit} at a time; running now: {running}."
        details |= {"concurrency": settings.concurrency, "running": running}
        yield ExplanationReason(ReasonCode.QUEUE_AT_LIMIT, message, details)


def no_worker_reason(queue: str, workers: Sequence[LiveWorker]) -> ExplanationReason | None:
    """That no live worker serves a queue, or that none of those that do claims jobs."""
    serving = [worker for worker in workers if queue in worker.queues]
    if not serving:
        message = f"No live worker serves queue {queue!r}{'' if workers else ' or any other queue'}."
        return ExplanationReason(ReasonCode.NO_WORKER, message, {"queue": queue})
    if not any(worker.can_claim for worker in serving):
        message = f"All live workers of queue {queue!r} are drained or shut down; they claim no jobs."
        return ExplanationReason(ReasonCode.WORKERS_DRAINING, message, {"queue": queue})
    return None


def threads_reason(status: QueueStatus, workers: Sequence[WorkerStatus]) -> ExplanationReason | None:
    """That ready jobs wait for a thread."""
    claiming = [w for w in workers if w.alive and not w.draining and not w.stopping and status.queue in w.queues]
    threads = sum(worker.queue_threads.get(status.queue, worker.threads) for worker in claiming)
    if not claiming or not status.ready or status.running < threads:
        return None
    ready = f"{'' if status.ready_exact else 'more than '}{format_count(status.ready, 'ready job')}"
    message = f"All threads for queue {status.queue!r} are busy: {threads}. Waiting for one: {ready}."
    details = {"queue": status.queue, "threads": threads, "running": status.running, "ready": status.ready}
    return ExplanationReason(ReasonCode.THREADS_BUSY, message, details)
