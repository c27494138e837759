"""Reaps runs whose lease has expired; any number of reapers may run. Its thread also releases prefetched attempts that
no thread took, and takes key locks again after a lost connection."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from dataloader.app import log
from dataloader.app.queue.attempt_sessions import (
    ConnectionSettings,
    SessionsEnded,
    all_unreached,
    attempt_application_name,
    end_sessions,
    foreign_server_dsns,
    server_dsns,
    start_thread,
)
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import HeartbeatResult
from dataloader.pipelines.portable import clock
from dataloader.workers.key_locks import KeyLocks
from dataloader.workers.pace import Pace
from dataloader.workers.reports.attempt_log import log_reaped
from dataloader.workers.threads import BackgroundThread

_log = log.get(__name__)
_STEP_INTERVAL_SEC = 0.5
_IDLE_INTERVAL_SEC = 1.0  # while this process holds no job
_QUIET_PERIODS = 3  # between two checks, if no heartbeat says whether a lease has expired

RunKey = tuple[UUID, UUID | None]  # job, run
DeadRun = tuple[UUID, UUID | None, str]  # job, run, lock_key


def servers_to_search(queue: JobQueue, settings: ConnectionSettings | None, names: Sequence[str]) -> Mapping[str, str]:
    """Return the servers that may have sessions of these names: the queue's own only if a query finds some there.

    With several hosts each may have been the primary a moment ago, so all are searched.
    """
    if settings is None or not names:
        return {}
    servers, targets = server_dsns(settings), foreign_server_dsns(settings)
    return targets if len(servers) - len(targets) == 1 and not queue.open_sessions(names) else servers


def reap_runs(
    queue: JobQueue, runs: Sequence[DeadRun], sessions: SessionsEnded, *, reason: str, **options: Any
) -> None:
    """Reap runs whose sessions were ended, and log each; the options are those of `JobQueue.reap`."""
    left = {
        run_id: sessions.targets_with_session(attempt_application_name(job_id, run_id))
        for job_id, run_id, _ in runs
        if run_id is not None
    }
    for reaped in queue.reap(runs, sessions_left=left, **options):
        log_reaped(reaped, reason=reason, sessions_ended=sessions.ended, sessions_left=sessions.unresolved_targets)


class Reaper:
    def __init__(
        self,
        queue: JobQueue,
        key_locks: KeyLocks,
        *,
        interval_sec: float,
        heartbeat_sec: float,
        pause_sec: float,
        release_stale: Callable[[], None],
        on_crash: Callable[[str], None],
        connection_settings: ConnectionSettings | None = None,
        takes_from_others: bool = True,
    ) -> None:
        """Without `takes_from_others` only prefetched attempts and key locks of this process are served."""
        self._pace = Pace()
        self._takes_from_others = takes_from_others
        self._queue, self._key_locks, self._release_stale = queue, key_locks, release_stale
        self._interval_sec, self._heartbeat_sec, self._pause_sec = interval_sec, heartbeat_sec, pause_sec
        # Heartbeats that come at least as often as checks replace most of them.
        self._quiet_interval_sec = interval_sec if interval_sec < heartbeat_sec else _QUIET_PERIODS * interval_sec
        # Runs with an expired lease, when it was first found expired, and its end.
        self._expired_leases: dict[RunKey, tuple[DeadRun, float, str]] = {}
        self._server = ""  # that answered the last check; see ExpiredRuns
        self._next_check_at = self._full_check_at = 0.0
        self._connection_settings = connection_settings
        # Runs whose sessions are being ended, and the ends of their leases; the reaper's alone.
        self._runs_in_progress: dict[RunKey, str] = {}
        # Runs whose sessions were ended, and the server that had found their leases expired. Any thread adds to it.
        self._finished_runs: deque[tuple[Sequence[DeadRun], SessionsEnded, str]] = deque()
        self.last_check_at = clock()  # read by any thread
        self.thread = BackgroundThread("reaper", self.run_once, on_crash=on_crash)

    def on_heartbeat(self, heartbeat: HeartbeatResult) -> None:
        """If a process is silent, check an interval after the last check; otherwise the heartbeat counts as a check for
        some periods: a run may expire though all processes live, if its own gave it up or another program claimed it.
        Called by the heartbeat's thread."""
        if heartbeat.has_silent_workers:
            self._next_check_at = min(self._next_check_at, self.last_check_at + self._interval_sec)
        elif not self._expired_leases and self._server and clock() < self._full_check_at:
            self.last_check_at = clock()
            self._next_check_at = self.last_check_at + self._quiet_interval_sec

    def run_once(self) -> float:
        self._release_stale()
        self._key_locks.relock_all()
        step_sec = min(_STEP_INTERVAL_SEC if self._key_locks.are_held else _IDLE_INTERVAL_SEC, self._interval_sec)
        if not self._takes_from_others:
            return step_sec
        while self._finished_runs:
            self._reap(*self._finished_runs.popleft())
        now = clock()
        if now >= self._next_check_at:
            self._check_leases(now)
            soon_sec = min(self._interval_sec, self._heartbeat_sec)
            quiet_sec = max(self._quiet_interval_sec, self._pace.interval_sec)
            self._next_check_at = now + (soon_sec if self._expired_leases else quiet_sec)
            self._full_check_at = now + max(_QUIET_PERIODS * self._interval_sec, quiet_sec)
            self.last_check_at = now
        return step_sec

    def _check_leases(self, now: float) -> None:
        """Reap a run only if its lease was found expired twice, a heartbeat apart, over one connection to a server that
        has been up as long: after an outage the owners must have had the time to renew. A lease with another end than
        at the last check has been renewed since."""
        began = clock()
        expired = self._queue.expired_runs()
        self._pace.record(clock() - began)
        if expired.server != self._server:
            # A promoted standby may have been up for long: leases found expired before the outage start over.
            self._server = expired.server
            self._expired_leases.clear()
        if expired.server_uptime_sec < self._heartbeat_sec:
            self._expired_leases.clear()
            return
        seen_at = clock()  # after the answer, which may have taken as long as a heartbeat
        known, self._expired_leases = self._expired_leases, {}
        for run in expired.runs:
            new = (run, seen_at, expired.lease_ends.get(run[:2], ""))
            before = known.get(run[:2], new)
            self._expired_leases[run[:2]] = before if before[2] == new[2] else new
        dead = [
            run for run, first_seen_at, _ in self._expired_leases.values() if now - first_seen_at >= self._heartbeat_sec
        ]
        if dead:
            self.reap_dead(dead)

    def reap_dead(self, runs: Sequence[DeadRun]) -> None:
        """End the sessions of dead runs, then reap the runs: at once if there is no session to find, else in the step
        after a thread has ended them, so that a server that does not answer delays nothing else."""
        new = [run for run in runs if run[:2] not in self._runs_in_progress]
        if not new:
            return
        names = [attempt_application_name(job_id, run_id) for job_id, run_id, _ in new if run_id is not None]
        servers = servers_to_search(self._queue, self._connection_settings, names)
        self._runs_in_progress |= {run[:2]: self._expired_leases[run[:2]][2] for run in new}
        if not servers:
            self._reap(new, SessionsEnded(), self._server)
            return
        arguments = (new, servers, names, self._server)
        thread = threading.Thread(target=self._end_sessions, args=arguments, name="end-sessions", daemon=True)
        if not start_thread(thread):
            self._reap(new, all_unreached(servers), self._server)

    def _end_sessions(self, runs: list[DeadRun], servers: Mapping[str, str], names: list[str], server: str) -> None:
        report = all_unreached(servers)
        try:
            report = end_sessions(servers, names)
        finally:  # the runs must be reaped whatever happens here
            self._finished_runs.append((runs, report, server))
            self.thread.wake()

    def _reap(self, runs: Sequence[DeadRun], sessions: SessionsEnded, server: str) -> None:
        """Reap runs, unless a failover came while their sessions were being ended: then the checks start over."""
        # Those not reaped below are found again.
        lease_ends = {run[:2]: self._runs_in_progress.pop(run[:2]) for run in runs}
        for job_id, run_id, _ in runs:
            self._expired_leases.pop((job_id, run_id), None)
        options = {"pause_sec": self._pause_sec, "server": server, "lease_ends": lease_ends}
        reap_runs(self._queue, runs, sessions, reason="lease_expired", **options)
