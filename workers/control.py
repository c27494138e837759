"""What people tell a worker process about its queues and itself, and what it tells of itself meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from app import log
from app.queue.queues import Queues, QueueState, Rule
from workers.attempt import Attempt
from workers.desk import Desk
from workers.line import Ruling
from workers.roster import Roster
from workers.threads import Loop, clock

_log = log.get(__name__)
_LOOK_EVERY = 5.0  # seconds after which the rules are read without a notification
_MEMORY = Path("/proc/self/statm")


class Control:
    """Rules are in the database, and every claim honours them; here they are known beforehand, so that no thread asks
    in vain, and beyond what a claim can know: how much this process may run."""

    def __init__(
        self,
        queues: Queues,
        desk: Desk,
        roster: Roster,
        *,
        worker_id: UUID,
        every: float,
        hearing: Callable[[], str],
        widen: Callable[[str, int], None],
        died: Callable[[str], None],
    ) -> None:
        self._queues, self._desk, self._roster, self._worker_id = queues, desk, roster, worker_id
        self._every, self._hearing, self._widen = every, hearing, widen
        self._tell_at = 0.0
        self._progress: dict[str, tuple[Any, float]] = {}  # run → its progress, and since when it is that
        self.draining = False  # read by anyone
        self._told_hearing = ""
        self._stopping = False  # set by the thread that stops the pool
        self.loop = Loop("control", self.turn, died=died)

    def stopping(self) -> None:
        """Let the database know at once that this process claims nothing more."""
        self._stopping, self._tell_at = True, 0.0
        self.loop.ring()

    def turn(self) -> float:
        now = clock()
        hearing = self._hearing()
        due = now >= self._tell_at or hearing != self._told_hearing  # which a new holder of our name goes by
        rules, draining = self._queues.told(
            self._worker_id,
            {name: line.threads for name, line in self._desk.lines.items()},
            listener=hearing,
            rss_bytes=rss_bytes(),
            doing=self._doing(now) if due else None,
            stopping=self._stopping,
        )
        if due:
            self._tell_at, self._told_hearing = now + self._every, hearing
        if draining != self.draining:
            _log.info("worker.drains" if draining else "worker.claims.again")
        self.draining = draining
        for name, rule in rules.items():
            if rule.per_worker is not None:
                self._widen(name, rule.per_worker)
        self._desk.rule({name: _ruling(rules.get(name), draining) for name in self._desk.lines})
        return min(_LOOK_EVERY, self._every)

    def _doing(self, now: float) -> list[Mapping[str, Any]]:
        held = self._roster.all()
        seen: dict[str, tuple[Any, float]] = {}
        for attempt in held:
            progress, run = attempt._progress, attempt.job.run_text  # replaced whole whenever it changes
            before = self._progress.get(run)
            seen[run] = before if before is not None and before[0] is progress else (progress, now)
        self._progress = seen
        return [_told(attempt, now - seen[attempt.job.run_text][1]) for attempt in held]


def _told(attempt: Attempt, progress_age: float) -> Mapping[str, Any]:
    return {
        "run_id": attempt.job.run_text,
        "queue": attempt.job.queue,
        "progress_age_sec": round(progress_age, 1),
        "stopping": None if attempt.stopping is None else attempt.stopping.value,
        "rung": attempt.rung,
    }


def _ruling(rule: Rule | None, draining: bool) -> Ruling:
    if rule is None:
        return Ruling(held=draining)
    return Ruling(
        held=draining or rule.state is not QueueState.OPEN, here=rule.per_worker, limited=rule.concurrency is not None
    )


def rss_bytes() -> int | None:
    """The memory of this process; None where the system does not say."""
    try:
        pages = int(_MEMORY.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
