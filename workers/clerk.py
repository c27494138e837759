"""The chores that one process of all does: bulk operations, and the rollups of the journal."""

from __future__ import annotations

from collections.abc import Callable

from app import log
from app.errors import InvalidJob
from app.queue.bulk import Bulk
from app.queue.queues import Queues
from app.queue.rollups import Rollups
from app.queue.session import Session
from workers.threads import Loop, clock

_log = log.get(__name__)
_IDLE = 2.0  # seconds between two looks when there is nothing to do
_SHARE = 9  # folding rests so many times as long as it took: jobs come first
_PRUNE_EVERY = 3600.0
_EVENTS = 10_000  # that one turn folds
_PATIENCE = 60.0  # until it is tried again, where it was refused


class Clerk:
    """Chores are long questions, so they have a connection of their own: only the one process that does them has it.

    Who leads is decided by a session lock. When he dies his lock goes with him, and another one takes over; even two
    at once would do no harm.
    """

    def __init__(self, queues: Queues, session: Session, *, died: Callable[[str], None]) -> None:
        self._queues, self._session = queues, session
        self._own, self._bulk, self._rollups = Queues(session), Bulk(session), Rollups(session)
        self._generation = -1  # of the session that holds the lock
        self._fold_at = self._prune_at = 0.0
        self.loop = Loop("clerk", self.turn, died=died, away=_IDLE)

    def turn(self) -> float:
        if not self._leads():
            return _IDLE
        busy = self._bulk.turn()
        if clock() >= self._fold_at:
            self._fold()
        if clock() >= self._prune_at:
            self._prune_at = clock() + _PRUNE_EVERY
            self._bulk.prune()
        return 0.0 if busy else max(0.0, self._fold_at - clock())

    def _fold(self) -> None:
        began = clock()
        try:
            more = self._rollups.fold(_EVENTS)
        except InvalidJob as error:  # something that nothing of ours wrote: numbers wait for it, jobs do not
            _log.error("rollups.failed", error=str(error))
            self._fold_at = clock() + _PATIENCE
            return
        now = clock()
        self._fold_at = now + (min(_IDLE, _SHARE * (now - began)) if more else _IDLE)

    def _leads(self) -> bool:
        if self._session.connected and self._session.generation == self._generation:
            return True
        if self._queues.is_led():
            return False
        if not self._own.lead():
            self._session.close()
            return False
        self._generation = self._session.generation
        return True

    def close(self) -> None:
        self._session.close()
