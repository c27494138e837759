"""Watches the other worker processes of the host, and takes over the jobs of one that is proved dead.

A look reads /proc alone: the database is asked only when a process has died. The processes to watch come with the
answer to each heartbeat. A worker with a name takes over from the former holder of the name, too; see worker_name.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from app import log
from app.errors import DatabaseUnavailable
from app.queue.attempt_sessions import Places, SessionsEnded, end_sessions, servers_of, session_name, targets_of
from app.queue.deaths import Beat, Deaths, HeldRun, OtherWorker
from app.queue.jobqueue import JobQueue
from workers import process_identity
from workers.attempt_log import log_reaped
from workers.process_identity import Identity, Proof
from workers.process_lock import LockState, probe_lock, remove_lock
from workers.threads import Loop, clock
from workers.worker_name import NameClaim

_log = log.get(__name__)
_LOOK_INTERVAL_SEC = 0.25
_TAKEOVER_INTERVAL_SEC = 0.5  # between two looks at a dead process that has left something behind
_TAKEOVER_RETRY_SEC = 2.0  # after an error: later than the next turn, which is then another dead process's
_TAKEOVER_LEASE_SEC = 5.0  # after which another process takes over from the dead one, too
_HELD_LOCK_INTERVAL_SEC = 5.0  # between two questions about runs whose processes live
_STUCK_SESSIONS_INTERVAL_SEC = 5.0
_SESSIONS_TIMEOUT_SEC = 2.0
_SESSIONS_POLL_SEC = 0.02


@dataclass
class Takeover:
    """A dead process whose jobs are being taken over."""

    other: OtherWorker
    proof: Proof
    is_ours: bool = False  # no other process does it
    waits_for_lock: bool = False
    next_at: float = 0.0  # when to look again
    next_question_at: float = 0.0  # likewise, while the lock is held

    def lock(self) -> LockState:
        """Whether a process that the dead one started lives. The name is the operator's promise that none does, unless
        one is seen."""
        found = (
            LockState.UNKNOWN if self.other.lock_file is None else probe_lock(Path(self.other.lock_file), self.other.id)
        )
        if found is LockState.UNKNOWN and self.proof is Proof.NAME_TAKEN:
            return LockState.FREE
        return found


@dataclass(frozen=True)
class WatchOptions:
    worker_id: UUID
    pause_sec: float  # times the attempt, before a job that has lost its process before is tried again
    places: Places | None = None
    look_interval_sec: float = _LOOK_INTERVAL_SEC


class DeathWatch:
    """Its loop's thread does all but `learn`, which the heartbeat calls."""

    def __init__(
        self,
        deaths: Deaths,
        queue: JobQueue,
        options: WatchOptions,
        *,
        identity: Callable[[], Identity | None],
        name_claim: NameClaim | None,
        died: Callable[[str], None],
    ) -> None:
        self._deaths, self._queue, self._options = deaths, queue, options
        self._identity, self._name_claim = identity, name_claim
        self._servers = {} if options.places is None else servers_of(options.places)
        self._targets = {} if options.places is None else targets_of(options.places)
        self._lock = threading.Lock()
        self._known: dict[UUID, OtherWorker] = {}  # under the lock; written by the heartbeat
        self._takeovers: dict[UUID, Takeover] = {}
        self.loop = Loop("deaths", self.turn, died=died)

    def learn(self, beat: Beat) -> None:
        """Which processes there are now. Called by the heartbeat's thread."""
        with self._lock:
            self._known = {other.id: other for other in beat.others}
        if self._name_claim is not None:
            self._name_claim.learn(beat)

    def turn(self) -> float:
        with self._lock:
            known = dict(self._known)
        begun = self._takeovers.items()
        self._takeovers = {one: takeover for one, takeover in begun if one in known or takeover.is_ours}
        for other in known.values():
            if other.id not in self._takeovers:
                proof = self._prove(other)
                if proof is not None:
                    self._takeovers[other.id] = Takeover(other, proof)
        if self._name_claim is not None:
            for other in self._name_claim.turn(proved=self._takeovers):
                self._takeovers[other.id] = Takeover(other, Proof.NAME_TAKEN)
        now = clock()
        for takeover in list(self._takeovers.values()):
            if now >= takeover.next_at:
                takeover.next_at = now + _TAKEOVER_INTERVAL_SEC
                try:
                    self._take_over(takeover)
                except DatabaseUnavailable:
                    takeover.next_at = clock() + _TAKEOVER_RETRY_SEC
                    raise
        return self._options.look_interval_sec

    def _prove(self, other: OtherWorker) -> Proof | None:
        identity = identity_of(other)
        return None if identity is None else process_identity.prove_death(identity, self._identity())

    # ── a dead process ──────────────────────────────────────────────────────────────────────────────────────────

    def _take_over(self, takeover: Takeover) -> None:
        """End the sessions, give the jobs on, and look again until neither sessions nor jobs are left: a claim that the
        process had sent may be committed after the first look."""
        other = takeover.other
        if takeover.waits_for_lock and takeover.lock() is not LockState.FREE and clock() < takeover.next_question_at:
            return
        if not takeover.is_ours:
            if not self._deaths.begin_takeover(other.id, again_sec=_TAKEOVER_LEASE_SEC):
                return
            takeover.is_ours = True
            _log.warning("worker.found_dead", worker=other.name, worker_id=str(other.id), proof=takeover.proof.value)
        sessions_left = self._end_own_sessions(other.id)
        runs = self._deaths.runs_of(other.id)
        lock = takeover.lock() if any(run.may_have_child for run in runs) else LockState.FREE
        free = [run for run in runs if lock is LockState.FREE or not run.may_have_child]
        if free:
            self._give_on(other.id, free)
        takeover.waits_for_lock = len(free) < len(runs)
        if takeover.waits_for_lock:
            takeover.next_question_at = clock() + _HELD_LOCK_INTERVAL_SEC
        elif not sessions_left and not free:
            self._end_takeover(takeover)
        elif sessions_left and not free:
            takeover.next_at = clock() + _STUCK_SESSIONS_INTERVAL_SEC  # this account may not end them
        else:
            takeover.next_at = 0.0  # one more look, now that the sessions are gone

    def _end_takeover(self, takeover: Takeover) -> None:
        other = takeover.other
        self._deaths.end_takeover(other.id)
        if other.lock_file is not None and takeover.lock() is LockState.FREE:
            remove_lock(Path(other.lock_file), other.id)
        del self._takeovers[other.id]
        with self._lock:
            self._known.pop(other.id, None)

    def _end_own_sessions(self, worker_id: UUID) -> int:
        """Return how many sessions of the process are left."""
        deadline = clock() + _SESSIONS_TIMEOUT_SEC
        while (left := self._deaths.end_sessions(worker_id)) and clock() < deadline:
            time.sleep(_SESSIONS_POLL_SEC)  # the server has only sent them the signal
        return left

    def _give_on(self, worker_id: UUID, runs: Sequence[HeldRun]) -> None:
        names = {run.run_id: session_name(run.job_id, run.run_id) for run in runs}
        servers = self._servers_to_ask(list(names.values()))
        ended = end_sessions(servers, names.values()) if servers else SessionsEnded()
        reaped = self._queue.reap(
            [(run.job_id, run.run_id, run.lock_key) for run in runs],
            pause_sec=self._options.pause_sec,
            sessions_left={run_id: ended.left_of(name) for run_id, name in names.items()},
            worker_id=worker_id,
        )
        for job in reaped:
            log_reaped(job, reason="process_died", sessions_ended=ended.ended, sessions_left=ended.left_on)

    def _servers_to_ask(self, names: Sequence[str]) -> Mapping[str, str]:
        """As the reaper does: the queue's own server only if it has such sessions, for that costs no connection."""
        if len(self._servers) - len(self._targets) == 1 and not self._queue.open_sessions(names):
            return self._targets
        return self._servers


def identity_of(other: OtherWorker) -> Identity | None:
    if (
        other.boot_id is None
        or other.pid_namespace is None
        or other.time_namespace is None
        or other.pid is None
        or other.start_time is None
    ):
        return None
    return Identity(other.boot_id, other.pid_namespace, other.time_namespace, other.pid, other.start_time)
