"""WorkerPool: the threads and keepers of a process, what they share, their start and their stop."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

from app import log
from app.errors import DatabaseUnavailable
from app.queue.alerts import Alerts
from app.queue.attempt_sessions import TIMEOUT_SEC, Places
from app.queue.deaths import Deaths
from app.queue.job import HostFacts, Release, WorkerInfo
from app.queue.jobqueue import JobQueue, Limits
from app.queue.queues import Queues
from app.queue.retention import Ages
from app.queue.session import Session
from app.queue.sleep import Sleep
from app.queue.webhooks import Webhooks
from app.traces import Quiet, Tracer
from pipelines.contract import Pipelines, StopReason
from pipelines.retry import DEFAULT, Policy
from workers import process_identity
from workers.attempt import Attempt, Tools, may_have_child
from workers.capture import Write
from workers.clerk import Clerk
from workers.control import Control
from workers.courier import Courier, CourierOptions
from workers.death_watch import DeathWatch, WatchOptions
from workers.desk import Desk
from workers.doze import Doze
from workers.heartbeat import Heartbeat
from workers.housekeeper import Housekeeper
from workers.joblog import JobLogs, LogLimits
from workers.ladder import Ladder
from workers.listener import Hearing, Listener
from workers.outcome import HandedBack
from workers.process_identity import Identity
from workers.process_lock import ProcessLock
from workers.reaper import Reaper
from workers.roster import Hand, Hands, Roster
from workers.secrets import NO_VAULT, Vault
from workers.settler import Settler
from workers.tally import Counted, Tally
from workers.threads import Loop, clock
from workers.watch import Watch
from workers.worker import Worker
from workers.worker_name import NameClaim

_log = log.get(__name__)
_HURRY = 0.5  # seconds for what takes stop_sec otherwise, when somebody is in a hurry
_KILL_TIMEOUT_SEC = 6.0  # for killed processes to end, and their sessions on all servers
_GLANCE = 0.05  # how often a stop looks whether somebody is
_MOST_THREADS = 500  # of one queue, whatever a rule says
_KEEPER_DIED = 70  # exit code: a thread that the others rely on has met a bug


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """How a process works: `queues` says how many jobs of each queue run at once."""

    dsn: str
    queues: Mapping[str, int]
    schema: str = "public"
    heartbeat_sec: float = 10.0
    reaper_period_sec: float = 10.0
    claim_backoff_sec: float = 15.0
    connect_timeout_sec: float = 5.0
    command_timeout_sec: float = 30.0
    stop_sec: float = 10.0  # how long jobs that were asked to stop at shutdown are waited for
    version: str = "0"
    retry: Policy = DEFAULT
    stop_grace_sec: float = 5.0  # for each rung of the ladder that makes an attempt end
    worker_name: str | None = None  # that at most one process has
    packages: tuple[str, ...] = ()  # what a job's own process loads, as this one has
    tasks: Mapping[str, Any] = field(default_factory=dict)
    endpoints: Mapping[str, str] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)
    vault: Vault = NO_VAULT  # where secrets are that args refer to
    targets: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    follow_up_lease_sec: int = 60  # of jobs that a pipeline asks for
    logs: LogLimits = field(default_factory=LogLimits)  # of what jobs say
    ages: Ages = field(default_factory=Ages)  # how long things are kept
    deletes: bool = True  # what is older than that
    is_retention_requested: bool = False  # so that it deletes also from tables that were upgraded from version 0
    courier: CourierOptions = field(default_factory=CourierOptions)
    alert_period_sec: float = 15.0
    tracer: Tracer = field(default_factory=Quiet)


@dataclass(frozen=True)
class PoolState:
    """What a pool says of itself; read without asking the database."""

    ready: bool
    worker_id: UUID
    name: str
    listener: str
    echo_age_sec: float | None
    claim_age_sec: float
    round_age_sec: float
    consuming: bool
    heartbeat_age_sec: float
    reaper_age_sec: float
    threads: int
    busy: int
    queues: Mapping[str, Mapping[str, int]]
    running: Sequence[Mapping[str, Any]]
    dead: Sequence[str]  # threads that met a bug


def exit_at_once(thread: str) -> None:
    """A process without one of its keepers holds jobs that nobody looks after: end it, and let others have them."""
    os._exit(_KEEPER_DIED)


class WorkerPool:
    """Four connections, whatever the number of threads: one listens, one claims, one settles and holds the keys, one
    renews."""

    def __init__(
        self,
        pipelines: Pipelines,
        options: PoolOptions,
        *,
        died: Callable[[str], None] = exit_at_once,
        echo: Write | None = None,  # hears what jobs say, as they say it
    ) -> None:
        self.id = uuid4()
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._options, self._died = options, died
        self._dead: list[str] = []
        self._process_lock = ProcessLock()
        self._identity: Identity | None = None  # read when the threads are started: a fork before changes it
        self._facts = HostFacts()
        self._is_superseded = False  # the heartbeat's
        self._registered = threading.Event()
        self._sessions = {role: self._session(role) for role in ("listen", "claim", "settle", "renew")}
        self._build(pipelines, echo)
        self._began = False
        self._started = False  # all threads were: one that does not live from here on has died
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        self._stop_lock = threading.Lock()
        self._death_lock = threading.Lock()  # two that die at once end the process one after the other, which is: once
        self._clean = True  # under the stop lock: how the stop went

    def _session(self, role: str) -> Session:
        options = self._options
        longest = options.command_timeout_sec
        if role in ("listen", "renew"):
            longest = min(longest, max(1.0, options.heartbeat_sec))  # the heartbeat waits for both, and leases for it
        return Session(
            options.dsn,
            name=f"dataloader-{role}:{self.id}",  # which finds the sessions of this process when it is dead
            schema=options.schema,
            connect_timeout=options.connect_timeout_sec,
            command_timeout=longest,
            plans_kept=role in ("claim", "settle", "renew"),
            ahead=("claim_due", "settle") if role in ("claim", "settle") else (),
        )

    def _build(self, pipelines: Pipelines, echo: Write | None) -> None:
        options, sessions = self._options, self._sessions
        limits = replace(options.limits, min_lease_sec=math.ceil(2 * options.heartbeat_sec))
        queue = {role: JobQueue(session, limits=limits) for role, session in sessions.items()}
        self._logs = JobLogs(
            queue["renew"],
            options.logs,
            connected=lambda: sessions["renew"].connected,
            died=self._on_death,
            echo=echo,
        )
        self._roster, self._tally = Roster(), Tally()
        self._hands = Hands(*(Hand(sessions[role], queue[role], self.id) for role in ("settle", "claim")))
        self._settler = Settler(self._roster, died=self._on_death, tally=self._tally)
        self._listener = Listener(sessions["listen"], echo_every=options.heartbeat_sec, changed=self._hearing_changed)
        self._desk = Desk(
            dict(options.queues),
            queue=queue["claim"],
            listener=self._listener,
            roster=self._roster,
            hands=self._hands,
            tasks=pipelines.names,
            worker=self.name,
            poll_every=options.claim_backoff_sec,
            tools=self._tools(),
            controls=self._control,
            give_back=self._settler.write,
            doze=Doze(Sleep(sessions["claim"], self.id)),
        )
        self._info = info = WorkerInfo(
            self.id,
            self.name,
            options.version,
            tuple(options.queues),
            pipelines.names,
            sum(options.queues.values()),
            queue_threads=dict(options.queues),
        )
        self._heartbeat = Heartbeat(
            queue["renew"],
            self._roster,
            every=options.heartbeat_sec,
            info=info,
            register=self._register,
            listen=self._desk.stand_in,
            died=self._on_death,
            tally=self._tally,
        )
        self._ladder = Ladder(
            self._roster,
            note_pending=lambda job, reason, error: queue["renew"].note_pending_stop(job, reason=reason, error=error),
            died=self._on_death,
        )
        self._reaper = Reaper(
            queue["claim"],
            self._hands,
            every=options.reaper_period_sec,
            heartbeat_sec=options.heartbeat_sec,
            pause_sec=min(5.0, options.heartbeat_sec / 2),
            clear_stale=self._desk.clear_stale,
            died=self._on_death,
            places=self._places(),
        )
        self._death_watch = self._watch_for_deaths(queue["claim"])
        self._courier = Courier(Webhooks(sessions["claim"]), options.courier, died=self._on_death)
        self._watch = Watch(Alerts(sessions["claim"]), every=options.alert_period_sec, died=self._on_death)
        self._ruled = Control(
            Queues(sessions["claim"]),
            self._desk,
            self._roster,
            worker_id=self.id,
            every=options.heartbeat_sec,
            hearing=lambda: self._listener.hearing.value,
            widen=self._widen,
            died=self._on_death,
        )
        self._clerk = Clerk(Queues(sessions["claim"]), self._session("clerk"), died=self._on_death)
        self._house = Housekeeper(
            sessions["renew"],
            self._session("house"),
            options.ages,
            deletes=options.deletes,
            is_requested=options.is_retention_requested,
            died=self._on_death,
        )
        self._pipelines = pipelines
        self._workers = [
            self._worker(name, n) for name, threads in options.queues.items() for n in range(1, threads + 1)
        ]

    def _watch_for_deaths(self, queue: JobQueue) -> DeathWatch:
        options = self._options
        deaths = Deaths(queue.source)
        name_claim = None
        if options.worker_name is not None:
            name_claim = NameClaim(deaths, self.id, options.worker_name, superseded=self._superseded)
        return DeathWatch(
            deaths,
            queue,
            WatchOptions(self.id, pause_sec=min(5.0, options.heartbeat_sec / 2), places=self._places()),
            identity=lambda: self._identity,
            name_claim=name_claim,
            died=self._on_death,
        )

    def _identify(self) -> None:
        """Read what others need to prove the death of this process: in the process whose threads run the jobs."""
        self._identity = identity = process_identity.read_identity()
        self._process_lock.take(self.id)
        path = self._process_lock.path
        tasks = ((name, self._pipelines.get(name)) for name in self._pipelines.names)
        self._facts = HostFacts(
            **({} if identity is None else vars(identity)),
            lock_file=None if path is None else str(path),
            child_tasks=tuple(name for name, task in tasks if task is not None and may_have_child(task)),
            worker_name=self._options.worker_name,
        )

    def _register(self) -> None:
        deaths = Deaths(self._sessions["renew"])
        beat = deaths.beat(self._info, self._facts, heartbeat_sec=self._options.heartbeat_sec)
        self._death_watch.learn(beat)
        self._registered.set()

    def _superseded(self) -> None:
        """Another process holds the name and has taken the jobs over: end as if the leases were lost. This process has
        been given up for dead, so that it must not claim; a service manager starts it again."""
        if self._is_superseded:
            return
        self._is_superseded = True
        _log.error("worker_name.taken", name=self._options.worker_name, worker=self.name)
        self.stop_claiming()
        for attempt in self._roster.all():
            attempt.stop(StopReason.LEASE_LOST)
        threading.Thread(target=self._leave, name="superseded", daemon=True).start()

    def _leave(self) -> None:
        deadline = clock() + 2 * self._options.stop_grace_sec
        while len(self._roster) and clock() < deadline and not self._stopped.wait(_GLANCE):
            pass
        with suppress(DatabaseUnavailable):
            JobQueue(self._sessions["renew"]).forget_worker(self.id)
        if not self._stopped.is_set():
            self._on_death("worker-name")

    def _worker(self, name: str, n: int) -> Worker:
        return Worker(
            f"worker-{name}-{n}",
            name,
            desk=self._desk,
            settler=self._settler,
            pipelines=self._pipelines,
            logs=self._logs,
            process=self.name,
            tracer=self._options.tracer,
            died=self._on_death,
            registered=self._registered,
        )

    def _widen(self, name: str, threads: int) -> None:
        """A queue may run more jobs here than it has threads: add some. They stay; a lower limit keeps them idle."""
        line = self._desk.lines[name]
        if line.threads >= threads or not self._stop_lock.acquire(blocking=False):
            return  # the pool starts or stops at this moment
        try:
            while line.threads < min(threads, _MOST_THREADS) and not self._stopped.is_set():
                line.threads += 1
                more = self._worker(name, line.threads)
                self._workers.append(more)
                more.start()
        finally:
            self._stop_lock.release()

    def _places(self) -> Places:
        options = self._options
        return Places(
            dsn=options.dsn,
            schema=options.schema,
            targets=dict(options.targets),
            connect_timeout_sec=options.connect_timeout_sec,
        )

    def _tools(self) -> Tools:
        options = self._options
        return Tools(
            places=self._places(),
            retry=options.retry,
            stop_grace_sec=options.stop_grace_sec,
            packages=options.packages,
            tasks=dict(options.tasks),
            endpoints=dict(options.endpoints),
            tokens=dict(options.tokens),
            vault=options.vault,
            max_result_bytes=options.limits.largest_result,
            follow_up_lease_sec=options.follow_up_lease_sec,
            process_lock=self._process_lock,
            log=self._logs.write,
        )

    # ── a life ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the keepers, then those they keep. The database need not be there yet."""
        self._began = True
        self._identify()
        for loop in self._keepers:
            loop.start()
        self._logs.start()
        with self._stop_lock:
            for worker in self._workers:
                worker.start()
        self._started = True
        _log.info("pool.started", worker=self.name, queues=dict(self._options.queues))

    def stop_claiming(self) -> None:
        """From now on no job is begun. Returns at once, and may be called twice."""
        self._desk.stop()
        self._registered.set()
        self._ruled.stopping()

    def stop(self, grace: float) -> bool:
        """End everything: running jobs have `grace` seconds, are then asked to stop, and handed back.

        True: all threads have ended. False: some pipeline does not stop; its job was handed back, but its key stays
        locked until this process has ended, which it must do now.
        """
        with self._stop_lock:
            if not self._began or self._stopped.is_set():
                return self._clean
            self.stop_claiming()
            self._clean = self._end_workers(grace)
            self._settler.drain(self._patience())
            self._logs.stop(self._patience())
            self._end_keepers()
            self._stopped.set()
            _log.info("pool.stopped", worker=self.name, clean=self._clean)
            return self._clean

    def _end_workers(self, grace: float) -> bool:
        if self._join_workers(lambda: 0.0 if self._hurried.is_set() else grace):
            return True
        for attempt in self._roster.all():
            attempt.stop(StopReason.SHUTDOWN)
        if self._join_workers(self._patience) or self._kill_processes():
            return True
        stubborn = [a for worker in self._workers if worker.alive and (a := worker.current) is not None]
        self._end_sessions(stubborn)
        for attempt in stubborn:
            _log.error("job.will.not.stop", job=str(attempt.job.id), task=attempt.job.task)
            self._hand_back_unstopped(attempt)
        return False

    def _end_sessions(self, attempts: Sequence[Attempt]) -> None:
        """Before they are handed back: their threads go on, but their statements do not."""
        threads = [threading.Thread(target=attempt.end_sessions, daemon=True) for attempt in attempts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * TIMEOUT_SEC + 1)

    def _kill_processes(self) -> bool:
        """What runs in processes of its own does not outlive this one, nor do its sessions. True: no thread is left."""
        isolated = [(worker, a) for worker in self._workers if (a := worker.current) is not None and not a.in_thread]
        for _, attempt in isolated:
            attempt.kill_process()
        deadline = clock() + (_HURRY if self._hurried.is_set() else _KILL_TIMEOUT_SEC)
        for worker, _ in isolated:
            worker.join(max(0.0, deadline - clock()))
        return not any(worker.alive for worker in self._workers)

    def hurry(self) -> None:
        """Ask running jobs to stop now: a `stop` on its way does not wait for the end of the grace."""
        self._hurried.set()
        for attempt in self._roster.all():
            attempt.stop(StopReason.SHUTDOWN)

    def _patience(self) -> float:
        return min(_HURRY, self._options.stop_sec) if self._hurried.is_set() else self._options.stop_sec

    def _join_workers(self, patience: Callable[[], float]) -> bool:
        """Wait for all; False: some still run. The patience may shrink meanwhile."""
        began = clock()
        while left := [worker for worker in self._workers if worker.alive]:
            if clock() - began >= patience():
                return False
            left[0].join(_GLANCE)
        return True

    def _hand_back_unstopped(self, attempt: Attempt) -> None:
        """Its key is forgotten here, not given back: the session keeps it locked until the process is gone."""
        if attempt.hand is not None:
            attempt.hand.forget([attempt])
        self._settler.write(attempt, HandedBack(Release.SHUTDOWN, attempt.left()))

    @property
    def _keepers(self) -> list[Loop]:
        keepers = (
            self._settler,
            self._heartbeat,
            self._reaper,
            self._ladder,
            self._courier,
            self._watch,
            self._ruled,
            self._clerk,
            self._house,
            self._death_watch,
        )
        return [keeper.loop for keeper in keepers]

    def _end_keepers(self) -> None:
        for loop in self._keepers:
            loop.stop()
        self._desk.ring()
        for loop in self._keepers:
            loop.join(5.0)
        self._courier.finish(min(self._patience(), self._options.courier.timeout_sec))
        self._settler.give_up_the_rest()
        self._heartbeat.say_goodbye()
        self._clerk.close()
        self._house.close()
        for role in ("listen", "claim", "renew"):
            self._sessions[role].close()
        if not any(worker.alive for worker in self._workers):
            self._process_lock.release()
            self._sessions["settle"].close()
            self._desk.close()

    # ── while it lives ──────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> PoolState:
        now = clock()
        loops = [*self._keepers, self._logs.loop]
        dead = [*self._dead, *(loop.name for loop in loops if self._started and not loop.alive)]
        hearing, echoed = self._listener.hearing, self._listener.echoed_at
        # Each is read once, for they come and go meanwhile.
        running = [attempt for worker in self._workers if (attempt := worker.current) is not None]
        busy = dict.fromkeys(self._options.queues, 0)
        for attempt in running:
            busy[attempt.job.queue] += 1
        ready = self._started and not self._stopped.is_set() and not dead
        return PoolState(
            ready=ready,
            worker_id=self.id,
            name=self.name,
            listener=hearing.value,
            echo_age_sec=None if echoed is None or hearing is not Hearing.LISTENING else round(now - echoed, 1),
            claim_age_sec=round(now - self._desk.claimed_at, 1),
            round_age_sec=round(now - self._desk.rounded_at, 1),
            consuming=ready and (self._desk.all_busy or now - self._desk.rounded_at < self._longest_round),
            heartbeat_age_sec=round(now - self._heartbeat.beat_at, 1),
            reaper_age_sec=round(now - self._reaper.looked_at, 1),
            threads=len(self._workers),
            busy=sum(busy.values()),
            queues={name: {"threads": n, "busy": busy[name]} for name, n in self._options.queues.items()},
            running=[self._running(attempt) for attempt in running],
            dead=tuple(dead),
        )

    @property
    def _longest_round(self) -> float:
        """Idle, the claim loop looks around after each poll or heartbeat, whichever is longer; one may go wrong."""
        return 2 * max(self._options.claim_backoff_sec, self._options.heartbeat_sec) + 5.0

    def counted(self) -> Counted:
        """What this pool has counted since it was made."""
        return self._tally.counted()

    def sent(self) -> Mapping[str, int]:
        """How many webhooks it has sent, by what came of it."""
        return self._courier.counted()

    def _running(self, attempt: Attempt) -> Mapping[str, Any]:
        job = attempt.job
        return {"job_id": str(job.id), "task": job.task, "queue": job.queue, "attempt": job.attempt}

    def _hearing_changed(self) -> None:
        self._ruled.loop.ring()

    def _control(self, word: str) -> None:
        verb, _, run_id = word.partition(" ")
        if verb == "deliver":
            self._courier.loop.ring()
        if verb in ("queue", "drain", "undrain"):
            self._ruled.loop.ring()
        if verb == "bulk":
            self._clerk.loop.ring()
        if (verb == "beat" and run_id == str(self.id)) or (verb == "started" and run_id == self._facts.boot_id):
            self._heartbeat.beat_now()  # and hear of the process that has started
        if verb == "cancel":
            attempt = self._roster.find(_uuid(run_id))
            if attempt is not None:
                attempt.stop(StopReason.CANCEL)

    def _on_death(self, thread: str) -> None:
        self._dead.append(thread)
        with self._death_lock:
            self._died(thread)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return UUID(int=0)  # a control word that is not ours: nobody has this run
