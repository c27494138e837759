"""Runs one load through its faults: attempts one after another, and the zombies that the plan lets live."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg2

from dataloader.app.errors import DataloaderError
from dataloader.app.queue.attempt_sessions import attempt_application_name
from dataloader.app.queue.job import ClaimedJob, Released, ReleaseReason
from dataloader.pipelines.contract import Task
from dataloader.workers.isolation.fork_server import NO_FORK_SERVER, ForkServer
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually
from tests.target_proof.loads import HOME, OTHER, SHAPES
from tests.target_proof.messages import Exchange, Side, step_name
from tests.target_proof.plan import LEFT_SESSIONS, ZOMBIES, FaultKind, LoadPlan, PlannedFault
from tests.target_proof.site import Site
from tests.target_proof.wire import Line, WireProxy
from tests.target_proof.worker import Databases, Worker, task_of

_MAX_ATTEMPTS = 14  # of a load
_MAX_ATTEMPT_SEC = 30.0
_WAIT_SEC = 0.004  # after which a worker may be waiting for a lock
_ZOMBIE_SEC = 15.0  # after which one that was thawed must have ended


@dataclass
class Zombie:
    worker: Worker
    fault: PlannedFault


@dataclass
class LoadRecord:
    """What became of a load."""

    plan: LoadPlan
    job_id: UUID
    databases: Mapping[str, str]  # DSNs by target
    attempts: int = 0
    reached: list[tuple[FaultKind, str, Side]] = field(default_factory=list)  # with the step of the place
    refused_owners: list[UUID] = field(default_factory=list)  # runs that were refused although they owned the job
    problems: list[str] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)  # where zombies were thawed


@dataclass(frozen=True)
class ConductorOptions:
    tasks: Mapping[str, Task] | None = None  # by shape, in processes of their own; None: in threads
    packages: Sequence[str] = ()  # whose modules such a process imports
    fork_server: ForkServer = NO_FORK_SERVER
    restart: Mapping[str, Callable[[], None]] = field(default_factory=dict)  # kills a server, by role, and starts it


class Conductor:
    """One load at a time, in a queue of its own."""

    def __init__(self, site: Site, proxy: WireProxy, name: str, options: ConductorOptions | None = None) -> None:
        self.site, self._proxy, self._name, self.options = site, proxy, name, options or ConductorOptions()
        self._queue_db = QueueFixture(site.queue_dsn)
        self._tasks = self.options.tasks or {shape: task_of(shape) for shape in SHAPES}

    def close(self) -> None:
        self._queue_db.close()

    def count_exchanges(self, parts: int) -> Mapping[str, Sequence[Exchange]]:
        """The messages of a load of each shape that meets no fault."""
        self._exchanges_of(next(iter(SHAPES)), parts)  # the first connection of a process asks for more
        return {shape: self._exchanges_of(shape, parts) for shape in SHAPES}

    def _exchanges_of(self, shape: str, parts: int) -> list[Exchange]:
        plan = LoadPlan(-1, shape, parts)
        record = self._begin(plan)
        worker = self._start(record, self._claim())
        worker.start()
        assert worker.join(60), "it still runs"
        assert worker.is_settled, worker.error
        worker.line.kill()
        return worker.line.exchanges

    def run(self, plan: LoadPlan) -> LoadRecord:
        record = self._begin(plan)
        zombies: list[Zombie] = []
        faults = {fault.attempt: fault for fault in plan.faults}
        while record.attempts < _MAX_ATTEMPTS and (job := self._claim()) is not None:
            worker = self._start(record, job)
            fault = faults.get(record.attempts)
            record.attempts += 1
            _Watch(self, record, worker, fault, zombies).run()
            self._queue_db.sql(
                "UPDATE dl_jobs SET available_at = clock_timestamp() WHERE job_id = %s AND status = 'queued'",
                str(record.job_id),
            )
        self._end(record, zombies)
        return record

    def _begin(self, plan: LoadPlan) -> LoadRecord:
        dsns = self.site.target_dsns
        home, other = dsns[plan.number % len(dsns)], dsns[(plan.number + 1) % len(dsns)]
        self._queue = f"{self._name}:{plan.number}"
        job_id = self._queue_db.enqueue(
            self._queue,
            queue=self._queue,
            task=self._tasks[plan.shape].name,
            args={"parts": plan.parts},
            max_attempts=100,
            lease_ttl_sec=3600,
        )
        return LoadRecord(plan, job_id, {HOME: home, OTHER: other})

    def _claim(self) -> Any:
        self._queue_db.sql("SELECT dl_promote_due('')")
        jobs = self._queue_db.claim(queue=self._queue, tasks=[task.name for task in self._tasks.values()])
        return jobs[0] if jobs else None

    def _start(self, record: LoadRecord, job: ClaimedJob) -> Worker:
        fault = next((fault for fault in record.plan.faults if fault.attempt == record.attempts), None)
        line = self._proxy.line(
            refuses_stopper=fault is not None and not fault.ends_sessions,
            counts_children=self.options.tasks is not None,
        )
        databases = Databases(self.site.queue_dsn, record.databases)
        directly = None if record.plan.settles_over_wire else self._queue_db.queue
        return Worker(
            line, databases, job, self._tasks[record.plan.shape],
            settles_directly=directly, packages=self.options.packages, fork_server=self.options.fork_server,
        )  # fmt: skip

    def restart_server(self, role: str) -> None:
        self.options.restart[role]()
        if role == "queue":
            self._queue_db.close()
            self._queue_db = QueueFixture(self.site.queue_dsn)

    # ── what happens to jobs and zombies ────────────────────────────────────────────────────────────────────────

    def owns(self, worker: Worker) -> bool:
        owner = self._queue_db.sql(
            "SELECT 1 FROM dl_jobs WHERE job_id = %s AND run_id = %s AND status = 'running'",
            worker.job.id_text, worker.job.run_text,
        )  # fmt: skip
        return bool(owner)

    def lose(self, worker: Worker, fault: PlannedFault | None) -> None:
        """Take the job from a worker, as its end or its silence makes others do."""
        if fault is not None and fault.ends_sessions:
            self.end_sessions(worker)
        if worker.line.has_transaction("queue"):  # the job's row is locked; the server notices sooner or later
            worker.line.close_server_side("queue")
        eventually(lambda: self._take_from(worker, fault) or not self.owns(worker), 20, "the job is given on")

    def _take_from(self, worker: Worker, fault: PlannedFault | None) -> bool:
        if not self.owns(worker):
            return True
        if fault is not None and fault.is_released:
            with suppress(psycopg2.Error, DataloaderError):
                self._queue_db.queue.release([(worker.job, Released(ReleaseReason.SHUTDOWN))])
        else:
            self._queue_db.expire_lease(worker.job.id)
            self._queue_db.reap(worker.job.id)
        return False

    def end_sessions(self, worker: Worker) -> None:
        name = attempt_application_name(worker.job.id, worker.job.run_id)
        text = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
        for dsn in (self.site.queue_dsn, self.site.target_dsns[0]):
            self.site.query(dsn, text, name)

    def thaw(self, record: LoadRecord, zombie: Zombie, order: str) -> None:
        """Let it go on, until it has ended or waits for another session."""
        record.orders.append(order)
        refused = ("queue",) if zombie.fault.kind is FaultKind.WITHOUT_QUEUE else ()
        zombie.worker.line.thaw(refused=refused)
        deadline = time.monotonic() + _ZOMBIE_SEC
        while not zombie.worker.join(_WAIT_SEC) and time.monotonic() < deadline and not self.is_waiting(zombie.worker):
            pass

    def is_settlement_waiting(self) -> bool:
        """Whether a session waits for a lock in the queue, where it may be past the line of its worker."""
        return bool(self.site.lock_waiters(self.site.queue_dsn))

    def is_waiting(self, worker: Worker) -> bool:
        """Whether a session of it waits for a lock."""
        dsns = {"queue": self.site.queue_dsn, "target": self.site.target_dsns[0]}
        return any(
            pids & self.site.lock_waiters(dsns[role]) for role, pids in worker.line.backend_pids().items() if pids
        )

    def _end(self, record: LoadRecord, zombies: Sequence[Zombie]) -> None:
        for zombie in zombies:
            if zombie.fault.deletes_row:
                for dsn in record.databases.values():
                    self.site.query(dsn, "DELETE FROM dl_effects WHERE job_id = %s", str(record.job_id))
                self.thaw(record, zombie, "after the job's end and the deletion of its row")
            elif zombie.worker.line.is_frozen and zombie.fault.kind not in LEFT_SESSIONS:
                self.thaw(record, zombie, "after the job's end")
            if zombie.fault.kind not in LEFT_SESSIONS and not zombie.worker.join(_ZOMBIE_SEC):
                record.problems.append(f"zombie {zombie.worker.job.run_id} hangs")
            zombie.worker.line.kill()


class _Watch:
    """One attempt, from its start until it has ended or is given up."""

    def __init__(
        self,
        conductor: Conductor,
        record: LoadRecord,
        worker: Worker,
        fault: PlannedFault | None,
        zombies: list[Zombie],
    ) -> None:
        self._conductor, self._record, self._worker, self._zombies = conductor, record, worker, zombies
        self._fault = fault  # that has not been met yet
        self._line: Line = worker.line
        self._half_cut: PlannedFault | None = None
        self._target_commits = 0
        self._stopped_for_fault = False  # written by the proxy's thread before the line is frozen
        self._started_at = time.monotonic()

    def run(self) -> None:
        self._line.stop_at(self._stops)
        self._worker.start()
        while not self._worker.has_ended:
            may_wait = bool(self._zombies or self._half_cut)
            if self._line.changed.wait(_WAIT_SEC if may_wait else 1.0):
                self._line.changed.clear()
                if self._line.is_frozen and self._met_stop():
                    return
            elif may_wait and self._is_waiting():
                self._on_wait()
            if time.monotonic() - self._started_at > _MAX_ATTEMPT_SEC:
                self._record.problems.append(f"attempt {self._worker.job.attempt} hangs")
                self._line.kill()
                break
        self._worker.join(_ZOMBIE_SEC)
        self._conclude()

    def _is_waiting(self) -> bool:
        if self._half_cut is not None and self._conductor.is_settlement_waiting():
            return True
        return self._conductor.is_waiting(self._worker)

    def _stops(self, exchange: Exchange, side: Side) -> bool:
        """Called by the proxy's thread."""
        if self._fault is not None and self._fault.place.is_at(exchange, side):
            self._stopped_for_fault = True
            return True
        frozen = [zombie for zombie in self._zombies if zombie.worker.line.is_frozen]
        if any(zombie.fault.thaws_at and zombie.fault.thaws_at.is_at(exchange, side) for zombie in frozen):
            return True
        if exchange.text == "COMMIT" and exchange.role == "target" and side is Side.RESPONSE_SENT:
            self._target_commits += 1
            return self._target_commits == 2 and any(z.fault.kind is FaultKind.THAWED_EARLY for z in frozen)
        return False

    def _met_stop(self) -> bool:
        """Return whether the attempt is given up."""
        wire = self._line.stopped_in
        if not self._stopped_for_fault:
            self._thaw_zombies(lambda fault: fault.thaws_at is not None, "at a message of its successor")
            self._thaw_zombies(lambda fault: fault.kind is FaultKind.THAWED_EARLY, "after its successor's first commit")
            self._line.stop_at(self._stops)
            self._line.thaw()
            return False
        fault, self._fault, self._stopped_for_fault = self._fault, None, False
        assert fault is not None and wire is not None  # noqa: PT018 - it stopped for it
        assert self._line.stopped_at is not None
        self._record.reached.append((fault.kind, step_name(self._line.stopped_at), fault.place.side))
        match fault.kind:
            case FaultKind.KILLED:
                self._line.kill()
                self._worker.join(_ZOMBIE_SEC)
                self._conductor.lose(self._worker, fault)
                return True
            case FaultKind.CUT | FaultKind.HALF_CUT:
                self._line.cut(wire, is_half=fault.kind is FaultKind.HALF_CUT)
                self._half_cut = fault if fault.kind is FaultKind.HALF_CUT else None
            case FaultKind.CHILD_KILLED if wire.peer_pid != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(wire.peer_pid, signal.SIGKILL)
            case FaultKind.SERVER_KILLED:
                self._conductor.restart_server(wire.role)
            case FaultKind.TERMINATED:
                dsns = (self._conductor.site.queue_dsn, self._conductor.site.target_dsns[0])
                self._conductor.site.query(
                    dsns[wire.role == "target"], "SELECT pg_terminate_backend(%s)", wire.backend_pid
                )
        if fault.kind in ZOMBIES:
            self._zombies.append(Zombie(self._worker, fault))
            self._conductor.lose(self._worker, fault)
            return True
        self._line.stop_at(self._stops)
        self._line.thaw()
        return False

    def _on_wait(self) -> None:
        """A session of the attempt waits for a lock, which a zombie has."""
        for zombie in self._zombies:
            if zombie.fault.outlasts_wait:
                continue
            line, kind = zombie.worker.line, zombie.fault.kind
            if kind in (FaultKind.THAWED_EARLY, FaultKind.WITHOUT_QUEUE) and line.is_frozen:
                self._conductor.thaw(self._record, zombie, "while its successor waits")
            elif (kind in LEFT_SESSIONS or line.is_frozen) and line.close_server_side(
                in_transaction=kind not in LEFT_SESSIONS
            ):
                self._record.orders.append("its sessions ended while its successor waits")
        if self._half_cut is not None:  # its settlement waits for its own lock of the job's row
            self._line.close_server_side("queue", is_half=True)

    def _thaw_zombies(self, is_meant: Callable[[PlannedFault], bool], order: str) -> None:
        for zombie in self._zombies:
            if zombie.worker.line.is_frozen and is_meant(zombie.fault):
                self._conductor.thaw(self._record, zombie, order)

    def _conclude(self) -> None:
        worker = self._worker
        if worker.has_lost_its_job or not worker.is_settled:
            if worker.has_lost_its_job and self._conductor.owns(worker):
                self._record.refused_owners.append(worker.job.run_id)
            self._conductor.lose(worker, None)
        for zombie in self._zombies:  # what its successor did not meet
            line = zombie.worker.line
            if zombie.fault.kind in (FaultKind.THAWED_EARLY, FaultKind.WITHOUT_QUEUE) and line.is_frozen:
                self._conductor.thaw(self._record, zombie, "after its successor's end")
            elif zombie.fault.kind in LEFT_SESSIONS:
                line.close_server_side()
            elif line.is_frozen and not worker.has_succeeded:
                line.close_server_side(in_transaction=True)
        if self._half_cut is None:
            self._line.kill()
        else:
            self._zombies.append(Zombie(worker, self._half_cut))
