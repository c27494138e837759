"""Settles for the dead, and repairs what waits: any number of reapers may run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from app import log
from app.queue.attempt_sessions import (
    Places,
    SessionsEnded,
    end_sessions,
    none_reached,
    servers_of,
    session_name,
    start_thread,
    targets_of,
)
from app.queue.jobqueue import JobQueue
from workers.attempt_log import log_reaped
from workers.roster import Hands
from workers.threads import Loop, clock

_log = log.get(__name__)
_TICK = 0.5
_SWEEP_EVERY = 1.0
_SEEN_TO_LATELY = 30.0  # seconds for which a key that was swept is left to be claimed
_SWEPT_AT_ONCE = 500


DeadRun = tuple[UUID, UUID | None, str]  # job, run, lock_key


@dataclass(frozen=True)
class Suspect:
    run: DeadRun
    since: float  # when its lease was first seen to have run out


@dataclass(frozen=True)
class Ended:
    """Dead runs whose sessions were ended, and the server that had found their leases expired."""

    runs: Sequence[DeadRun]
    sessions: SessionsEnded
    server: str


class Reaper:
    def __init__(
        self,
        queue: JobQueue,
        hands: Hands,
        *,
        every: float,
        heartbeat_sec: float,
        pause_sec: float,
        clear_stale: Callable[[], None],
        died: Callable[[str], None],
        places: Places | None = None,
    ) -> None:
        self._queue, self._hands, self._clear_stale = queue, hands, clear_stale
        self._every, self._heartbeat, self._pause = every, heartbeat_sec, pause_sec
        self._suspects: dict[tuple[UUID, UUID | None], Suspect] = {}
        self._server = ""  # that answered the last look; see Expired
        self._next_look = 0.0
        self._next_sweep = 0.0
        self._swept_to = ""
        self._lately: dict[str, float] = {}  # key → when it was swept
        self._servers = {} if places is None else servers_of(places)
        self._targets = {} if places is None else targets_of(places)
        self._ending: set[tuple[UUID, UUID | None]] = set()  # runs whose sessions are being ended; the reaper's alone
        self._ended: deque[Ended] = deque()  # added to by the threads that end sessions
        self.looked_at = clock()  # read by anyone
        self.loop = Loop("reaper", self.turn, died=died)

    def turn(self) -> float:
        self._clear_stale()
        self._hands.restore()
        while self._ended:
            self._reap(self._ended.popleft())
        now = clock()
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_EVERY
            self._sweep(now)
        if now >= self._next_look:
            self._look(now)
            self._next_look = now + (min(self._every, self._heartbeat) if self._suspects else self._every)
            self.looked_at = now
        return min(_TICK, self._every)

    def _look(self, now: float) -> None:
        """Take a run only if its lease was found expired twice, a heartbeat apart, over one connection to a server that
        has been up as long: after an outage the owners must have had the time to renew."""
        expired = self._queue.expired()
        if expired.server != self._server:
            # A promoted standby has been up for long; what was suspected before the outage is suspected no more.
            self._server = expired.server
            self._suspects.clear()
        if expired.up_sec < self._heartbeat:
            self._suspects.clear()
            return
        seen = clock()  # not before the question was answered: its answer may have taken as long as a heartbeat
        found = {(job_id, run_id): (job_id, run_id, key) for job_id, run_id, key in expired.runs}
        self._suspects = {which: self._suspects.get(which) or Suspect(run, seen) for which, run in found.items()}
        dead = [suspect.run for suspect in self._suspects.values() if now - suspect.since >= self._heartbeat]
        if dead:
            self.take(dead)

    def take(self, runs: Sequence[DeadRun]) -> None:
        """End the sessions of dead runs, then give their jobs on: at once where there is no session to look for, else
        at the turn after a thread has ended them, so that a server that does not answer holds up nothing else."""
        new = [run for run in runs if run[:2] not in self._ending]
        if not new:
            return
        names = [session_name(job_id, run_id) for job_id, run_id, _ in new if run_id is not None]
        servers = self._servers_to_ask(names)
        if not servers:
            self._reap(Ended(new, SessionsEnded(), self._server))
            return
        given = (new, servers, names, self._server)
        if start_thread(threading.Thread(target=self._end, args=given, name="end-sessions", daemon=True)):
            self._ending |= {run[:2] for run in new}
        else:
            self._reap(Ended(new, none_reached(servers), self._server))

    def _servers_to_ask(self, names: Sequence[str]) -> Mapping[str, str]:
        """The targets, for only they know their sessions; the queue's own server only if it has some, which costs no
        connection to find out. Of several hosts each may have been the primary a moment ago: all are asked."""
        if not names or not self._servers:
            return {}
        if len(self._servers) - len(self._targets) == 1 and not self._queue.open_sessions(names):
            return self._targets
        return self._servers

    def _end(self, runs: list[DeadRun], servers: Mapping[str, str], names: list[str], server: str) -> None:
        report = none_reached(servers)
        try:
            report = end_sessions(servers, names)
        finally:  # whatever happens here, the jobs must go on
            self._ended.append(Ended(runs, report, server))
            self.loop.ring()

    def _reap(self, ended: Ended) -> None:
        """A failover may have come while the sessions were being ended: then nothing is reaped, and all are suspected
        again from the start."""
        runs, sessions = ended.runs, ended.sessions
        self._ending -= {run[:2] for run in runs}  # those that are not reaped below are found again
        for job_id, run_id, _ in runs:
            self._suspects.pop((job_id, run_id), None)
        left = {
            run_id: sessions.left_of(session_name(job_id, run_id)) for job_id, run_id, _ in runs if run_id is not None
        }
        for reaped in self._queue.reap(runs, pause_sec=self._pause, sessions_left=left, server=ended.server):
            log_reaped(reaped, sessions_ended=sessions.ended, sessions_left=sessions.left_on)

    def _sweep(self, now: float) -> None:
        self._lately = {key: at for key, at in self._lately.items() if now - at < _SEEN_TO_LATELY}
        swept = self._queue.sweep(after=self._swept_to, lately=self._lately, most=_SWEPT_AT_ONCE)
        self._swept_to = swept.seen_to
        self._lately.update((key, now) for key in swept.promoted)
        if swept.promoted:
            _log.info("sweep.promoted", keys=len(swept.promoted))
