"""A process that does to the queue whatever can be done to it, for a while: see tests/app/queue/test_concurrent.py."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from uuid import UUID

from app.errors import IdempotencyConflict, InvalidJob, NotRetryable
from app.queue.ids import draw_runs
from app.queue.job import Claimed, Handback, NewJob, News, Release, Settlement, Status
from app.queue.jobqueue import JobQueue
from app.queue.session import Session

KEYS = tuple(f"key {n}" for n in range(6))
QUEUES = ("q0", "q1", "q2")
ENDS = (Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED, Status.QUEUED)


class Storm:
    """Holds some runs, and at each turn does something by chance; a lease is now and then as good as expired."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.session = Session(dsn, name=f"storm {seed}")
        self.queue = JobQueue(self.session)
        self.held: list[Claimed] = []
        self.done = 0

    def rage(self, seconds: float) -> None:
        moves = [self.enqueue] * 4 + [self.claim] * 8 + [self.settle] * 8 + [self.release] * 2
        moves += [
            self.renew,
            self.cancel,
            self.cancel,
            self.retry,
            self.age,
            self.refuse,
            self.reap,
            self.reap,
            self.sweep,
            self.promote,
            self.forget,
        ]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.chance.choice(moves)()
            self.done += 1
        self.session.close()  # what is held is left for the reaper

    def enqueue(self) -> None:
        asked = NewJob(
            queue=self.chance.choice(QUEUES),
            task="t",
            lock_key=self.chance.choice(KEYS),
            priority=self.chance.randrange(3),
            max_attempts=self.chance.randrange(1, 4),
            lease_ttl_sec=1,
            idempotency_key=self.chance.choice([None, f"once {self.chance.randrange(300)}"]),
            live_key=self.chance.choice([None, None, f"live {self.chance.randrange(9)}"]),
        )
        with suppress(IdempotencyConflict):
            self.queue.enqueue(asked)

    def claim(self) -> None:
        runs, _ = self.queue.claim(self.chance.choice(QUEUES), ["t"], draw_runs(self.chance.randrange(1, 5)), "storm")
        self.held += runs

    def some(self) -> list[Claimed]:
        """Of what is held a few, in any order: a batch of settlements comes as it comes."""
        few = self.chance.sample(self.held, min(len(self.held), self.chance.randrange(1, 4)))
        self.held = [run for run in self.held if run not in few]
        return few

    def settle(self) -> None:
        if few := self.some():
            self.queue.settle([(run, Settlement(self.chance.choice(ENDS), error="e", retry_in=0.0)) for run in few])

    def release(self) -> None:
        if few := self.some():
            self.queue.release([Handback(run, self.chance.choice(list(Release))) for run in few])

    def renew(self) -> None:
        if self.held:
            self.queue.renew([News(run.id, run.run_id, {"n": self.done}) for run in self.held], late_sec=60)

    def forget(self) -> None:
        """As a zombie: it goes on with half of what it holds after others have been told that it died."""
        for run in self.held[::2]:
            self.queue.reap([(run.id, run.run_id, run.lock_key)], pause_sec=0)

    def any_job(self) -> UUID | None:
        jobs = self.queue.jobs(limit=40)
        return self.chance.choice(jobs).id if jobs else None

    def cancel(self) -> None:
        if job_id := self.any_job():
            self.queue.cancel(job_id)

    def retry(self) -> None:
        if job_id := self.any_job():
            with suppress(NotRetryable, InvalidJob):  # a live key may have another job by now
                self.queue.retry(job_id)

    def age(self) -> None:
        """Somebody's lease runs out."""
        self.session.command(
            "UPDATE dl_jobs SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE job_id ="
            " (SELECT job_id FROM dl_jobs WHERE status = 'running' LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)"
        )

    def refuse(self) -> None:
        """Another service takes all attempts away from a job that waits."""
        self.session.command(
            "UPDATE dl_jobs SET max_attempts = 0 WHERE job_id ="
            " (SELECT job_id FROM dl_jobs WHERE status = 'queued' AND attempt = 0"
            "   LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)"
        )

    def reap(self) -> None:
        found = self.queue.expired().runs
        self.queue.reap(found, pause_sec=0)

    def sweep(self) -> None:
        self.queue.sweep(after="", lately=())

    def promote(self) -> None:
        self.queue.promote()


def main(dsn: str, seed: str, seconds: str) -> None:
    storm = Storm(dsn, int(seed))
    storm.rage(float(seconds))
    print("moves:", storm.done)  # noqa: T201
