"""For tests of pipelines with a real queue: run ready jobs in the calling thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from dataloader.app.db.connection import Session
from dataloader.app.errors import DatabaseUnavailable, WaitRefused
from dataloader.app.features.schedules.duty import SchedulesDuty
from dataloader.app.features.schedules.rows import Schedule, Schedules, Times, Updates
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import ClaimedJob, Job, ReleaseReason, ReleaseRequest, Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.portable import clock as monotonic
from dataloader.pipelines.toolkit.deprecation import renamed_keywords
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.isolation.run import run_isolated
from dataloader.workers.outcome import Released

_MAX_JOBS = 1_000
_MAX_FIRED = 100  # schedules at a time


@renamed_keywords(most="max_jobs")
def drain(
    dsn: str,
    pipelines: Pipelines,
    queues: Sequence[str],
    *,
    schema: str = "public",
    targets: Mapping[str, str] | None = None,
    max_jobs: int = _MAX_JOBS,
    now: datetime | None = None,
) -> list[Job]:
    """Run all ready jobs of these queues until none is left, with real claims and settlements.

    With `now` schedules fire too, those of the table and those that `pipelines` declare: each nominal time from the
    database's present time to `now`, in order, and after updates of datasets. A job of a schedule with jitter starts at
    once. Schedules that are paused or `off` do not fire.

    Returns each job as it was after its run, in the order of running. Jobs that are retried later, or whose key is
    locked, stay as they are. No lease is renewed: a job has its `lease_ttl_sec`. Raises AssertionError after `max_jobs`
    runs, because a job that keeps enqueueing itself would never end.
    """
    session = Session(dsn, application_name="dataloader-drain", schema=schema)
    try:
        queue = JobQueue(session)
        settings = AttemptSettings(
            connection_settings=ConnectionSettings(dsn=dsn, schema=schema, targets=dict(targets or {})),
            task_limits=pipelines.declared_limits(),
            task_unique_by=pipelines.declared_unique_by(),
            task_defaults=pipelines.declared_defaults(),
            run_isolated=run_isolated,
            isolation_enabled=False,
        )
        clock = None if now is None else _ScheduleClock(session, pipelines)
        jobs: list[Job] = []
        while True:
            while (claimed := _claim(queue, pipelines, queues)) is not None:
                if len(jobs) >= max_jobs:
                    queue.release([ReleaseRequest(claimed, ReleaseReason.NOT_STARTED)])
                    raise AssertionError(f"{max_jobs} jobs were run, and there are still more")
                _run(queue, claimed, pipelines, settings)
                job = queue.get(claimed.id)
                jobs += [] if job is None else [job]
            if clock is None or now is None or not clock.advance(now):
                return jobs
    finally:
        session.close()


class _ScheduleClock:
    """Fires schedules up to a time of one's own, one time after the other."""

    def __init__(self, session: Session, tasks: Pipelines) -> None:
        self._schedules = Schedules(session)
        self._duty = SchedulesDuty(session, tasks, zone="UTC", default_lease_sec=60, record_firing=lambda *_: None)
        known = {schedule.name for schedule in self._schedules.list_by_name()}
        begin = self._schedules.now()
        for declared in tasks.declared_schedules():
            if declared["name"] in known:
                continue
            definition = dict(declared["definition"])
            is_off = definition.pop("off", False)
            times = Times(begin, None if definition["kind"] == "dataset" else begin)
            self._schedules.create(declared["name"], declared["task"], definition, times, is_paused=is_off)

    def advance(self, until: datetime) -> bool:
        """Fire the schedules of the next time that is not later; False: there is none."""
        due = self._schedules.due(limit=_MAX_FIRED)
        if due.updates:
            self._fire(
                [schedule for schedule in due.schedules if schedule.schedule_id in due.updates], due.now, due.updates
            )
            return True
        live = [s for s in self._schedules.list_by_name() if s.paused_at is None and s.orphaned_at is None]
        times = [schedule.next_at for schedule in live if schedule.next_at is not None]
        if not times or min(times) > until:
            return False
        self._fire([schedule for schedule in live if schedule.next_at == min(times)], min(times), {})
        return True

    def _fire(self, schedules: list[Schedule], now: datetime, updates: Mapping[UUID, Updates]) -> None:
        items = [self._duty.plan(schedule, now, updates.get(schedule.schedule_id)) for schedule in schedules]
        for firing in (firing for item in items for firing in item["firings"]):
            firing.get("job", {}).pop("available_at", None)
        _, errors = self._duty.fire(items)
        if errors:
            raise DatabaseUnavailable(next(iter(errors.values())))


def _claim(queue: JobQueue, pipelines: Pipelines, queues: Sequence[str]) -> ClaimedJob | None:
    for name in queues:
        skipped = 1
        while skipped:  # these were blocked by the claim: others may be ready behind them
            claimed, hint = queue.claim(name, pipelines.names, new_run_ids(1), "drain")
            if claimed:
                return claimed[0]
            skipped = hint.skipped
    return None


def _run(queue: JobQueue, job: ClaimedJob, pipelines: Pipelines, settings: AttemptSettings) -> None:
    ((is_locked, is_owned),) = queue.lock_keys([job])
    if not (is_locked and is_owned):
        queue.release([ReleaseRequest(job, ReleaseReason.LOCK_BUSY)])
        return
    outcome = Attempt(job, claimed_at=monotonic(), settings=settings).run(pipelines.get(job.task))
    queue.unlock_keys([job.key_hash])
    if isinstance(outcome, Settlement):
        queue.settle([(job, outcome)])
    elif isinstance(outcome, Released):
        try:
            queue.release([outcome.request_for(job)])
        except WaitRefused as error:
            queue.settle([(job, Settlement(Status.FAILED, error=str(error)))])
