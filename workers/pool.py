"""WorkerPool: composes, starts and stops the worker threads and background threads of a process."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from dataloader.app import log
from dataloader.app.acts.feature import Feature, has_task_call
from dataloader.app.db.connection import Session
from dataloader.app.features.registry import FEATURES
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.queues import QueueControl
from dataloader.app.queue.workers import NotifyStateTable, WorkerInfo, WorkerLiveness
from dataloader.pipelines.contract import Pipelines, StopReason
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import may_have_child
from dataloader.workers.claim_timers import default_poll
from dataloader.workers.claimer import Claimer
from dataloader.workers.declarations import describe_worker
from dataloader.workers.dispatcher import Dispatcher
from dataloader.workers.duties import Declaration, DutyContext, ThreadContext, create_threads, declare_all
from dataloader.workers.front_scans import FrontScans
from dataloader.workers.heartbeat import Heartbeat
from dataloader.workers.isolation.run import run_isolated
from dataloader.workers.key_locks import KeyLocks
from dataloader.workers.listener import Listener, ListenerLike, ListenMode, NoListener
from dataloader.workers.logs.capture import LogSink
from dataloader.workers.logs.writer import JobLogWriter
from dataloader.workers.maintenance import Maintenance, duties, follower_duties
from dataloader.workers.memory import MemoryMonitor
from dataloader.workers.metrics import PoolCounters, PoolState
from dataloader.workers.notify_state import NotifyState, UnwantedNotifications
from dataloader.workers.offloads.service import OffloadService
from dataloader.workers.pool_options import PoolOptions
from dataloader.workers.reaper import Reaper
from dataloader.workers.registration import Registration
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.sessions import PoolSessions
from dataloader.workers.settler import Settler
from dataloader.workers.stopper import StopEscalator
from dataloader.workers.takeover.death_watch import DeathWatch
from dataloader.workers.takeover.name_claim import NameClaim
from dataloader.workers.worker import Worker, WorkerStopper
from dataloader.workers.worker_control import WorkerControl

_log = log.get(__name__)
_MAX_THREADS = 500  # of one queue, whatever its limit
EXIT_THREAD_CRASHED = 70


def exit_on_crash(thread: str) -> None:
    """End a process whose background thread has crashed: its jobs would be neither renewed nor settled."""
    os._exit(EXIT_THREAD_CRASHED)


class WorkerPool:
    """The threads of a worker process. They share four connections, and the maintenance leader has a fifth."""

    def __init__(
        self,
        pipelines: Pipelines,
        options: PoolOptions,
        *,
        on_crash: Callable[[str], None] = exit_on_crash,
        echo: LogSink | None = None,  # receives captured output at once
        features: Sequence[Feature] = FEATURES,
    ) -> None:
        self.id, self.name, self._features = uuid4(), f"{socket.gethostname()}:{os.getpid()}", features
        self._pipelines, self._options, self._crash_callback = pipelines, options, on_crash
        self._crashed_threads: list[str] = []
        self._connection_settings = options.connection_settings()
        self._sessions = PoolSessions(options, self.id)
        self._build(echo)
        self._has_started = self._all_threads_started = False  # a thread that is not alive after the latter has crashed
        self._stopped = threading.Event()
        self._stop_lock = threading.Lock()
        self._crash_lock = threading.Lock()  # of two threads that crash at once, the first ends the process
        self._stopped_cleanly = True  # under the stop lock

    def _build(self, echo: LogSink | None) -> None:
        options, sessions = self._options, self._sessions
        limits = replace(options.limits, min_lease_sec=math.ceil(2 * options.heartbeat_sec))
        make_queue = partial(JobQueue, limits=limits, code_release=options.code_release)
        queue = {role: make_queue(db) for role, db in sessions.executors.items()}
        info = describe_worker(self.id, self.name, self._pipelines, options)
        self._registration = Registration(
            sessions["renew"], info, heartbeat_sec=options.heartbeat_sec, worker_name=options.worker_name
        )
        self._logs = JobLogWriter(
            queue["renew"],
            options.log_limits,
            is_connected=lambda: sessions["renew"].connected,
            on_crash=self._on_crash,
            echo=echo,
        )
        self._offloads = OffloadService(
            options.engines,
            execute=self._sessions.settle.execute if has_task_call(self._features, "offload") else None,
            logs=self._logs,
            secret_store=options.attempts.secret_store,
            record_pending=partial(JobQueue.record_stop_pending, queue["renew"]),
            on_crash=self._on_crash,
        )
        self._running_attempts, self.counters = RunningAttempts(), PoolCounters()
        self._key_locks = KeyLocks(sessions["claim"], queue["claim"])
        self._settler = Settler(
            queue["settle"], self._running_attempts, self._key_locks, on_crash=self._on_crash, counters=self.counters
        )
        self._build_dispatcher(queue["claim"], info)
        self._build_lease_threads(queue, info)
        self._build_database_threads()
        self._workers = [
            self._make_worker(name, n) for name, threads in options.queues.items() for n in range(1, threads + 1)
        ]
        owners = (self._settler, self._heartbeat, self._reaper, self._stopper, self._worker_control, self._maintenance)
        self._background_threads = [*(owner.thread for owner in owners), *self._offloads.threads]
        self._background_threads += [owner.thread for owner in self._feature_threads]
        self._worker_stopper = WorkerStopper(
            self._workers, self._running_attempts, self._settler, self._key_locks, stop_wait_sec=options.stop_wait_sec
        )

    def _build_dispatcher(self, queue: JobQueue, info: WorkerInfo) -> None:
        options, sessions = self._options, self._sessions
        attempt_settings = replace(
            options.attempts,
            connection_settings=self._connection_settings,
            max_result_bytes=options.limits.max_result_bytes,
            declared_job_fields=self._pipelines.declared_job_fields(),
            process_lock=self._registration.process_lock,
            run_isolated=run_isolated,
            log=self._logs.write,
            keep_log_positions=self._logs.keep_positions,
            offloads=self._offloads,
            features=self._features,
        )
        self._listener = self._make_listener(sessions["listen"])
        store = NotifyStateTable(sessions["claim"], self.id)
        default = default_poll(options.claim_backoff_sec, is_spread=options.listen is ListenMode.OFF)
        key_locks, running, release = self._key_locks, self._running_attempts, self._settler.submit
        claimer = Claimer(info, attempt_settings, queue=queue, key_locks=key_locks, running=running, release=release)
        self._dispatcher = Dispatcher(
            dict(options.queues),
            claimer=claimer,
            listener=self._listener,
            notify_state=UnwantedNotifications(store) if options.listen is ListenMode.OFF else NotifyState(store),
            poll_policies=dict.fromkeys(options.queues, default) | dict(options.polls),
            on_control=self._on_control,
        )
        self._dispatcher.jobs_left, self._settler.on_ready = options.max_jobs, self._dispatcher.offer
        self._memory = MemoryMonitor(options.memory_high_percent, on_change=self._dispatcher.set_memory_high)

    def _make_listener(self, session: Session) -> ListenerLike:
        """Make what the dispatcher waits with, by DL_LISTEN."""
        if self._options.listen is ListenMode.OFF:
            return NoListener()
        return Listener(
            session,
            heartbeat_sec=self._options.heartbeat_sec,
            on_state_change=lambda: self._worker_control.sync_now(),  # noqa: PLW0108 - it is made later
        )

    def _build_lease_threads(self, queue: Mapping[str, JobQueue], info: WorkerInfo) -> None:
        """Make what renews leases, stops attempts and takes jobs from dead processes."""
        options, connections = self._options, self._connection_settings
        declaration = Declaration(queue["renew"].executor, self._pipelines, self.id, options.maintenance)
        pause_sec = min(5.0, options.heartbeat_sec / 2)
        self._heartbeat = Heartbeat(
            queue["renew"],
            self._running_attempts,
            interval_sec=options.heartbeat_sec,
            info=info,
            register=self._send_heartbeat,
            declare=partial(declare_all, self._features, declaration),
            scan_fronts=FrontScans(queue["renew"], info.tasks, self._dispatcher).run_once,
            listen=self._dispatcher.listen_while_busy,
            on_crash=self._on_crash,
            counters=self.counters,
        )
        self._stopper = StopEscalator(
            self._running_attempts, record_pending=queue["renew"].record_stop_pending, on_crash=self._on_crash
        )
        self._reaper = Reaper(
            queue["settle"],
            self._key_locks,
            interval_sec=options.reaper_period_sec,
            heartbeat_sec=options.heartbeat_sec,
            pause_sec=pause_sec,
            release_stale=self._dispatcher.release_stale,
            on_crash=self._on_crash,
            connection_settings=connections,
            takes_from_others=options.reaps,
        )
        deaths, name_claim = WorkerLiveness(queue["settle"].executor), None
        if options.worker_name is not None:
            name_claim = NameClaim(deaths, self.id, options.worker_name, on_superseded=self._on_superseded)
        self._death_watch = DeathWatch(
            deaths,
            queue["settle"],
            pause_sec=pause_sec,
            connection_settings=connections,
            registration=self._registration,
            name_claim=name_claim,
            request_heartbeat=self._heartbeat.send_now,
            takes_from_others=options.reaps,
        )

    def _send_heartbeat(self) -> None:
        heartbeat = self._dispatcher.poll_by_heartbeat(self._registration.send_heartbeat)
        owners: Any = (self._death_watch, self._reaper, self._maintenance, self._worker_control, *self._feature_threads)
        for owner in owners:
            owner.on_heartbeat(heartbeat)

    def _build_database_threads(self) -> None:
        """Make the threads that serve operators, those of features, and the maintenance duties."""
        options, session = self._options, self._sessions.settle
        thread_context = ThreadContext(
            executor=session,
            options=options.maintenance.features,
            on_crash=self._on_crash,
            counters=self.counters,
            is_notified=lambda: self._listener.state.is_receiving,
            attempts=self._running_attempts,
        )
        self._feature_threads = create_threads(self._features, thread_context)
        self._worker_control = WorkerControl(
            QueueControl(session),
            self._dispatcher,
            self._running_attempts,
            worker_id=self.id,
            interval_sec=options.heartbeat_sec,
            listen_state=lambda: self._listener.state,
            add_threads=self._add_threads,
            watch_deaths=self._death_watch.run_once,
            memory=self._memory,
            on_crash=self._on_crash,
        )
        maintenance_session = self._sessions.make("maintenance")
        context = DutyContext(
            executor=maintenance_session,
            options=options.maintenance,
            tasks=self._pipelines,
            counters=self.counters,
            engines=options.engines,
        )
        self._maintenance = Maintenance(
            maintenance_session,
            session,
            duties(context, self._features),
            on_crash=self._on_crash,
            follower_duties=follower_duties(replace(context, executor=session), self._features),
        )

    def _on_superseded(self) -> None:
        if self._registration.is_superseded:
            return
        self._registration.is_superseded = True
        self.stop_claiming()
        self._registration.supersede(
            self._running_attempts,
            timeout_sec=2 * self._options.attempts.stop_step_sec,
            is_stopped=self._stopped,
            exit_process=lambda: self._on_crash("worker-name"),
        )

    def _make_worker(self, queue_name: str, number: int) -> Worker:
        return Worker(
            f"worker-{queue_name}-{number}",
            queue_name,
            dispatcher=self._dispatcher,
            settler=self._settler,
            pipelines=self._pipelines,
            logs=self._logs,
            process_name=self.name,
            tracer=self._options.tracer,
            on_crash=self._on_crash,
            registered=self._registration.registered,
        )

    def _add_threads(self, queue_name: str, threads: int) -> None:
        """Add threads to a queue whose limit was raised above them. They stay; a lower limit keeps them idle."""
        buffer = self._dispatcher.queues[queue_name]
        if buffer.threads >= threads or not self._stop_lock.acquire(blocking=False):
            return  # the pool starts or stops at this moment
        try:
            while buffer.threads < min(threads, _MAX_THREADS) and not self._stopped.is_set():
                buffer.threads += 1
                worker = self._make_worker(queue_name, buffer.threads)
                self._workers.append(worker)
                worker.start()
        finally:
            self._stop_lock.release()

    # ── start and stop ──────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the background threads, then the worker threads. The database need not be available yet."""
        self._has_started = True
        tasks = ((name, self._pipelines.get(name)) for name in self._pipelines.names)
        self._registration.read_identity(name for name, task in tasks if task is not None and may_have_child(task))
        for thread in self._background_threads:
            thread.start()
        self._logs.start()
        with self._stop_lock:
            for worker in self._workers:
                worker.start()
        self._all_threads_started = True
        _log.info("pool.started", worker=self.name, queues=dict(self._options.queues))

    def stop_claiming(self) -> None:
        """Start no more jobs. Returns at once, and may be called twice."""
        self._dispatcher.stop()
        self._registration.registered.set()
        self._worker_control.report_stopping()

    @property
    def idle_sec(self) -> float:
        """For how long no thread has run a job."""
        if any(worker.current_attempt is not None for worker in self._workers):
            return 0.0
        busy_at = (buffer.last_busy_at for buffer in self._dispatcher.queues.values())
        return clock() - max(*busy_at, *(worker.last_ended_at for worker in self._workers))

    @property
    def would_lose_sec(self) -> float:
        """How long the running jobs without a checkpoint have run so far: what their next attempts would repeat."""
        now = clock()
        running = [attempt for worker in self._workers if (attempt := worker.current_attempt) is not None]
        return sum(now - (a.started_at or now) for a in running if a.reported.checkpoint is None)

    @property
    def has_started_all_jobs(self) -> bool:
        """Whether as many jobs were started as this process may run."""
        return self._dispatcher.jobs_left == 0

    def stop_within(self, sec: float) -> None:
        """Have a `stop`, in progress or to come, ask running jobs to stop in so many seconds, whatever their grace."""
        self._worker_stopper.stop_within(sec)

    def stop(self, grace: float) -> bool:
        """Stop everything: running jobs have `grace` seconds, or their queue's, are then asked to stop, and released.

        Return False if some pipeline does not stop. Its job was released, but its key stays locked until this process
        has ended, which it must do now.
        """
        with self._stop_lock:
            if not self._has_started or self._stopped.is_set():
                return self._stopped_cleanly
            self.stop_claiming()
            self._stopped_cleanly = self._worker_stopper.stop(grace, self._options.grace_by_queue)
            self._settler.drain(self._worker_stopper.timeout_sec)
            self._logs.stop(self._worker_stopper.timeout_sec)
            self._stop_background_threads()
            self._stopped.set()
            _log.info("pool.stopped", worker=self.name, clean=self._stopped_cleanly)
            return self._stopped_cleanly

    def stop_now(self) -> None:
        """Ask running jobs to stop now: a `stop` in progress does not wait for the end of the grace period."""
        self._worker_stopper.stop_now()

    def _stop_background_threads(self) -> None:
        for thread in self._background_threads:
            thread.stop()
        self._dispatcher.wake()
        for thread in self._background_threads:
            thread.join(5.0)
        self._offloads.release_polls()
        for owner in self._feature_threads:
            owner.drain(self._worker_stopper.timeout_sec)
        self._settler.abandon_rest()
        self._heartbeat.deregister()
        self._maintenance.close()
        self._options.attempts.fork_server.close()
        self._sessions.close("listen", "renew")
        if not any(worker.is_alive() for worker in self._workers):
            self._registration.process_lock.release()
            self._sessions.close()
            self._dispatcher.close()

    # ── state ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> PoolState:
        """Return the state of the pool, without asking the database."""
        now = clock()
        has_started, threads = self._all_threads_started, (*self._background_threads, self._logs.thread)
        crashed = (*self._crashed_threads, *(t.name for t in threads if has_started and not t.is_alive()))
        is_receiving, tested_at = self._listener.state.is_receiving, self._listener.last_self_test_at
        # `current_attempt` is read once for each worker, because it changes meanwhile.
        running = [attempt.job for worker in self._workers if (attempt := worker.current_attempt) is not None]
        busy = Counter(job.queue for job in running)
        ready = has_started and not self._stopped.is_set() and not crashed
        dispatch_age_sec = now - self._dispatcher.claims.last_cycle_at
        # An idle dispatcher completes a cycle after each poll or heartbeat, whichever is longer; one may fail.
        max_dispatch_age_sec = 2 * max(self._dispatcher.poll_interval_sec, self._options.heartbeat_sec) + 5.0
        return PoolState(
            ready=ready,
            worker_id=self.id,
            name=self.name,
            listener=self._listener.state.value,
            listen_mode=self._options.listen.value,
            self_test_age_sec=round(now - tested_at, 1) if tested_at is not None and is_receiving else None,
            claim_age_sec=round(now - self._dispatcher.claims.last_claim_at, 1),
            dispatch_age_sec=round(dispatch_age_sec, 1),
            consuming=ready and (self._dispatcher.all_busy or dispatch_age_sec < max_dispatch_age_sec),
            heartbeat_age_sec=round(now - self._heartbeat.last_beat_at, 1),
            outage=self._heartbeat.thread.outage,
            reaper_age_sec=round(now - self._reaper.last_check_at, 1) if self._options.reaps else None,
            threads=len(self._workers),
            busy=len(running),
            queues={name: {"threads": n, "busy": busy[name]} for name, n in self._options.queues.items()},
            running=[
                {"job_id": str(job.id), "task": job.task, "queue": job.queue, "attempt": job.attempt} for job in running
            ],
            crashed_threads=crashed,
            memory=None if (memory := self._memory.state) is None else vars(memory),
        )

    def _on_control(self, command: str) -> None:
        verb, _, argument = command.partition(" ")
        if verb in ("queue", "drain", "undrain"):
            self._worker_control.sync_now()
        elif self._maintenance.has(verb):
            self._maintenance.wake(verb)
        elif verb == "cancel" and (attempt := self._running_attempts.get(argument)) is not None:
            attempt.stop(StopReason.CANCEL)
        elif verb == "follow":
            self._heartbeat.records.follow(argument)
        elif self._registration.is_heartbeat_requested(verb, argument):
            self._heartbeat.send_now()
        for owner in self._feature_threads:
            if owner.control == verb:
                owner.wake(argument)

    def _on_crash(self, thread: str) -> None:
        self._crashed_threads.append(thread)
        with self._crash_lock:
            self._crash_callback(thread)
