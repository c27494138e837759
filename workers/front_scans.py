"""Scans for the first ready job of queues whose claims no longer start at the front: see `ClaimCursor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.portable import clock
from dataloader.workers.claimer import report_unknown_tasks
from dataloader.workers.dispatcher import Dispatcher
from dataloader.workers.pace import Pace
from dataloader.workers.queue_buffer import QueueBuffer

DEFER_INTERVAL_SEC = 30.0  # between two deferrals of jobs of unknown tasks, which no claim does now


@dataclass
class FrontScans:
    """Used by the heartbeat's thread, once a second: for one statement, as no heartbeat may be late. Claims go on."""

    queue: JobQueue
    tasks: Sequence[str]
    dispatcher: Dispatcher
    _promote_pace: Pace = field(default_factory=lambda: Pace(5.0))
    _next_at: dict[str, float] = field(default_factory=dict)  # of the promotion, "", and of deferrals, by queue

    def run_once(self) -> None:
        """Do what is longest due, if anything is."""
        slow = [buffer for buffer in self.dispatcher.queues.values() if buffer.cursor.is_front_slow]
        if not slow:
            return
        now = clock()
        steps: list[tuple[float, Callable[[], None]]] = [(self._next_at.setdefault("", now + 1.0), self._promote)]
        for buffer in slow:
            defer_at = self._next_at.setdefault(buffer.queue, now + DEFER_INTERVAL_SEC)
            steps.append((buffer.cursor.next_front_at, partial(self._scan, buffer)))
            steps.append((defer_at, partial(self._defer_unknown_tasks, buffer)))
        due_at, step = min(steps, key=lambda step: step[0])
        if now >= due_at:
            with suppress(DatabaseUnavailable):  # perhaps it takes too long, and others do not
                step()

    def _scan(self, buffer: QueueBuffer) -> None:
        cursor, position = buffer.cursor, buffer.cursor.position
        priority = None if position is None else position[0]
        try:
            first_ready, took_sec = self.queue.find_first_ready(buffer.queue, self.tasks, quiet_priority=priority)
        except DatabaseUnavailable:
            cursor.record_failed_scan(clock())
            if position is None:
                self.dispatcher.claim_soon(buffer)
            raise
        cursor.record_scan(first_ready, took_sec, clock())
        self.dispatcher.claims.last_claim_at = clock()
        if first_ready is not None or not cursor.is_front_slow:
            self.dispatcher.claim_soon(buffer)

    def _promote(self) -> None:
        began = clock()
        self._next_at[""] = began + 1.0
        self.queue.promote_overdue()
        self._promote_pace.record(clock() - began)
        self._next_at[""] = clock() + self._promote_pace.interval_sec

    def _defer_unknown_tasks(self, buffer: QueueBuffer) -> None:
        self._next_at[buffer.queue] = clock() + DEFER_INTERVAL_SEC
        report_unknown_tasks(buffer.queue, self.queue.defer_unknown_tasks(buffer.queue, self.tasks))
