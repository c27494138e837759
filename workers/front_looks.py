"""Looks for ready jobs at the front of queues whose claims no longer start there, because that takes long."""

from __future__ import annotations

from collections.abc import Iterable

from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.portable import clock
from dataloader.workers.claimer import report_unknown_tasks
from dataloader.workers.dispatcher import Dispatcher
from dataloader.workers.queue_buffer import MAX_SCAN


class FrontLooks:
    """Used by the thread of the heartbeat: a look takes long, and claims go on meanwhile."""

    def __init__(self, queue: JobQueue, tasks: Iterable[str], dispatcher: Dispatcher) -> None:
        self._queue, self._tasks, self._dispatcher = queue, tuple(tasks), dispatcher

    def on_heartbeat(self, _: object) -> None:
        for name, buffer in self._dispatcher.queues.items():
            position = buffer.cursor.position_to_look_before(clock())
            if position is None:
                continue
            found = self._queue.find_ready(name, self._tasks, until=position, limit=MAX_SCAN)
            buffer.cursor.record_look(found.took_sec, clock())
            if not found.are_known:
                report_unknown_tasks(name, self._queue.defer_unknown_tasks(name, self._tasks))
            self._dispatcher.offer(found.job_ids, name)
