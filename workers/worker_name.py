"""DL_WORKER_NAME: a name that at most one process has, so that its new holder takes over from the former one.

The operator promises it and may be mistaken. A new holder therefore requests a beat from the former one, and takes
nothing from one that beats. A former holder that was frozen finds its name taken at its next beat.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app import log
from app.queue.workers import BeatResult, OtherWorker, WorkerLiveness
from workers.threads import clock

_log = log.get(__name__)
_ANSWER_TIMEOUT_SEC = 1.0  # for a process that listens
_LISTENING = "listening"


@dataclass(frozen=True)
class BeatRequest:
    """A beat requested from a former holder."""

    other: OtherWorker
    requested_at: datetime  # by the database's clock
    deadline: float  # of its answer


class NameClaim:
    """The heartbeat's thread calls `on_beat`, the death watch the rest."""

    def __init__(
        self, deaths: WorkerLiveness, worker_id: UUID, name: str, *, on_superseded: Callable[[], None]
    ) -> None:
        self._deaths, self._worker_id, self._name = deaths, worker_id, name
        self._on_superseded = on_superseded
        self._lock = threading.Lock()
        self._former_holders: list[OtherWorker] = []  # under the lock: beats are still to be requested
        self._requests: dict[UUID, BeatRequest] = {}
        self._is_registered = False  # the heartbeat's

    def on_beat(self, beat: BeatResult) -> None:
        """Read the former holders from the first beat, and from later ones whether the name is still ours."""
        # A row that is gone was removed by a process that has taken over from this one.
        if beat.is_superseded or (self._is_registered and beat.is_new):
            self._on_superseded()
        if self._is_registered:
            return
        self._is_registered = True
        _log.info("worker_name.held", name=self._name, incarnation=beat.incarnation)
        with self._lock:
            self._former_holders = [other for other in beat.others if other.worker_name == self._name]

    def check_former_holders(self, *, dead_workers: Container[UUID]) -> list[OtherWorker]:
        """Request beats from former holders; return those that are superseded. Each is asked once: a process that was
        found alive keeps its jobs, even if it does not answer later."""
        while self._former_holders:
            if self._former_holders[0].id not in dead_workers:
                self._request_beat(self._former_holders[0])
            with self._lock:
                del self._former_holders[0]
        now = clock()
        due = [request for request in self._requests.values() if now >= request.deadline]
        return [request.other for request in due if self._try_supersede(request)]

    def _request_beat(self, other: OtherWorker) -> None:
        wait = _ANSWER_TIMEOUT_SEC if other.listener == _LISTENING else other.heartbeat_sec + _ANSWER_TIMEOUT_SEC
        self._requests[other.id] = BeatRequest(other, self._deaths.request_beat(other.id), clock() + wait)

    def _try_supersede(self, request: BeatRequest) -> bool:
        other = request.other
        superseded = self._deaths.supersede(other.id, by=self._worker_id, requested_at=request.requested_at)
        del self._requests[other.id]
        if superseded is False and other.is_stopping:
            _log.info("worker_name.handed_over", name=self._name, worker=other.name)
        elif superseded is False:
            _log.error(
                "worker_name.shared",
                name=self._name, worker=other.name, worker_id=str(other.id),
                detail="two live processes have one DL_WORKER_NAME; nothing was taken over",
            )  # fmt: skip
        return bool(superseded)
