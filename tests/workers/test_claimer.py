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
from dataloader.app.queue.job import ClaimedJob, Released, ReleaseReason, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import NotifyStateTable, WorkerInfo
from dataloader.pipelines.retry import Fixed
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.claimer import Claimer
from dataloader.workers.dispatcher import Dispatcher
from dataloader.workers.key_locks import KeyLocks
from dataloader.workers.listener import NoListener
from dataloader.workers.notify_state import UnwantedNotifications
from dataloader.workers.running_attempts import RunningAttempts
from tests.support.queue_fixture import TASKS, BackgroundCall, QueueFixture
from tests.support.worker_pool_fixture import WorkerPoolFixture


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


def dispatcher_of(process: Process) -> Dispatcher:
    """Without an idle thread, so that it claims nothing."""
    return Dispatcher(
        {"q": 1},
        claimer=process.claimer,
        listener=NoListener(),
        notify_state=UnwantedNotifications(NotifyStateTable(process.session, uuid4())),
        poll_policies={"q": Fixed(60.0)},
        on_control=lambda command: None,
    )


def test_lost_claim_is_looked_up_while_all_threads_are_busy(process: Process):
    job, dispatcher = process.queue_db.enqueue("k"), dispatcher_of(process)
    process.lose_claim(when=BackgroundCall.result)

    dispatcher.release_stale()

    assert [attempt.job.id for attempt, _ in dispatcher.queues["q"].attempts] == [job]


def test_lost_claim_is_looked_up_and_released_at_a_stop(process: Process):
    job, dispatcher = process.queue_db.enqueue("k"), dispatcher_of(process)
    process.lose_claim(when=BackgroundCall.result)
    dispatcher.stop()

    assert dispatcher.next_attempt(dispatcher.queues["q"]) is None
    assert process.released == [(job, Released(ReleaseReason.SHUTDOWN))]


def test_thread_ends_at_a_stop_though_the_database_is_away(process: Process, empty_dsn: str):
    process.queue_db.enqueue("k")
    nowhere = Session(empty_dsn + " port=1", application_name="nowhere", connect_timeout_sec=0.5)
    away = Process(process.queue_db, nowhere, QueueWithoutAnswers(nowhere))
    away.queue.former = process.queue.former
    away.lose_claim(when=BackgroundCall.result)
    dispatcher = dispatcher_of(away)
    dispatcher.stop()

    assert dispatcher.next_attempt(dispatcher.queues["q"]) is None
    assert (away.released, away.claimer.is_unconfirmed) == ([], True)


def test_job_of_a_claim_lost_at_a_stop_is_queued_without_an_attempt(
    worker_pools: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch
):
    pool, claim = worker_pools.listening_pool({"q": 1}), JobQueue.claim

    def lose_answer(queue: JobQueue, *arguments: Any, **options: Any) -> tuple[list[ClaimedJob], ClaimHint]:
        answer = claim(queue, *arguments, **options)
        if answer[0]:
            pool.stop_claiming()
            raise DatabaseUnavailable("the connection was lost")
        return answer

    monkeypatch.setattr(JobQueue, "claim", lose_answer)
    job_id = worker_pools.add_job(max_attempts=1)
    worker_pools.wait_for_status(job_id, Status.RUNNING)

    assert pool.stop(grace=10)
    job = worker_pools.queue_fixture.job(job_id)
    assert (job.status, job.attempt, worker_pools.run_keys) == (Status.QUEUED, 0, [])
