"""Registers a worker process, and holds what other processes need to prove its death."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from app import log
from app.db.connection import Session
from app.errors import DatabaseUnavailable
from app.queue.workers import BeatResult, HostFacts, WorkerInfo, WorkerLiveness
from pipelines.contract import StopReason
from workers import process_identity
from workers.process_identity import Identity
from workers.process_lock import ProcessLock
from workers.running import RunningAttempts
from workers.threads import clock

_log = log.get(__name__)
_POLL_SEC = 0.05


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
