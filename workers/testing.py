"""For tests of pipelines with a real queue: run ready jobs in the calling thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.db.connection import Session
from app.errors import WaitRefused
from app.queue.attempt_sessions import ConnectionSettings
from app.queue.job import ClaimedJob, Job, ReleaseReason, ReleaseRequest, Settlement, Status, new_run_ids
from app.queue.jobs import JobQueue
from pipelines.contract import Pipelines
from pipelines.toolkit.deprecation import renamed_keywords
from workers.attempt import Attempt, AttemptSettings
from workers.isolation.run import run_isolated
from workers.outcome import Released
from workers.threads import clock

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
) -> list[Job]:
    """Run all ready jobs of these queues until none is left, with real claims and settlements.

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
            run_isolated=run_isolated,
            isolation_enabled=False,
        )
        jobs: list[Job] = []
        while (claimed := _claim(queue, pipelines, queues)) is not None:
            if len(jobs) >= max_jobs:
                queue.release([ReleaseRequest(claimed, ReleaseReason.NOT_STARTED)])
                raise AssertionError(f"{max_jobs} jobs were run, and there are still more")
            _run(queue, claimed, pipelines, settings)
            job = queue.get(claimed.id)
            jobs += [] if job is None else [job]
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
        queue.release([ReleaseRequest(job, ReleaseReason.LOCK_BUSY)])
        return
    outcome = Attempt(job, claimed_at=clock(), settings=settings).run(pipelines.get(job.task))
    queue.unlock_keys([job.key_hash])
    if isinstance(outcome, Settlement):
        queue.settle([(job, outcome)])
    elif isinstance(outcome, Released):
        try:
            queue.release([outcome.request_for(job)])
        except WaitRefused as error:
            queue.settle([(job, Settlement(Status.FAILED, error=str(error)))])
