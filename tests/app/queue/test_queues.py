from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from app.errors import WorkerNotFound
from app.queue.job import WorkerInfo
from app.queue.queues import Queues, QueueState
from tests.support.desk import Aside, Desk


@pytest.fixture
def queues(desk: Desk) -> Queues:
    desk.sql("TRUNCATE dl_queues, dl_depths")
    return Queues(desk.session)


def worker(desk: Desk, name: str = "worker-1", *queues: str) -> UUID:
    info = WorkerInfo(uuid4(), name, "1", queues or ("q",), ("t",), 2)
    desk.queue.register_worker(info, heartbeat_sec=60)
    return info.id


def test_nothing_is_claimed_from_a_paused_queue_until_it_is_open_again(desk, queues):
    control = desk.listener("dl_control")
    job_id = desk.enqueue("k")
    for state in (QueueState.PAUSED, QueueState.DRAINING):
        queues.rule("q", state=state, by="somebody")
        assert desk.claim() == []
    desk.enqueue("o", queue="other")
    assert len(desk.claim(queue="other")) == 1

    ruled = queues.rule("q", state=QueueState.OPEN)

    assert (ruled.state, ruled.changed_by) == (QueueState.OPEN, None)
    assert control.heard() == ["queue q"] * 3
    assert [run.id for run in desk.claim()] == [job_id]


def test_a_limit_holds_over_all_claims(desk, queues):
    for n in range(5):
        desk.enqueue(f"k{n}")
    queues.rule("q", concurrency=2)

    assert len(desk.claim(5)) == 2
    assert desk.claim(5) == []
    queues.rule("q", concurrency=3, per_worker=1)
    assert len(desk.claim(5)) == 1
    ruled = queues.rule("q", unlimit=["concurrency"])

    assert (ruled.concurrency, ruled.per_worker) == (None, 1)
    assert len(desk.claim(5)) == 2


def test_two_claimers_never_both_take_the_last_place(desk, queues):
    for n in range(4):
        desk.enqueue(f"k{n}")
    queues.rule("q", concurrency=1)
    with desk.held() as step:
        step("SELECT dl_room('q')")
        step("UPDATE dl_jobs SET status = 'running', run_id = gen_random_uuid() WHERE lock_key = 'k0'")
        blocked = Aside(desk.another().claim, "q", ["t"], [uuid4()], "w")
        desk.until_blocked()
    claimed, _ = blocked.result()

    assert claimed == []


def test_a_line_tells_how_a_queue_does(desk, queues):
    desk.claimed("k")
    desk.enqueue("k2")
    queues.rule("closed", state=QueueState.DRAINING, note="moving house")
    worker(desk)

    closed, line = queues.lines()

    assert (line.queue, line.ready, line.ready_exact, line.running, line.workers) == ("q", 1, True, 1, 1)
    assert line.oldest_ready_sec is not None
    assert not line.drained
    assert (closed.queue, closed.rule.note, closed.drained, closed.workers) == ("closed", "moving house", True, 0)
    assert [found.queue for found in queues.lines(queue="q")] == ["q"]
    assert queues.lines(queue="nobody's") == []
    assert set(queues.rules()) == {"closed"}


def test_workers_tell_what_they_run_and_one_can_be_drained(desk, queues):
    worker_id = worker(desk)
    run = desk.claimed("k")
    control = desk.listener("dl_control")

    line = queues.drain_worker(worker_id, draining=True)

    assert [held.job_id for held in line.running] == [run.id]
    assert (line.alive, line.draining, line.threads) == (True, True, 2)
    assert not queues.drain_worker(worker_id, draining=False).draining
    assert control.heard() == [f"drain {worker_id}", f"undrain {worker_id}"]
    with pytest.raises(WorkerNotFound):
        queues.drain_worker(uuid4(), draining=True)
    with pytest.raises(WorkerNotFound):
        queues.worker(uuid4())
