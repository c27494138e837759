"""Registers a worker process so that others can prove its death, and reaps the runs of others that are proved dead.

A check reads /proc alone; it queries the database only when a process has died. Every third heartbeat returns the
processes to watch: a few of the host, so that many processes do not cost each of them more, and all as soon as one is
found dead. A worker with a name also takes over from the former holder of the name; see `NameClaim`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from dataloader.app import log
from dataloader.app.db.connection import Session
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.attempt_sessions import ConnectionSettings, attempt_application_name, end_sessions
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import (
    HeartbeatResult,
    HeldAttempt,
    HostFacts,
    OtherWorker,
    WorkerInfo,
    WorkerLiveness,
)
from dataloader.pipelines.contract import StopReason
from dataloader.workers import process_identity
from dataloader.workers.attempt import RunningAttempts
from dataloader.workers.listener import ListenState
from dataloader.workers.process_identity import Identity, LockState, ProcessLock, Proof, probe_lock, remove_lock
from dataloader.workers.reaper import reap_runs, servers_to_search
from dataloader.workers.threads import clock

_log = log.get(__name__)
_CHECK_INTERVAL_SEC = 0.25
_TAKEOVER_INTERVAL_SEC = 0.5  # between two checks of a dead process that has sessions or runs left
_TAKEOVER_RETRY_SEC = 2.0  # after an error: later than the next step, which then serves another dead process
_TAKEOVER_LEASE_SEC = 5.0  # after which another process may take over
_HELD_LOCK_INTERVAL_SEC = 1.0  # between two checks for the end of isolated processes that outlive their worker
_STUCK_SESSIONS_INTERVAL_SEC = 5.0
_SESSIONS_TIMEOUT_SEC = 2.0
_SESSIONS_POLL_SEC = 0.02
_STOP_POLL_SEC = 0.05
_ANSWER_TIMEOUT_SEC = 1.0  # for a process that listens
WATCHED = 3  # processes of a host that each one watches
_WATCH_HEARTBEATS = (
    3  # heartbeats between two reads of the processes to watch, while none starts and none is found dead
)


class Registration:
    """The process's row in `dl_workers`. The heartbeat's thread calls `send_heartbeat`."""

    def __init__(self, session: Session, info: WorkerInfo, *, heartbeat_sec: float, worker_name: str | None) -> None:
        self._session, self._info, self._heartbeat_sec = session, info, heartbeat_sec
        self._worker_name = worker_name
        self._facts = HostFacts()
        self.identity: Identity | None = None
        self.process_lock = ProcessLock()
        self.is_superseded = False  # set by the heartbeat's thread
        self.watches_all = False  # set by the death watch: whether the next heartbeats return all processes of the host
        self._watched: set[UUID] = set()  # of the host
        self._heartbeats_left = 0  # until the processes to watch are read
        self.registered = threading.Event()  # set by the first heartbeat: no job starts before a death could be proved

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

    def send_heartbeat(self, idle_queues: Iterable[str] = ()) -> HeartbeatResult:
        """Renew the row of this process; return what there is to do, every third time also the other processes."""
        finds_others = self._heartbeats_left <= 0 or self.watches_all
        heartbeat = WorkerLiveness(self._session).send_heartbeat(
            self._info,
            self._facts,
            heartbeat_sec=self._heartbeat_sec,
            watched=None if self.watches_all else WATCHED,
            idle_queues=idle_queues,
            finds_others=finds_others,
        )
        self._heartbeats_left = _WATCH_HEARTBEATS - 1 if finds_others else self._heartbeats_left - 1
        if heartbeat.has_others:
            self._watched = {other.id for other in heartbeat.others if other.boot_id == self._facts.boot_id}
        self.registered.set()
        return heartbeat

    def is_heartbeat_requested(self, verb: str, argument: str) -> bool:
        """Return whether a control command asks for a heartbeat of this process, or reports a new process to watch."""
        if verb == "started":
            boot_id, _, worker_id = argument.partition(" ")
            try:
                is_to_watch = boot_id == self._facts.boot_id and self._is_to_watch(worker_id)
            except ValueError:  # any program may notify
                is_to_watch = True
            if is_to_watch:
                self._heartbeats_left = 0
            return is_to_watch
        return (verb, argument) == ("heartbeat", str(self._info.id))

    def _is_to_watch(self, worker_id: str) -> bool:
        """Whether a process of the host is before the last that this one watches, in the order of the answer."""
        if len(self._watched) < WATCHED or not worker_id:  # an older version sends no id
            return True
        own = self._info.id
        return (UUID(worker_id) < own, UUID(worker_id)) < max((other < own, other) for other in self._watched)

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
            while len(running) and clock() < deadline and not is_stopped.wait(_STOP_POLL_SEC):
                pass
            with suppress(DatabaseUnavailable):
                WorkerLiveness(self._session).deregister(self._info.id)
            if not is_stopped.is_set():
                exit_process()

        threading.Thread(target=deregister_and_exit, name="superseded", daemon=True).start()


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


@dataclass
class Takeover:
    """A dead process whose jobs are being taken over."""

    other: OtherWorker
    proof: Proof
    is_ours: bool = False  # no other process does it
    next_check_at: float = 0.0

    def lock_state(self) -> LockState:
        """Return whether a process that the dead one started may live. A taken name is the operator's promise that none
        does, unless the lock shows one."""
        lock_file, worker_id = self.other.lock_file, self.other.id
        state = LockState.UNKNOWN if lock_file is None else probe_lock(Path(lock_file), worker_id)
        if state is LockState.UNKNOWN and self.proof is Proof.NAME_TAKEN:
            return LockState.FREE
        return state


class DeathWatch:
    """The worker-control thread calls all but `on_heartbeat`, which the heartbeat calls."""

    def __init__(
        self,
        deaths: WorkerLiveness,
        queue: JobQueue,
        *,
        pause_sec: float,  # times the attempt, before a job that lost a process before is retried
        connection_settings: ConnectionSettings,
        registration: Registration,
        name_claim: NameClaim | None,
        request_heartbeat: Callable[[], None],
        takes_from_others: bool = True,
    ) -> None:
        self._takes_from_others, self._request_heartbeat = takes_from_others, request_heartbeat
        self._deaths, self._queue, self._pause_sec = deaths, queue, pause_sec
        self._connection_settings = connection_settings
        self._registration, self._name_claim = registration, name_claim
        self._lock = threading.Lock()
        self._other_workers: dict[UUID, OtherWorker] = {}  # under the lock; written by the heartbeat
        self._takeovers: dict[UUID, Takeover] = {}

    def on_heartbeat(self, heartbeat: HeartbeatResult) -> None:
        """Save which processes there are now. Called by the heartbeat's thread."""
        if heartbeat.has_others:
            with self._lock:
                self._other_workers = {other.id: other for other in heartbeat.others}
        if self._name_claim is not None:
            self._name_claim.on_heartbeat(heartbeat)

    def run_once(self) -> float:
        if not self._takes_from_others:
            return _CHECK_INTERVAL_SEC
        with self._lock:
            known = dict(self._other_workers)
        takeovers = self._takeovers.items()
        self._takeovers = {worker_id: t for worker_id, t in takeovers if worker_id in known or t.is_ours}
        for other in known.values():
            if other.id not in self._takeovers:
                identity = identity_of(other)
                if identity is None:
                    continue
                proof = process_identity.prove_death(identity, self._registration.identity)
                if proof is not None:
                    self._takeovers[other.id] = Takeover(other, proof)
                    self._watch_all()
        if self._name_claim is not None:
            for other in self._name_claim.check_former_holders(dead_workers=self._takeovers):
                self._takeovers[other.id] = Takeover(other, Proof.NAME_TAKEN)
        self._registration.watches_all = bool(self._takeovers)
        now = clock()
        for takeover in list(self._takeovers.values()):
            if now >= takeover.next_check_at:
                takeover.next_check_at = now + _TAKEOVER_INTERVAL_SEC
                try:
                    self._take_over(takeover)
                except DatabaseUnavailable:
                    takeover.next_check_at = clock() + _TAKEOVER_RETRY_SEC
                    raise
        return _CHECK_INTERVAL_SEC

    def _watch_all(self) -> None:
        """Watch all processes of the host at once, until the takeovers are over: more than one may have been killed."""
        if not self._registration.watches_all:
            self._registration.watches_all = True
            self._request_heartbeat()

    # ── a dead process ──────────────────────────────────────────────────────────────────────────────────────────

    def _take_over(self, takeover: Takeover) -> None:
        """End the sessions, reap the runs, and check again until neither is left: a claim that the process had sent may
        commit after the first check."""
        other = takeover.other
        if not takeover.is_ours:
            if not self._deaths.begin_takeover(other.id, exclusive_sec=_TAKEOVER_LEASE_SEC):
                return
            takeover.is_ours = True
            _log.warning("worker.found_dead", worker=other.name, worker_id=str(other.id), proof=takeover.proof.value)
        sessions_left = self._end_own_sessions(other.id)
        runs = self._deaths.held_attempts(other.id)
        lock = takeover.lock_state() if any(run.may_have_child for run in runs) else LockState.FREE
        free = [run for run in runs if lock is LockState.FREE or not run.may_have_child]
        if free:
            self._reap_runs(other.id, free)
        if free and len(free) == len(runs):
            takeover.next_check_at = 0.0  # check once more, now that the sessions are gone
        elif sessions_left:
            takeover.next_check_at = clock() + _STUCK_SESSIONS_INTERVAL_SEC  # this account may not end them
        elif runs:
            takeover.next_check_at = clock() + _HELD_LOCK_INTERVAL_SEC
        else:
            self._end_takeover(takeover)

    def _end_takeover(self, takeover: Takeover) -> None:
        other = takeover.other
        self._deaths.end_takeover(other.id)
        if other.lock_file is not None and takeover.lock_state() is LockState.FREE:
            remove_lock(Path(other.lock_file), other.id)
        del self._takeovers[other.id]
        with self._lock:
            self._other_workers.pop(other.id, None)

    def _end_own_sessions(self, worker_id: UUID) -> int:
        """Return how many sessions of the process are left."""
        deadline = clock() + _SESSIONS_TIMEOUT_SEC
        while (left := self._deaths.end_sessions(worker_id)) and clock() < deadline:
            time.sleep(_SESSIONS_POLL_SEC)  # the server has only signaled them
        return left

    def _reap_runs(self, worker_id: UUID, runs: Sequence[HeldAttempt]) -> None:
        names = [attempt_application_name(run.job_id, run.run_id) for run in runs]
        sessions = end_sessions(servers_to_search(self._queue, self._connection_settings, names), names)
        dead = [(run.job_id, run.run_id, run.lock_key) for run in runs]
        reap_runs(self._queue, dead, sessions, reason="process_died", pause_sec=self._pause_sec, worker_id=worker_id)


def identity_of(other: OtherWorker) -> Identity | None:
    values = (other.boot_id, other.pid_namespace, other.time_namespace, other.pid, other.start_time)
    return None if None in values else Identity(*values)  # type: ignore[arg-type]  # none is None
