"""For tests of pipelines with a real queue: run ready jobs in the calling thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import uuid4

from dataloader.app.acts.feature import load_all
from dataloader.app.db.connection import Session
from dataloader.app.errors import WaitRefused
from dataloader.app.features.registry import FEATURES
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import ClaimedJob, Job, Released, ReleaseReason, Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.portable import clock as monotonic
from dataloader.pipelines.toolkit.deprecation import renamed_keywords
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.duties import Declaration, MaintenanceOptions, declare_all
from dataloader.workers.isolation.run import run_isolated

_MAX_JOBS = 1_000


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
    """Run all ready jobs of these queues until none is left, with real claims and settlements. Jobs of failure handlers
    are made and circuit breakers count, as by workers. Time limits end nothing.

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
        by_clock = {feature.name for feature in FEATURES if feature.test_clock is not None}  # they declare with `now`
        declaration = Declaration(session, pipelines, uuid4(), MaintenanceOptions())
        declare_all((feature for feature in FEATURES if feature.name not in by_clock), declaration)
        settings = AttemptSettings(
            connection_settings=ConnectionSettings(dsn=dsn, schema=schema, targets=dict(targets or {})),
            declared_job_fields=pipelines.declared_job_fields(),
            run_isolated=run_isolated,
            isolation_enabled=False,
        )
        clocks = [] if now is None else [make(session, pipelines) for make in load_all(FEATURES, "test_clock")]
        jobs: list[Job] = []
        while True:
            while (claimed := _claim(queue, pipelines, queues)) is not None:
                if len(jobs) >= max_jobs:
                    queue.release([(claimed, Released(ReleaseReason.NOT_STARTED))])
                    raise AssertionError(f"{max_jobs} jobs were run, and there are still more")
                _run(queue, claimed, pipelines, settings)
                job = queue.get(claimed.id)
                jobs += [] if job is None else [job]
            if not any(clock.advance(now) for clock in clocks):
                return jobs
    finally:
        session.close()


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
        queue.release([(job, Released(ReleaseReason.LOCK_BUSY))])
        return
    outcome = Attempt(job, claimed_at=monotonic(), settings=settings).run(pipelines.get(job.task))
    queue.unlock_keys([job.key_hash])
    if isinstance(outcome, Settlement):
        queue.settle([(job, outcome)])
    elif isinstance(outcome, Released):
        try:
            queue.release([(job, outcome)])
        except WaitRefused as error:
            queue.settle([(job, Settlement(Status.FAILED, error=str(error)))])
