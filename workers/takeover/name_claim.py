"""Takes over from the former holder of this process's name (DL_WORKER_NAME), if it sends no heartbeat."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from dataloader.app import log
from dataloader.app.queue.workers import HeartbeatResult, OtherWorker, WorkerLiveness
from dataloader.pipelines.portable import clock
from dataloader.workers.listener import ListenState

_log = log.get(__name__)
_ANSWER_TIMEOUT_SEC = 1.0  # for a process that listens


class HeartbeatRequest(NamedTuple):
    """A heartbeat requested from a former holder."""

    other: OtherWorker
    requested_at: datetime  # by the database's clock
    deadline: float  # of its answer


class NameClaim:
    """DL_WORKER_NAME: a name that at most one process has, so that its new holder takes over from the former one.

    The operator promises it and may be mistaken. A new holder therefore requests a heartbeat from the former one, and
    takes nothing from one that sends it. A former holder that was frozen finds its name taken at its next heartbeat.
    The heartbeat's thread calls `on_heartbeat`, the death watch the rest.
    """

    def __init__(
        self, deaths: WorkerLiveness, worker_id: UUID, name: str, *, on_superseded: Callable[[], None]
    ) -> None:
        self._deaths, self._worker_id, self._name = deaths, worker_id, name
        self._on_superseded = on_superseded
        self._lock = threading.Lock()
        self._former_holders: list[OtherWorker] = []  # under the lock: heartbeats are still to be requested
        self._requests: dict[UUID, HeartbeatRequest] = {}
        self._is_registered = False  # the heartbeat's

    def on_heartbeat(self, heartbeat: HeartbeatResult) -> None:
        """Read the former holders from the first heartbeat, and from later ones whether the name is still ours."""
        # A row that is gone was removed by a process that has taken over from this one.
        if heartbeat.is_superseded or (self._is_registered and heartbeat.is_new):
            self._on_superseded()
        if self._is_registered:
            return
        self._is_registered = True
        _log.info("worker_name.held", name=self._name, incarnation=heartbeat.incarnation)
        with self._lock:
            self._former_holders = [other for other in heartbeat.others if other.worker_name == self._name]

    def check_former_holders(self, *, dead_workers: Container[UUID]) -> list[OtherWorker]:
        """Request heartbeats from former holders; return those that are superseded. Each is asked once: a process
        that was found alive keeps its jobs, even if it does not answer later."""
        while self._former_holders:
            if self._former_holders[0].id not in dead_workers:
                other, timeout_sec = self._former_holders[0], _ANSWER_TIMEOUT_SEC
                if other.listener != ListenState.LISTENING:  # it reads the request at its next heartbeat
                    timeout_sec += other.heartbeat_sec
                self._requests[other.id] = HeartbeatRequest(
                    other, self._deaths.request_heartbeat(other.id), clock() + timeout_sec
                )
            with self._lock:
                del self._former_holders[0]
        now = clock()
        due = [request for request in self._requests.values() if now >= request.deadline]
        return [request.other for request in due if self._try_supersede(request)]

    def _try_supersede(self, request: HeartbeatRequest) -> bool:
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
