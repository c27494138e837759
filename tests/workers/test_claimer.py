"""A claim whose answer was lost: what is found of it, on real connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from dataloader.app.db.connection import Session
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.claims import ClaimHint, ClaimRequest
from dataloader.app.queue.job import ClaimedJob, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import WorkerInfo
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.claimer import Claimer
from dataloader.workers.key_locks import KeyLocks
from dataloader.workers.running_attempts import RunningAttempts
from tests.support.queue_fixture import TASKS, BackgroundCall, QueueFixture


class QueueWithoutAnswers(JobQueue):
    """Claims over another connection, which the server keeps; no claim has an answer."""

    former: JobQueue
    wait: Callable[[BackgroundCall], object]  # until the claim is as far as the test wants it
    call: BackgroundCall  # the last claim

    def claim(self, *arguments: Any, **options: Any) -> tuple[list[ClaimedJob], ClaimHint]:
        self.call = BackgroundCall(lambda: self.former.claim(*arguments, **options))
        self.wait(self.call)
        raise DatabaseUnavailable("the connection was lost")


@dataclass
class Process:
    queue_db: QueueFixture
    session: Session
    queue: QueueWithoutAnswers
    released: list[Any] = field(default_factory=list)
    claimer: Claimer = field(init=False)

    def __post_init__(self) -> None:
        self.claimer = Claimer(
            WorkerInfo(uuid4(), "worker-1", "1", ("q",), TASKS, 1),
            AttemptSettings(),
            queue=self.queue,
            key_locks=KeyLocks(self.session, self.queue),
            running=RunningAttempts(),
            release=lambda attempt, outcome: self.released.append((attempt.job.id, outcome)),
        )

    def lose_claim(self, *, when: Callable[[BackgroundCall], object]) -> None:
        self.queue.wait = when
        with pytest.raises(DatabaseUnavailable):
            self.claimer.claim("q", 1, ClaimRequest())

    def recover(self) -> list[Attempt]:
        found = self.claimer.recover()
        assert found is not None
        return found[1]


@pytest.fixture
def process(dsn: str) -> Iterator[Process]:
    queue_db = QueueFixture(dsn)
    former, session = (queue_db.new_session(application_name="dataloader-claim:it") for _ in range(2))
    queue = QueueWithoutAnswers(session)
    queue.former = JobQueue(former)
    yield Process(queue_db, session, queue)
    queue_db.close()


def test_keys_of_a_lost_claim_are_taken_from_its_session(process: Process):
    job = process.queue_db.enqueue("k")
    process.lose_claim(when=BackgroundCall.result)

    (attempt,) = process.recover()

    assert (attempt.job.id, process.released) == (job, [])
    assert process.claimer.recover() is None


def test_lost_claim_that_still_executes_is_not_committed_later(process: Process):
    job = process.queue_db.enqueue("k")
    with process.queue_db.open_transaction() as step:
        step("LOCK TABLE dl_jobs IN SHARE MODE")  # jobs can be read
        process.lose_claim(when=lambda call: process.queue_db.wait_for_lock_waiters())

        assert process.recover() == []

    with pytest.raises(DatabaseUnavailable):
        process.queue.call.result()
    found = process.queue_db.job(job)
    assert (found.status, found.attempt) == (Status.QUEUED, 0)
