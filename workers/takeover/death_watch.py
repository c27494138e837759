"""Reaps the runs of worker processes that are proved dead, before their leases run out.

A check reads /proc alone; it queries the database only when a process has died. Every third heartbeat returns the
processes to watch: a few of the host, so that many processes do not cost each of them more, and all as soon as one is
found dead. A worker with a name also takes over from the former holder of the name; see `NameClaim`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.attempt_sessions import ConnectionSettings, attempt_application_name, end_sessions
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import HeartbeatResult, HeldAttempt, OtherWorker, WorkerLiveness
from dataloader.pipelines.portable import clock
from dataloader.workers.reaper import reap_runs, servers_to_search
from dataloader.workers.registration import Registration
from dataloader.workers.takeover import process_identity
from dataloader.workers.takeover.name_claim import NameClaim
from dataloader.workers.takeover.process_identity import Identity, LockState, Proof, probe_lock, remove_lock

_log = log.get(__name__)
_CHECK_INTERVAL_SEC = 0.25
_ALONE_INTERVAL_SEC = 1.0  # while no other process is known
_TAKEOVER_INTERVAL_SEC = 0.5  # between two checks of a dead process that has sessions or runs left
_TAKEOVER_RETRY_SEC = 2.0  # after an error: later than the next step, which then serves another dead process
_TAKEOVER_LEASE_SEC = 5.0  # after which another process may take over
_HELD_LOCK_INTERVAL_SEC = 1.0  # between two checks for the end of isolated processes that outlive their worker
_STUCK_SESSIONS_INTERVAL_SEC = 5.0
_SESSIONS_TIMEOUT_SEC = 2.0
_SESSIONS_POLL_SEC = 0.02


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
            return _ALONE_INTERVAL_SEC
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
        return _CHECK_INTERVAL_SEC if known or self._takeovers else _ALONE_INTERVAL_SEC

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
