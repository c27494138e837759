"""DL_WORKER_NAME: a name that at most one process has, so that its new holder takes over from the former one.

The name is the operator's promise, and a promise may be broken by mistake. So a new holder asks the former one for a
beat, and takes nothing from one that beats. A former holder that was frozen finds its name taken at its next beat.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app import log
from app.queue.deaths import Beat, Deaths, OtherWorker
from workers.threads import clock

_log = log.get(__name__)
_ANSWER_TIMEOUT_SEC = 1.0  # for a process that listens
_LISTENING = "listening"


@dataclass(frozen=True)
class Asked:
    """A former holder that was asked for a beat."""

    other: OtherWorker
    asked_at: datetime  # by the database's clock
    due: float  # when its time to answer is over


class NameClaim:
    """`learn` is called by the heartbeat's thread, `turn` by the one that watches for deaths."""

    def __init__(self, deaths: Deaths, worker_id: UUID, name: str, *, superseded: Callable[[], None]) -> None:
        self._deaths, self._worker_id, self._name = deaths, worker_id, name
        self._superseded = superseded
        self._lock = threading.Lock()
        self._former: list[OtherWorker] = []  # under the lock: those that are still to be asked
        self._asked: dict[UUID, Asked] = {}
        self._is_registered = False  # the heartbeat's

    def learn(self, beat: Beat) -> None:
        """The first beat names those who held the name before; each later one whether it is still ours."""
        # A row that is gone was removed by a process that has taken over from this one.
        if beat.is_superseded or (self._is_registered and beat.is_new):
            self._superseded()
        if self._is_registered:
            return
        self._is_registered = True
        _log.info("worker_name.held", name=self._name, incarnation=beat.incarnation)
        with self._lock:
            self._former = [other for other in beat.others if other.worker_name == self._name]

    def turn(self, *, proved: Container[UUID]) -> list[OtherWorker]:
        """Ask former holders, and return those that are superseded. One is asked once: a process that was found alive
        keeps its jobs, even if it does not answer later."""
        while self._former:
            if self._former[0].id not in proved:
                self._ask(self._former[0])
            with self._lock:
                del self._former[0]
        now = clock()
        due = [asked for asked in self._asked.values() if now >= asked.due]
        return [asked.other for asked in due if self._supersedes(asked)]

    def _ask(self, other: OtherWorker) -> None:
        wait = _ANSWER_TIMEOUT_SEC if other.listener == _LISTENING else other.heartbeat_sec + _ANSWER_TIMEOUT_SEC
        self._asked[other.id] = Asked(other, self._deaths.ask_to_beat(other.id), clock() + wait)

    def _supersedes(self, asked: Asked) -> bool:
        other = asked.other
        taken = self._deaths.supersede(other.id, by=self._worker_id, asked_at=asked.asked_at)
        del self._asked[other.id]
        if taken is False and other.is_stopping:
            _log.info("worker_name.handed_over", name=self._name, worker=other.name)
        elif taken is False:
            _log.error(
                "worker_name.shared",
                name=self._name, worker=other.name, worker_id=str(other.id),
                detail="two live processes have one DL_WORKER_NAME; nothing was taken over",
            )  # fmt: skip
        return bool(taken)
