"""Registers a worker process, and holds what other processes need to prove its death."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app import log
from app.db.connection import Session
from app.errors import DatabaseUnavailable
from app.queue.workers import BeatResult, HostFacts, OtherWorker, WorkerInfo, WorkerLiveness
from pipelines.contract import StopReason
from workers import process_identity
from workers.attempt import RunningAttempts
from workers.process_identity import Identity, ProcessLock
from workers.threads import clock

_log = log.get(__name__)
_POLL_SEC = 0.05
_ANSWER_TIMEOUT_SEC = 1.0  # for a process that listens
_LISTENING = "listening"


class Registration:
    """The process's row in `dl_workers`. The heartbeat's thread calls `beat`."""

    def __init__(self, session: Session, info: WorkerInfo, *, heartbeat_sec: float, worker_name: str | None) -> None:
        self._session, self._info, self._heartbeat_sec = session, info, heartbeat_sec
        self._worker_name = worker_name
        self._facts = HostFacts()
        self.identity: Identity | None = None
        self.process_lock = ProcessLock()
        self.is_superseded = False  # set by the heartbeat's thread
        self.registered = threading.Event()  # set by the first beat: no job starts before a death could be proved

    def read_identity(self, child_tasks: Iterable[str]) -> None:
        """Read the identity in the process whose threads run the jobs: a fork changes it."""
        self.identity = process_identity.read_identity()
        self.process_lock.acquire(self._info.id)
        path = self.process_lock.path
        self._facts = HostFacts(
            **({} if self.identity is None else vars(self.identity)),
            lock_file=None if path is None else str(path),
            child_tasks=tuple(child_tasks),
            worker_name=self._worker_name,
        )

    def beat(self) -> BeatResult:
        """Save that the process lives; return the other processes of the host."""
        beat = WorkerLiveness(self._session).beat(self._info, self._facts, heartbeat_sec=self._heartbeat_sec)
        self.registered.set()
        return beat

    def is_beat_requested(self, verb: str, argument: str) -> bool:
        """Return whether a control command asks this process for a beat, or reports a new process on its host."""
        return (verb, argument) in (("beat", str(self._info.id)), ("started", self._facts.boot_id))

    def supersede(
        self,
        running: RunningAttempts,
        *,
        timeout_sec: float,
        is_stopped: threading.Event,
        exit_process: Callable[[], None],
    ) -> None:
        """Stop all attempts as if their leases were lost, then exit: another process has taken the name and the jobs.

        Another process has declared this one dead, so it must not claim. A service manager restarts it.
        """
        _log.error("worker_name.taken", name=self._worker_name, worker=self._info.name)
        for attempt in running.all():
            attempt.stop(StopReason.LEASE_LOST)

        def deregister_and_exit() -> None:
            deadline = clock() + timeout_sec
            while len(running) and clock() < deadline and not is_stopped.wait(_POLL_SEC):
                pass
            with suppress(DatabaseUnavailable):
                WorkerLiveness(self._session).deregister(self._info.id)
            if not is_stopped.is_set():
                exit_process()

        threading.Thread(target=deregister_and_exit, name="superseded", daemon=True).start()


@dataclass(frozen=True)
class BeatRequest:
    """A beat requested from a former holder."""

    other: OtherWorker
    requested_at: datetime  # by the database's clock
    deadline: float  # of its answer


class NameClaim:
    """DL_WORKER_NAME: a name that at most one process has, so that its new holder takes over from the former one.

    The operator promises it and may be mistaken. A new holder therefore requests a beat from the former one, and takes
    nothing from one that beats. A former holder that was frozen finds its name taken at its next beat. The heartbeat's
    thread calls `on_beat`, the death watch the rest.
    """

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
