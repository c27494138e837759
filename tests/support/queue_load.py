"""A process that does to the queue whatever can be done to it, for a while: see tests/app/queue/test_concurrent.py."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from uuid import UUID

from dataloader.app.db.connection import Session
from dataloader.app.errors import IdempotencyConflict, InvalidJob, NotRetryable
from dataloader.app.queue.job import (
    ClaimedJob,
    NewJob,
    Released,
    ReleaseReason,
    RenewalRequest,
    Settlement,
    Status,
    new_run_ids,
)
from dataloader.app.queue.jobs import JobQueue
from tests.support.queue_fixture import list_jobs

KEYS = tuple(f"key {n}" for n in range(6))
QUEUES = ("q0", "q1", "q2")
OUTCOMES = (Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED, Status.QUEUED)


class RandomQueueLoad:
    """Holds some runs, and at each turn does something by chance; a lease is now and then as good as expired."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.session = Session(dsn, application_name=f"storm {seed}")
        self.queue = JobQueue(self.session)
        self.held_attempts: list[ClaimedJob] = []
        self.action_count = 0

    def run(self, seconds: float) -> None:
        moves = [self.enqueue] * 4 + [self.claim] * 8 + [self.settle] * 8 + [self.release] * 2
        moves += [
            self.renew,
            self.cancel,
            self.cancel,
            self.retry,
            self.expire_a_lease,
            self.exhaust_attempts,
            self.reap,
            self.reap,
            self.repair_blocked,
            self.promote,
            self.settle_as_zombie,
        ]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.random.choice(moves)()
            self.action_count += 1
        self.session.close()  # what is held is left for the reaper

    def enqueue(self) -> None:
        asked = NewJob(
            queue=self.random.choice(QUEUES),
            task="t",
            lock_key=self.random.choice(KEYS),
            priority=self.random.randrange(3),
            max_attempts=self.random.randrange(1, 4),
            lease_ttl_sec=1,
            idempotency_key=self.random.choice([None, f"once {self.random.randrange(300)}"]),
            live_key=self.random.choice([None, None, f"live {self.random.randrange(9)}"]),
        )
        with suppress(IdempotencyConflict):
            self.queue.enqueue(asked)

    def claim(self) -> None:
        runs, _ = self.queue.claim(self.random.choice(QUEUES), ["t"], new_run_ids(self.random.randrange(1, 5)), "storm")
        self.held_attempts += runs

    def take_some(self) -> list[ClaimedJob]:
        """Of what is held a few, in any order: a batch of settlements comes as it comes."""
        few = self.random.sample(self.held_attempts, min(len(self.held_attempts), self.random.randrange(1, 4)))
        self.held_attempts = [run for run in self.held_attempts if run not in few]
        return few

    def settle(self) -> None:
        if few := self.take_some():
            self.queue.settle(
                [(run, Settlement(self.random.choice(OUTCOMES), error="e", retry_in_sec=0.0)) for run in few]
            )

    def release(self) -> None:
        if few := self.take_some():
            self.queue.release([(run, Released(self.random.choice(list(ReleaseReason)))) for run in few])

    def renew(self) -> None:
        if self.held_attempts:
            self.queue.renew(
                [RenewalRequest(run.id, run.run_id, {"n": self.action_count}) for run in self.held_attempts]
            )

    def settle_as_zombie(self) -> None:
        """Act as a zombie: continue with half of the held jobs after the worker was reported dead."""
        for run in self.held_attempts[::2]:
            self.queue.reap([(run.id, run.run_id, run.lock_key)], pause_sec=0)

    def any_job(self, *statuses: Status) -> UUID | None:
        jobs = [job for job in list_jobs(self.queue) if not statuses or job.status in statuses]
        return self.random.choice(jobs).id if jobs else None

    def cancel(self) -> None:
        if job_id := self.any_job(Status.QUEUED, Status.RUNNING):
            self.queue.cancel(job_id)

    def retry(self) -> None:
        if job_id := self.any_job():
            with suppress(NotRetryable, InvalidJob):  # a live key may have another job by now
                self.queue.retry(job_id)

    def expire_a_lease(self) -> None:
        """Expire a lease."""
        self.session.execute_raw(
            "UPDATE dl_jobs SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE job_id ="
            " (SELECT job_id FROM dl_jobs WHERE status = 'running' LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)"
        )

    def exhaust_attempts(self) -> None:
        """Another service takes all attempts away from a job that waits."""
        self.session.execute_raw(
            "UPDATE dl_jobs SET max_attempts = 0 WHERE job_id ="
            " (SELECT job_id FROM dl_jobs WHERE status = 'queued' AND attempt = 0"
            "   LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)"
        )

    def reap(self) -> None:
        found = self.queue.expired_runs().runs
        self.queue.reap(found, pause_sec=0)

    def repair_blocked(self) -> None:
        self.queue.repair_blocked(after="")

    def promote(self) -> None:
        self.queue.claim("", [], [], "w")


def main(dsn: str, seed: str, seconds: str) -> None:
    storm = RandomQueueLoad(dsn, int(seed))
    storm.run(float(seconds))
    print("moves:", storm.action_count)  # noqa: T201
