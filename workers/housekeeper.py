"""Keeps house: deletes what ended long ago, turns the pages of the journal, and rings for jobs that wait unheard.

Every worker process has one, and one of them at a time does the work. What may take its time it does over a connection
of its own, open as long as there is something to delete: none of this may stand in the way of a claim or a lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from app import log
from app.errors import DataloaderError
from app.queue.retention import Ages, Pruned, Retention
from app.queue.session import Session
from workers.threads import Loop, clock

_log = log.get(__name__)
_RING_EVERY = 1.0
_PRUNE_EVERY = 60.0
_TRY_EVERY = 10.0  # how often the others ask whether it is their turn
_MOST = 500  # jobs a batch


@dataclass(frozen=True)
class HousekeeperState:
    """What this process has deleted since it began."""

    keeps_house: bool
    jobs: int
    parts: int


class Housekeeper:
    def __init__(
        self,
        held: Session,  # a connection that the process keeps anyway: holds the house's lock, and rings
        working: Session,  # ours alone
        ages: Ages,
        *,
        deletes: bool,
        is_requested: bool = False,
        died: Callable[[str], None],
        first_after: float = _PRUNE_EVERY / 2,
    ) -> None:
        self._held, self._working = held, working
        self._retention = Retention(working, ages)
        self._deletes = deletes
        self._is_requested = is_requested  # then also from tables that were upgraded from version 0
        self._is_hold_logged = False
        self._ours = -1  # the connection, by its generation, that holds the house's lock
        self._prune_at = clock() + first_after
        self._try_at = 0.0
        self._batch: Counter[tuple[str, str]] = Counter()  # what was deleted since it was last told
        self.jobs, self.parts = 0, 0  # read by anyone
        self.loop = Loop("housekeeper", self.turn, died=died)

    def turn(self) -> float:
        if not self._is_our_turn():
            return max(0.1, self._try_at - clock())
        self._held.ask("ring_waiting")
        if clock() >= self._prune_at:
            try:
                self._keep_house()
            except DataloaderError as error:  # a lock, or a right that is missing
                _log.warning("retention.failed", error=str(error))
                self._prune_at = clock() + _PRUNE_EVERY
        return max(0.0, min(_RING_EVERY, self._prune_at - clock()))

    def _is_our_turn(self) -> bool:
        if self._held.connected and self._held.generation == self._ours:
            return True
        if clock() < self._try_at:
            return False
        self._try_at = clock() + _TRY_EVERY
        if not self._held.ask("keep_house")[0][0]:
            return False
        self._ours = self._held.generation
        return True

    def _keep_house(self) -> None:
        """A batch; as long as batches are full, with a pause of the time that each took."""
        began = clock()
        for part in self._retention.keep_parts():
            _log.info("part.made", part=part)
        if not self._deletes or self._is_held():
            self._prune_at = clock() + _PRUNE_EVERY
            self._working.close()
            return
        pruned = self._retention.prune(most=_MOST)
        self._note(pruned)
        for part in self._retention.drop_parts():
            self.parts += 1
            _log.info("part.dropped", part=part)
        self._retention.forget_keys()
        self._retention.forget_acts()
        self._working.ask("forget_sleep", {"worker_id": "00000000-0000-0000-0000-000000000000"})
        took = clock() - began
        self._prune_at = clock() + (min(5.0, max(0.05, took)) if pruned.full else _PRUNE_EVERY)
        if not pruned.full:
            self._working.close()

    def _is_held(self) -> bool:
        if self._is_requested or not self._retention.is_held:
            return False
        if not self._is_hold_logged:
            self._is_hold_logged = True
            _log.warning(
                "retention.held",
                detail="the tables were upgraded from version 0: nothing is deleted; DL_RETENTION=true deletes what is "
                "older than DL_KEEP_…, DL_RETENTION=false keeps everything; `dataloader prune --dry-run` lists it",
            )
        return True

    def _note(self, pruned: Pruned) -> None:
        self._batch.update(pruned.jobs)
        self.jobs += sum(pruned.jobs.values())
        if not pruned.full and self._batch:
            for (status, task), jobs in sorted(self._batch.items()):
                _log.info("jobs.deleted", status=status, task=task, jobs=jobs)
            self._batch.clear()

    def state(self) -> HousekeeperState:
        ours = self._held.connected and self._held.generation == self._ours
        return HousekeeperState(ours, self.jobs, self.parts)

    def close(self) -> None:
        self._working.close()
