"""For tests of pipelines with a real queue: run what is ready here and now, without threads and without waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.queue.attempt_sessions import Places
from app.queue.ids import draw_runs
from app.queue.job import Claimed, Handback, Job, Release, Settlement
from app.queue.jobqueue import JobQueue
from app.queue.session import Session
from pipelines.contract import Pipelines
from workers.attempt import Attempt, Tools
from workers.outcome import Ending, HandedBack
from workers.threads import clock

_MOST = 1_000


def drain(
    dsn: str,
    pipelines: Pipelines,
    queues: Sequence[str],
    *,
    schema: str = "public",
    targets: Mapping[str, str] | None = None,
    most: int = _MOST,
) -> list[Job]:
    """Run all ready jobs of these queues in the calling thread, with real claims and settlements, until none is left.

    Returns each job as it was after its run, in the order of running. Jobs that are tried again later, or wait for
    another's key, stay where they are. Nothing renews a lease: a job has as long as its `lease_ttl_sec`. AssertionError
    after `most` runs: a job that asks for itself again and again would never end.
    """
    session = Session(dsn, name="dataloader-drain", schema=schema)
    try:
        queue = JobQueue(session)
        tools = Tools(places=Places(dsn=dsn, schema=schema, targets=dict(targets or {})), isolates=False)
        ran: list[Job] = []
        while (job := _claim(queue, pipelines, queues)) is not None:
            if len(ran) >= most:
                queue.release([Handback(job, Release.NOT_STARTED)])
                raise AssertionError(f"{most} jobs were run, and there are still more")
            _run(queue, job, pipelines, tools)
            after = queue.get(job.id)
            ran += [] if after is None else [after]
        return ran
    finally:
        session.close()


def _claim(queue: JobQueue, pipelines: Pipelines, queues: Sequence[str]) -> Claimed | None:
    for name in queues:
        skipped = 1
        while skipped:  # parked meanwhile: others may be ready behind them
            claimed, outlook = queue.claim(name, pipelines.names, draw_runs(1), "drain")
            if claimed:
                return claimed[0]
            skipped = outlook.skipped
    return None


def _run(queue: JobQueue, job: Claimed, pipelines: Pipelines, tools: Tools) -> None:
    ((locked, owned),) = queue.guard([job.run])
    if not (locked and owned):
        queue.release([Handback(job, Release.LOCK_BUSY)])
        return
    ending = Attempt(job, claimed_at=clock(), tools=tools).run(pipelines.get(job.task))
    _write(queue, job, ending)


def _write(queue: JobQueue, job: Claimed, ending: Ending) -> None:
    guards = [job.key_hash]
    match ending:
        case Settlement():
            queue.settle([(job, ending)], guards=guards)
        case HandedBack(why, left):
            queue.release([Handback(job, why, left.progress, left.checkpoint, left.notes)], guards=guards)
        case _:  # the pipeline has settled it, or lost it
            queue.unguard(guards)
