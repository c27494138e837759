"""The row of a worker process in dl_workers: what it registers, and what each heartbeat reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

from dataloader.app import log
from dataloader.app.db.connection import Session
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.workers import HeartbeatResult, HostFacts, WorkerInfo, WorkerLiveness
from dataloader.pipelines.contract import StopReason
from dataloader.pipelines.portable import clock
from dataloader.workers.pace import Pace
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.takeover import process_identity
from dataloader.workers.takeover.process_identity import Identity, ProcessLock

_log = log.get(__name__)
_STOP_POLL_SEC = 0.05
WATCHED = 3  # processes of a host that each one watches
_WATCH_HEARTBEATS = 3  # heartbeats between two reads of these, while none starts and none is found dead


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
        self._pace, self._next_ask_at = Pace(), 0.0  # of heartbeats that ask for ready jobs
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
        began = clock()
        asks = began >= self._next_ask_at
        heartbeat = WorkerLiveness(self._session).send_heartbeat(
            self._info,
            self._facts,
            heartbeat_sec=self._heartbeat_sec,
            watched=None if self.watches_all else WATCHED,
            idle_queues=idle_queues if asks else (),
            finds_others=finds_others,
        )
        if asks:
            self._pace.record(clock() - began)
            self._next_ask_at = clock() + self._pace.interval_sec
        self._heartbeats_left = _WATCH_HEARTBEATS - 1 if finds_others else self._heartbeats_left - 1
        if heartbeat.has_others:
            self._watched = {other.id for other in heartbeat.others if other.boot_id == self._facts.boot_id}
        self.registered.set()
        return heartbeat if asks else replace(heartbeat, has_ready_jobs=True)  # not known

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
