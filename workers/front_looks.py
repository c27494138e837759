"""Looks for the first ready job of queues whose claims no longer start at the front, because that takes long."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.portable import clock
from dataloader.workers.claimer import report_unknown_tasks
from dataloader.workers.dispatcher import Dispatcher
from dataloader.workers.queue_buffer import QueueBuffer

DEFER_INTERVAL_SEC = 30.0  # jobs of unknown tasks, which claims from the front defer else


@dataclass
class FrontLooks:
    """Used by the heartbeat's thread, once a second: claims go on meanwhile."""

    queue: JobQueue
    tasks: Sequence[str]
    dispatcher: Dispatcher
    _next_defer_at: float = 0.0

    def run_once(self) -> None:
        """Look at the queue that is longest due, if one is. One at a time: no heartbeat may be late."""
        now = clock()
        due = [buffer for buffer in self.dispatcher.queues.values() if buffer.cursor.is_look_due(now)]
        if due:
            self._look(min(due, key=lambda buffer: buffer.cursor.next_front_at))

    def _look(self, buffer: QueueBuffer) -> None:
        began, first_ready = clock(), None
        try:
            self.queue.promote_overdue()
            first_ready, took_sec = self.queue.find_first_ready(buffer.queue, self.tasks)
        except DatabaseUnavailable:  # perhaps it took too long, and the next one would, too
            took_sec = clock() - began
        buffer.cursor.record_look(first_ready, took_sec, clock())
        if first_ready is not None or not buffer.cursor.is_front_slow:
            self.dispatcher.claim_soon(buffer)
        if clock() >= self._next_defer_at:
            self._next_defer_at = clock() + DEFER_INTERVAL_SEC
            with suppress(DatabaseUnavailable):  # as above; the next heartbeat reports an outage
                report_unknown_tasks(buffer.queue, self.queue.defer_unknown_tasks(buffer.queue, self.tasks))
