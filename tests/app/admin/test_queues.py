from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from app.admin.queues import Queues, QueueState
from app.errors import WorkerNotFound
from app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support.queue_fixture import BackgroundCall, QueueFixture


@pytest.fixture
def queues(desk: QueueFixture) -> Queues:
    desk.sql("TRUNCATE dl_queues, dl_queue_depths")
    return Queues(desk.session)


def worker(desk: QueueFixture, name: str = "worker-1", *queues: str) -> UUID:
    info = WorkerInfo(uuid4(), name, "1", queues or ("q",), ("t",), 2)
    WorkerLiveness(desk.session).beat(info, heartbeat_sec=60)
    return info.id


def test_paused_queue_is_not_claimed_from_until_opened(desk, queues):
    control = desk.listener("dl_control")
    job_id = desk.enqueue("k")
    for state in (QueueState.PAUSED, QueueState.DRAINING):
        queues.change_settings("q", state=state, changed_by="somebody")
        assert desk.claim() == []
    desk.enqueue("o", queue="other")
    assert len(desk.claim(queue="other")) == 1

    ruled = queues.change_settings("q", state=QueueState.OPEN)

    assert (ruled.state, ruled.changed_by) == (QueueState.OPEN, None)
    assert control.payloads() == ["queue q"] * 3
    assert [run.id for run in desk.claim()] == [job_id]


def test_a_limit_holds_over_all_claims(desk, queues):
    for n in range(5):
        desk.enqueue(f"k{n}")
    queues.change_settings("q", concurrency=2)

    assert len(desk.claim(5)) == 2
    assert desk.claim(5) == []
    queues.change_settings("q", concurrency=3, per_worker=1)
    assert len(desk.claim(5)) == 1
    ruled = queues.change_settings("q", remove_limits=["concurrency"])

    assert (ruled.concurrency, ruled.per_worker) == (None, 1)
    assert len(desk.claim(5)) == 2


def test_two_claimers_never_both_take_the_last_place(desk, queues):
    for n in range(4):
        desk.enqueue(f"k{n}")
    queues.change_settings("q", concurrency=1)
    with desk.open_transaction() as step:
        step("SELECT dl_free_slots('q')")
        step("UPDATE dl_jobs SET status = 'running', run_id = gen_random_uuid() WHERE lock_key = 'k0'")
        blocked = BackgroundCall(desk.new_queue().claim, "q", ["t"], [uuid4()], "w")
        desk.wait_for_lock_waiters()
    claimed, _ = blocked.result()

    assert claimed == []


def test_a_line_tells_how_a_queue_does(desk, queues):
    desk.enqueue_and_claim("k")
    desk.enqueue("k2")
    queues.change_settings("closed", state=QueueState.DRAINING, note="moving house")
    worker(desk)

    closed, line = queues.statuses()

    assert (line.queue, line.ready, line.ready_exact, line.running, line.workers) == ("q", 1, True, 1, 1)
    assert line.oldest_ready_sec is not None
    assert not line.is_drained
    assert (closed.queue, closed.note, closed.is_drained, closed.workers) == ("closed", "moving house", True, 0)
    assert [found.queue for found in queues.statuses(queue="q")] == ["q"]
    assert queues.statuses(queue="nobody's") == []
    assert set(queues.settings()) == {"closed"}


def test_workers_tell_what_they_run_and_one_can_be_drained(desk, queues):
    worker_id = worker(desk)
    run = desk.enqueue_and_claim("k")
    control = desk.listener("dl_control")

    line = queues.drain_worker(worker_id, draining=True)

    assert [held.job_id for held in line.running] == [run.id]
    assert (line.alive, line.draining, line.threads) == (True, True, 2)
    assert not queues.drain_worker(worker_id, draining=False).draining
    assert control.payloads() == [f"drain {worker_id}", f"undrain {worker_id}"]
    with pytest.raises(WorkerNotFound):
        queues.drain_worker(uuid4(), draining=True)
    with pytest.raises(WorkerNotFound):
        queues.worker(uuid4())
