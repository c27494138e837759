"""Runs the periodic duties that one worker process does for all: bulk operations, statistics, retention, alert checks.

A new duty is an entry in `duties()`: a name, an interval and a function that does one bounded slice of the work.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dataloader.app import log
from dataloader.app.db.connection import Session
from dataloader.app.db.statements import Executor
from dataloader.app.errors import DatabaseUnavailable, DataloaderError
from dataloader.app.features.alerts.rows import Alerts
from dataloader.app.features.backfills.duty import BackfillsDuty
from dataloader.app.features.bulk.rows import BulkOperations
from dataloader.app.features.graphs.rows import Graphs
from dataloader.app.features.limits.breakers import Breakers
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.lineage.duty import LineageDuty, LineageOptions
from dataloader.app.features.offload.rows import Offloads
from dataloader.app.features.quality.rows import DataQuality
from dataloader.app.features.retention.rows import PrunedBatch, Retention, RetentionPeriods
from dataloader.app.features.schedules.duty import LATE_SEC, SchedulesDuty
from dataloader.app.features.schedules.rows import ORPHAN_AFTER_SEC, Schedules
from dataloader.app.features.statistics.rows import Statistics
from dataloader.app.features.webhooks.rows import Webhooks
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.queues import QueueControl
from dataloader.app.queue.workers import HeartbeatResult, notify_waiting_queues, prune_notify_state
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.executors import Engines
from dataloader.pipelines.portable import clock
from dataloader.workers.metrics import PoolCounters
from dataloader.workers.offloads.pruning import prune_offloads
from dataloader.workers.threads import BackgroundThread, Backoff

_log = log.get(__name__)
_FOLLOW_INTERVAL_SEC = 30.0  # between two checks of a process that does not lead, if its heartbeats do not answer them
_LATE_SCHEDULES_INTERVAL_SEC = 5.0
_FOLLOWER_REPAIR_SEC = 30.0
IDLE_INTERVAL_SEC = 2.0  # between two checks for bulk operations or new events
_NOTIFY_INTERVAL_SEC = 1.0
_REPAIR_INTERVAL_SEC = 1.0
_REPAIR_COOLDOWN_SEC = 30.0  # a repaired key is left to be claimed for so long
_REPAIR_BATCH = 500
_LIMITS_INTERVAL_SEC = 1.0
_GRAPHS_INTERVAL_SEC = 1.0
_EXPIRY_INTERVAL_SEC = 1.0
_SCHEDULES_INTERVAL_SEC = 30.0  # at the latest; a step returns when the next time comes
_SEEN_INTERVAL_SEC = 60.0
_BACKFILLS_INTERVAL_SEC = 2.0
_BREAKERS_INTERVAL_SEC = 1.0
_MIN_RATE_INTERVAL_SEC = 0.005  # between two steps that wake jobs of rates
_NEXT_LIMITS_SEC = 0.05  # between two parts of all limits that jobs wait for
_RETENTION_INTERVAL_SEC = 60.0
_HOURLY_SEC = 3600.0
_PRUNE_INTERVAL_SEC = 600.0
_DEPTHS_INTERVAL_SEC = 30.0  # recorded once a minute, and none may be left out
_PRUNE_BATCH = 1000  # deliveries, data checks, dataset events
_REST_FACTOR = 9  # statistics that are not late rest this many times as long as a batch took: jobs come first
_MAX_STATISTICS_LAG_SEC = 60.0  # later statistics do not rest at all
AGGREGATE_BATCH = 10_000  # events
_DELETE_BATCH = 500  # jobs
_MAX_DELETE_PAUSE_SEC = 5.0
_KEEP_ALERTS_SEC = 90 * 86_400.0
_KEEP_CHECKS_SEC = 90 * 86_400.0  # and dataset events


@dataclass(frozen=True)
class Duty:
    """A periodic duty: `run` does one bounded slice and returns the seconds until the next one, None: the interval."""

    name: str
    interval_sec: float
    run: Callable[[], float | None]
    first_delay_sec: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MaintenanceOptions:
    """What the duties delete, and how often alert rules are checked."""

    periods: RetentionPeriods = field(default_factory=RetentionPeriods)
    deletion_enabled: bool = True
    is_retention_requested: bool = False  # then also from tables that were upgraded from version 0
    alert_interval_sec: float = 15.0
    keep_deliveries_sec: float = 14 * 86_400.0
    zone: str = "UTC"  # of schedules that name none
    default_lease_sec: int = 60  # of their jobs
    lineage: LineageOptions | None = None


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
        self.thread = BackgroundThread("maintenance", self.run_once, on_crash=on_crash)

    @property
    def is_leader(self) -> bool:
        return self._session.connected and self._session.generation == self._leader_generation

    def wake(self, duty: str) -> None:
        """Run this duty now, for example because a bulk operation was requested."""
        self._next_run_at[duty] = 0.0
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
        name = min(self._next_run_at, key=self._next_run_at.__getitem__)
        if self._next_run_at[name] <= clock():
            duty = self._duties[name]
            pause = self._run_duty(duty, self._next_run_at)
            if pause is not None:
                self._next_run_at[name] = clock() + min(pause, duty.interval_sec)
        return max(0.0, min(self._next_run_at.values()) - clock())

    def _follow(self) -> None:
        self._followed_at = clock()
        for duty in self._follower_duties:
            if clock() >= self._next_follow_at[duty.name]:
                self._run_duty(duty, self._next_follow_at)

    def _run_duty(self, duty: Duty, next_at: dict[str, float]) -> float | None:
        """Log the first failure in a row and the success after it."""
        next_at[duty.name] = clock() + duty.interval_sec
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


def duties(
    session: Session,
    options: MaintenanceOptions,
    tasks: Pipelines,
    counters: PoolCounters | None = None,
    engines: Engines | None = None,
) -> list[Duty]:
    """All duties of the maintenance leader."""
    bulk, statistics, retention = BulkOperations(session), Statistics(session), RetentionDuty(session, options)
    alerts, webhooks, quality = Alerts(session), Webhooks(session), DataQuality(session)
    half_a_minute = _RETENTION_INTERVAL_SEC / 2
    schedules = Schedules(session)
    backfills = BackfillsDuty(session, tasks, default_lease_sec=options.default_lease_sec)
    lineage = options.lineage and LineageDuty(session, options.lineage)
    return [
        *([Duty("lineage", IDLE_INTERVAL_SEC, lineage.run)] if lineage else []),
        Duty("bulk", IDLE_INTERVAL_SEC, lambda: 0.0 if bulk.run_batch() else bulk.next_step_in_sec()),
        Duty("bulk-prune", _HOURLY_SEC, bulk.prune),
        Duty("statistics", IDLE_INTERVAL_SEC, lambda: _aggregate(statistics)),
        Duty("statistics-prune", _PRUNE_INTERVAL_SEC, statistics.prune),
        Duty("queue-depths", _DEPTHS_INTERVAL_SEC, statistics.record_depths),
        Duty("notify-waiting", _NOTIFY_INTERVAL_SEC, lambda: notify_waiting_queues(session)),
        Duty("blocked", _REPAIR_INTERVAL_SEC, BlockedJobsDuty(JobQueue(session)).run),
        Duty("limits", _LIMITS_INTERVAL_SEC, LimitsDuty(Limits(session)).run),
        Duty("breakers", _BREAKERS_INTERVAL_SEC, lambda: _probe_breakers(Breakers(session))),
        Duty("graphs", _GRAPHS_INTERVAL_SEC, lambda: _decide_left(Graphs(session))),
        Duty("expiry", _EXPIRY_INTERVAL_SEC, lambda: _expire(JobQueue(session))),
        Duty("schedules", _SCHEDULES_INTERVAL_SEC, schedules_duty(session, options, tasks, counters).run),
        Duty("backfills", _BACKFILLS_INTERVAL_SEC, backfills.run),
        Duty("schedules-seen", _SEEN_INTERVAL_SEC, lambda: _see_schedules(schedules), first_delay_sec=ORPHAN_AFTER_SEC),
        Duty("firings-prune", _PRUNE_INTERVAL_SEC, lambda: _prune_firings(schedules, options)),
        Duty("limits-prune", _HOURLY_SEC, Limits(session).prune),
        Duty("retention", _RETENTION_INTERVAL_SEC, retention.run, first_delay_sec=half_a_minute),
        Duty("alerts", options.alert_interval_sec, lambda: _check_alerts(alerts, options.alert_interval_sec)),
        Duty("alerts-prune", _HOURLY_SEC, lambda: alerts.prune(keep_sec=_KEEP_ALERTS_SEC)),
        Duty("checks-prune", _HOURLY_SEC, lambda: _prune_checks(quality)),
        Duty("offloads-prune", _HOURLY_SEC, lambda: prune_offloads(Offloads(session.execute), engines or Engines())),
        Duty("deliveries-prune", _PRUNE_INTERVAL_SEC, lambda: _prune_deliveries(webhooks, options.keep_deliveries_sec)),
    ]


def follower_duties(
    session: Executor, options: MaintenanceOptions, tasks: Pipelines, counters: PoolCounters | None = None
) -> list[Duty]:
    """What every process does while another one leads, at longer intervals."""
    schedules = schedules_duty(session, options, tasks, counters)
    return [
        Duty("late-schedules", _LATE_SCHEDULES_INTERVAL_SEC, lambda: schedules.run(late_by_sec=LATE_SEC)),
        Duty("blocked", _FOLLOWER_REPAIR_SEC, BlockedJobsDuty(JobQueue(session)).run),
    ]


def _aggregate(statistics: Statistics) -> float | None:
    started_at = clock()
    lag_sec = statistics.aggregate(AGGREGATE_BATCH)
    return None if lag_sec is None else rest_sec(clock() - started_at, lag_sec)


def rest_sec(batch_sec: float, lag_sec: float) -> float:
    """Return how long statistics rest after a batch: the later they are, the shorter."""
    return _REST_FACTOR * batch_sec * max(0.0, 1 - lag_sec / _MAX_STATISTICS_LAG_SEC)


def _decide_left(graphs: Graphs) -> float | None:
    decided, found = graphs.decide_left()
    if decided:
        _log.info("waiting_jobs.decided", jobs=decided)
    return 0.0 if decided and found else None


def _probe_breakers(breakers: Breakers) -> float | None:
    result = breakers.probe()
    for task in result.tasks:
        _log.info("breaker.half_open", task=task)
    return None if result.next_probe_in_sec is None else max(0.05, result.next_probe_in_sec)


def _expire(queue: JobQueue) -> float | None:
    expired = queue.expire()
    if expired:
        _log.info("jobs.expired", jobs=expired)
    return 0.0 if expired else None


def schedules_duty(
    session: Executor, options: MaintenanceOptions, tasks: Pipelines, counters: PoolCounters | None
) -> SchedulesDuty:
    return SchedulesDuty(
        session,
        tasks,
        zone=options.zone,
        default_lease_sec=options.default_lease_sec,
        record_firing=(counters or PoolCounters()).record_firing,
    )


def _see_schedules(schedules: Schedules) -> None:
    for name in schedules.see():
        _log.warning("schedule.orphaned", schedule=name)


def _prune_firings(schedules: Schedules, options: MaintenanceOptions) -> float | None:
    if not options.deletion_enabled:
        return None
    pruned = schedules.prune(keep_sec=options.periods.succeeded, limit=_PRUNE_BATCH)
    return 1.0 if pruned >= _PRUNE_BATCH else None


def _check_alerts(alerts: Alerts, interval_sec: float) -> None:
    result = alerts.check(interval_sec=interval_sec)
    if result.fired or result.resolved:
        write = _log.warning if result.fired else _log.info
        write("alerts.changed", started=result.fired, resolved=result.resolved)


def _prune_deliveries(webhooks: Webhooks, keep_sec: float) -> float | None:
    return 1.0 if webhooks.prune(keep_sec=keep_sec, limit=_PRUNE_BATCH) >= _PRUNE_BATCH else None


def _prune_checks(quality: DataQuality) -> float | None:
    return 1.0 if quality.prune(keep_sec=_KEEP_CHECKS_SEC, limit=_PRUNE_BATCH) >= _PRUNE_BATCH else None


class BlockedJobsDuty:
    """Makes blocked jobs ready whose key is free: whatever freed it should have done so."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._cursor = ""
        self._recently_repaired: dict[str, float] = {}  # key → when it was repaired

    def run(self) -> None:
        now = clock()
        self._recently_repaired = {
            key: at for key, at in self._recently_repaired.items() if now - at < _REPAIR_COOLDOWN_SEC
        }
        repaired = self._queue.repair_blocked(
            after=self._cursor, recently_repaired=self._recently_repaired, limit=_REPAIR_BATCH
        )
        self._cursor = repaired.cursor
        self._recently_repaired.update((key, now) for key in repaired.unblocked)
        if repaired.unblocked:
            _log.info("blocked_jobs.repaired", keys=len(repaired.unblocked))


class LimitsDuty:
    """Wakes jobs whose rate lets them start now, and those that wait for a limit that has room."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._cursor = ""

    def run(self) -> float | None:
        result = self._limits.wake(after=self._cursor)
        self._cursor = result.cursor
        if result.repaired:  # the end of a run should have done it
            _log.info("limited_jobs.repaired", jobs=result.repaired)
        if result.cursor:
            return _NEXT_LIMITS_SEC
        return None if result.next_start_in_sec is None else max(_MIN_RATE_INTERVAL_SEC, result.next_start_in_sec)


class RetentionDuty:
    """Deletes old jobs in batches and creates and drops partitions of events and logs."""

    def __init__(self, session: Session, options: MaintenanceOptions) -> None:
        self._session, self._options = session, options
        self._retention = Retention(session, options.periods)
        self._is_hold_logged = False
        self._unlogged_deletions: Counter[tuple[str, str]] = Counter()  # (status, task) → jobs

    def run(self) -> float | None:
        """Delete one batch of jobs. While batches are full, pause as long as each took."""
        started_at = clock()
        for partition in self._retention.create_partitions():
            _log.info("partition.created", partition=partition)
        if not self._options.deletion_enabled or self._is_on_hold():
            return None
        pruned = self._retention.prune(limit=_DELETE_BATCH)
        self._log_deletions(pruned)
        for partition in self._retention.drop_partitions():
            _log.info("partition.dropped", partition=partition)
        self._retention.prune_audit()
        prune_notify_state(self._session)
        return min(_MAX_DELETE_PAUSE_SEC, max(0.05, clock() - started_at)) if pruned.has_more else None

    def _is_on_hold(self) -> bool:
        if self._options.is_retention_requested or not self._retention.is_paused:
            return False
        if not self._is_hold_logged:
            self._is_hold_logged = True
            _log.warning(
                "retention.on_hold",
                detail="the tables were upgraded from version 0, so nothing is deleted; DL_RETENTION_ENABLED=true "
                "deletes what is older than DL_KEEP_…, DL_RETENTION_ENABLED=false keeps everything; "
                "`dataloader prune --dry-run` lists it",
            )
        return True

    def _log_deletions(self, pruned: PrunedBatch) -> None:
        self._unlogged_deletions.update(pruned.jobs)
        if not pruned.has_more:
            for (status, task), jobs in sorted(self._unlogged_deletions.items()):
                _log.info("jobs.deleted", status=status, task=task, jobs=jobs)
            self._unlogged_deletions.clear()
