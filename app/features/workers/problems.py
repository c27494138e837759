"""The part of the overview: worker processes that are gone or poll."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

from dataloader.app.acts.service_problems import MAX_OF_A_KIND, Impact, Problem, ProblemAct
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.state.queues import read_worker_statuses
from dataloader.app.wording import format_count

_STARTUP_PERIOD = timedelta(seconds=20)  # in which a worker may still connect its listener


def worker_problems(reads: SharedReads) -> Iterator[Problem]:
    workers = reads.get(read_worker_statuses)
    if not any(worker.alive for worker in workers):
        yield Problem(
            kind="no worker",
            subject=("service", "workers"),
            impact=Impact.NO_PROCESS,
            state="alert",
            before="No live worker: no job will run.",
            since=max((worker.last_beat_at for worker in workers), default=None),
            acts=(ProblemAct("Workers", "/workers"),),
        )
    for worker in islice(workers, MAX_OF_A_KIND):
        subject, acts = ("worker", worker.name), (ProblemAct("Workers", "/workers"),)
        if not worker.alive:
            lost = f"; it ran {format_count(len(worker.running), 'job')}" if worker.running else ""
            yield Problem(
                kind="worker lost",
                subject=subject,
                impact=Impact.NO_PROCESS,
                state="alert" if worker.running else "warning",
                before="Worker ",
                after=f" sends no heartbeat{lost}",
                since=worker.last_beat_at,
                acts=acts,
                covers=frozenset({"dead_worker"}),
            )
        elif worker.has_lost_notifications and worker.last_beat_at - worker.started_at > _STARTUP_PERIOD:
            yield Problem(
                kind="polling",
                subject=subject,
                impact=Impact.NO_PROCESS,
                before="Worker ",
                after=f" is not receiving notifications ({worker.listener}), polling",
                acts=acts,
            )


def count_live(reads: SharedReads) -> int:
    return sum(worker.alive for worker in reads.get(read_worker_statuses))
