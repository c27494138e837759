"""Looks for ready jobs at the front of queues whose claims no longer start there, because that takes long."""

from __future__ import annotations

from collections.abc import Sequence

from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.portable import clock
from dataloader.workers.claimer import report_unknown_tasks
from dataloader.workers.dispatcher import Dispatcher
from dataloader.workers.queue_buffer import MAX_SCAN


def look_at_fronts(queue: JobQueue, tasks: Sequence[str], dispatcher: Dispatcher) -> None:
    """Look where it is due. The heartbeat's thread calls this once a second, and claims go on meanwhile."""
    for name, buffer in dispatcher.queues.items():
        position = buffer.cursor.position_to_look_before(clock())
        if position is None:
            continue
        found = queue.find_ready(name, tasks, until=position, limit=MAX_SCAN)
        buffer.cursor.record_look(found.took_sec, clock())
        if not found.are_known:
            report_unknown_tasks(name, queue.defer_unknown_tasks(name, tasks))
        dispatcher.offer(found.job_ids, name)
