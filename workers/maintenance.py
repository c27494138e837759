"""Runs the periodic duties that one worker process does for all: those of the queue here, those of features.

A duty has a name, an interval and a function that does one bounded slice of the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from uuid import UUID

from dataloader.app import log
from dataloader.app.acts.feature import Feature, load_all
from dataloader.app.db.connection import Session
from dataloader.app.db.statements import Executor
from dataloader.app.errors import DatabaseUnavailable, DataloaderError
from dataloader.app.features.registry import FEATURES
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.queues import QueueControl
from dataloader.app.queue.workers import HeartbeatResult, notify_waiting_queues
from dataloader.pipelines.portable import clock
from dataloader.workers.duties import LATE_SEC, Duty, DutyContext
from dataloader.workers.pace import Pace
from dataloader.workers.threads import BackgroundThread, Backoff

_log = log.get(__name__)
_FOLLOW_INTERVAL_SEC = 30.0  # between two checks of a process that does not lead, if its heartbeats do not answer them
_FOLLOWER_REPAIR_SEC = 30.0
_NOTIFY_INTERVAL_SEC = 1.0
_REPAIR_INTERVAL_SEC = 1.0
_REPAIR_COOLDOWN_SEC = 30.0  # a job that a repair made ready is left to be claimed for so long
_REPAIR_BATCH = 500
_EXPIRY_INTERVAL_SEC = 1.0


class Maintenance:
    """Runs duties while this process holds the maintenance lock, on the connection that holds it.

    Each step runs one slice of the duty that is longest overdue, so that a long duty cannot starve the others. A duty
    that fails is repeated after a pause that doubles. When the connection is lost the lock is free, and any process may
    take over. A leader that is frozen, or cut off from the server, keeps it: the follower duties are what must be done
    even then.
    """

    def __init__(
        self,
        session: Session,  # opened by the leader only
        follower_session: Executor,  # a connection the process has anyway: followers check the lock on it
        duties: Sequence[Duty],
        *,
        on_crash: Callable[[str], None],
        follower_duties: Sequence[Duty] = (),
    ) -> None:
        self._follower_duties = follower_duties
        self._next_follow_at = {duty.name: 0.0 for duty in follower_duties}
        self._session, self._duties = session, {duty.name: duty for duty in duties}
        self._lock, self._lock_check = QueueControl(session), QueueControl(follower_session)
        self._leader_generation = -1  # of the connection that holds the lock
        self._answered_at = self._followed_at = -math.inf  # the last heartbeat with nothing to do; the last check
        self._backoffs: dict[str, Backoff] = {}  # of duties that fail
        self._next_run_at = {duty.name: clock() + duty.first_delay_sec for duty in duties}
        self._woken: set[str] = set()  # duties to run now; added to by other threads, which write nothing else
        self._asked: set[str] = set()  # due duties that have work
        self._paces = {id(duty): Pace() for duty in (*duties, *follower_duties) if duty.is_paced}
        self._ask_pace = Pace()
        self.thread = BackgroundThread("maintenance", self.run_once, on_crash=on_crash)

    @property
    def is_leader(self) -> bool:
        return self._session.connected and self._session.generation == self._leader_generation

    def has(self, duty: str) -> bool:
        return duty in self._duties

    def wake(self, duty: str) -> None:
        """Run this duty now, for example because a bulk operation was requested."""
        self._woken.add(duty)
        self.thread.wake()

    def on_heartbeat(self, heartbeat: HeartbeatResult) -> None:
        """Check at once if no process leads or a schedule is late, and every 30 s while blocked jobs or updates of
        datasets wait. Otherwise the heartbeat counts as a check. Called by the heartbeat's thread."""
        is_late = heartbeat.next_schedule_in_sec is not None and heartbeat.next_schedule_in_sec < -LATE_SEC
        is_waiting = heartbeat.has_waiting_work and clock() >= self._followed_at + _FOLLOW_INTERVAL_SEC
        if not heartbeat.is_led or is_late or is_waiting:
            self._answered_at = -math.inf
            if not self.is_leader:
                self.thread.wake()
            elif is_late and self.has("schedules"):
                self.wake("schedules")  # its time was written after the last look, and the notification is lost
        else:
            self._answered_at = clock()

    def run_once(self) -> float:
        """Run one slice of the duty that is longest overdue; return the seconds until the next one is due."""
        if not self.is_leader:
            if self._leader_generation >= 0:  # this process has lost the lock, and no heartbeat was asked since
                self._leader_generation, self._answered_at = -1, -math.inf
            answered_sec = self._answered_at + _FOLLOW_INTERVAL_SEC - clock()
            if answered_sec > 0:
                return answered_sec
            if not self._acquire_lock():
                self._follow()
                return _FOLLOW_INTERVAL_SEC
        while self._woken:
            self._next_run_at[self._woken.pop()] = 0.0
        name = min(self._next_run_at, key=self._next_run_at.__getitem__)
        if self._next_run_at[name] <= clock():
            duty = self._duties[name]
            if duty.has_work is not None and name not in self._asked:
                self._postpone_idle_duties()
            if duty.has_work is None or name in self._asked:
                self._asked.discard(name)
                pause = self._run_duty(duty, self._next_run_at)
                if pause is not None:
                    self._next_run_at[name] = clock() + min(pause, duty.interval_sec)
        return max(0.0, min(self._next_run_at.values()) - clock())

    def _postpone_idle_duties(self) -> None:
        """Ask which duties have work, all in one statement. A duty that is woken meanwhile is asked again."""
        now, next_at = clock(), self._next_run_at
        asked = [d for d in self._duties.values() if d.has_work and not (d.is_paced and next_at[d.name] > now)]
        due = {duty.name for duty in asked if next_at[duty.name] <= now}
        self._next_run_at.update({name: now + self._interval_sec(name, self._ask_pace) for name in due})
        try:
            answers = self._session.ask(duty.has_work or "" for duty in asked)
        except DataloaderError:
            if not self.is_leader:
                raise  # the connection is gone, and the lock with it
            answers = (True,) * len(asked)  # each then fails by itself, and says so
        if any(duty.is_paced for duty in asked):
            self._ask_pace.record(clock() - now)
        for duty, has_work in zip(asked, answers, strict=True):
            name = duty.name
            if name in due and has_work:
                self._asked.add(name)
                self._next_run_at[name] = now
            elif name not in due and not has_work:
                self._next_run_at[name] = now + duty.interval_sec

    def _interval_sec(self, name: str, pace: Pace) -> float:
        duty = self._duties[name]
        return max(duty.interval_sec, pace.interval_sec) if duty.is_paced else duty.interval_sec

    def _follow(self) -> None:
        self._followed_at = clock()
        for duty in self._follower_duties:
            if clock() >= self._next_follow_at[duty.name]:
                self._run_duty(duty, self._next_follow_at)

    def _run_duty(self, duty: Duty, next_at: dict[str, float]) -> float | None:
        """Log the first failure in a row and the success after it."""
        started_at = clock()
        next_at[duty.name] = started_at + duty.interval_sec
        try:
            pause = duty.run()
        except Exception as error:
            if isinstance(error, DatabaseUnavailable) and self._leader_generation >= 0 and not self.is_leader:
                raise  # the connection is gone, and the lock with it
            if duty.name not in self._backoffs:
                self._backoffs[duty.name] = Backoff()
                write = _log.error if isinstance(error, DataloaderError) else _log.exception
                write("maintenance.failed", duty=duty.name, error=str(error))
            next_at[duty.name] = clock() + self._backoffs[duty.name].next_sec()
            return None
        if self._backoffs.pop(duty.name, None) is not None:
            _log.info("maintenance.recovered", duty=duty.name)
        if (pace := self._paces.get(id(duty))) is not None:
            pace.record(clock() - started_at)
            next_at[duty.name] = started_at + max(duty.interval_sec, pace.interval_sec)
        return pause

    def _acquire_lock(self) -> bool:
        if self._lock_check.is_maintenance_lock_held():
            return False
        if not self._lock.acquire_maintenance_lock():
            self._session.close()
            return False
        self._leader_generation = self._session.generation
        return True

    def close(self) -> None:
        """Give up the lock."""
        self._session.close()


def duties(context: DutyContext, features: Sequence[Feature] = FEATURES) -> list[Duty]:
    """All duties of the maintenance leader: those of the queue, then those of the features."""
    session, queue = context.executor, JobQueue(context.executor)
    of_queue = [
        Duty(
            "notify-waiting",
            _NOTIFY_INTERVAL_SEC,
            lambda: notify_waiting_queues(session),
            has_work="has_ready_jobs",
            is_paced=True,
        ),
        Duty("blocked", _REPAIR_INTERVAL_SEC, BlockedJobsDuty(queue).run, has_work="has_blocked_jobs", is_paced=True),
        Duty("expiry", _EXPIRY_INTERVAL_SEC, lambda: _expire(queue), has_work="has_expired_jobs"),
    ]
    return [*of_queue, *(duty for create in load_all(features, "duties") for duty in create(context))]


def follower_duties(context: DutyContext, features: Sequence[Feature] = FEATURES) -> list[Duty]:
    """What every process does while another one leads, at longer intervals."""
    blocked = Duty("blocked", _FOLLOWER_REPAIR_SEC, BlockedJobsDuty(JobQueue(context.executor)).run)
    return [*(duty for create in load_all(features, "follower_duties") for duty in create(context)), blocked]


def _expire(queue: JobQueue) -> float | None:
    expired = queue.expire()
    if expired:
        _log.info("jobs.expired", jobs=expired)
    return 0.0 if expired else None


class BlockedJobsDuty:
    """Makes blocked jobs ready whose key is free: whatever freed it should have done so."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._cursor = ""
        self._repaired_jobs: dict[UUID, float] = {}  # when each was made ready

    def run(self) -> None:
        now = clock()
        self._repaired_jobs = {
            job_id: at for job_id, at in self._repaired_jobs.items() if now - at < _REPAIR_COOLDOWN_SEC
        }
        repaired = self._queue.repair_blocked(
            after=self._cursor, repaired_jobs=self._repaired_jobs, limit=_REPAIR_BATCH
        )
        self._cursor = repaired.cursor
        self._repaired_jobs.update((job_id, now) for job_id in repaired.made_ready)
        if repaired.unblocked:
            _log.info("blocked_jobs.repaired", keys=len(repaired.unblocked))
