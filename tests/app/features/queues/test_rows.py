from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from dataloader.app.db.statements import statements
from dataloader.app.errors import WorkerNotFound
from dataloader.app.queue.job import new_run_ids
from dataloader.app.queue.queues import QueueState
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.app.state.queues import Queues
from tests.support.queue_fixture import BackgroundCall, QueueFixture


@pytest.fixture
def queues(queue_db: QueueFixture) -> Queues:
    queue_db.sql("TRUNCATE dl_queues, dl_queue_depths")
    return Queues(queue_db.session)


def worker(queue_db: QueueFixture, name: str = "worker-1", *queues: str) -> UUID:
    info = WorkerInfo(uuid4(), name, "1", queues or ("q",), ("t",), 2)
    WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=60)
    return info.id


def test_paused_queue_is_not_claimed_from_until_opened(queue_db, queues):
    control = queue_db.listener("dl_control")
    job_id = queue_db.enqueue("k")
    for state in (QueueState.PAUSED, QueueState.DRAINING):
        queues.change_settings("q", state=state, changed_by="somebody")
        assert queue_db.claim() == []
    queue_db.enqueue("o", queue="other")
    assert len(queue_db.claim(queue="other")) == 1

    ruled = queues.change_settings("q", state=QueueState.OPEN)

    assert (ruled.state, ruled.changed_by) == (QueueState.OPEN, None)
    assert control.payloads() == ["queue q"] * 3
    assert [run.id for run in queue_db.claim()] == [job_id]


def test_a_limit_holds_over_all_claims(queue_db, queues):
    for n in range(5):
        queue_db.enqueue(f"k{n}")
    queues.change_settings("q", concurrency=2)

    assert len(queue_db.claim(5)) == 2
    assert queue_db.claim(5) == []
    queues.change_settings("q", concurrency=3, per_worker=1)
    assert len(queue_db.claim(5)) == 1
    ruled = queues.change_settings("q", remove=["concurrency"])

    assert (ruled.concurrency, ruled.per_worker) == (None, 1)
    assert len(queue_db.claim(5)) == 2


def test_two_claimers_never_both_take_the_last_place(queue_db, queues):
    for n in range(4):
        queue_db.enqueue(f"k{n}")
    queues.change_settings("q", concurrency=1)
    with queue_db.open_transaction() as step:
        step("SELECT dl_free_slots('q')")
        step("UPDATE dl_jobs SET status = 'running', run_id = gen_random_uuid() WHERE lock_key = 'k0'")
        blocked = BackgroundCall(queue_db.new_queue().claim, "q", ["t"], [uuid4()], "w")
        queue_db.wait_for_lock_waiters()
    claimed, _ = blocked.result()

    assert claimed == []


def test_line_shows_state_of_queue(queue_db, queues):
    queue_db.enqueue_and_claim("k")
    queue_db.enqueue("k2")
    queues.change_settings("closed", state=QueueState.DRAINING, note="moving house")
    worker(queue_db)

    closed, line = queues.statuses()

    assert (line.queue, line.ready, line.ready_exact, line.running, line.workers) == ("q", 1, True, 1, 1)
    assert line.oldest_ready_sec is not None
    assert not line.is_drained
    assert (closed.queue, closed.note, closed.is_drained, closed.workers) == ("closed", "moving house", True, 0)
    assert [found.queue for found in queues.statuses(queue="q")] == ["q"]
    assert queues.statuses(queue="nobody's") == []
    assert set(queues.settings()) == {"closed"}


def test_worker_would_lose_what_ran_without_checkpoint(queue_db, queues):
    worker(queue_db)
    for key, minutes, checkpoint in (("a", 10, None), ("b", 5, None), ("c", 60, "1")):
        run = queue_db.enqueue_and_claim(key)
        queue_db.sql(
            "UPDATE dl_jobs SET started_at = now() - interval '1 day', checkpoint = %s WHERE job_id = %s",
            checkpoint,
            str(run.id),
        )
        queue_db.sql(
            "UPDATE dl_job_events SET ts = now() - make_interval(mins => %s) WHERE job_id = %s AND kind = 'picked'",
            minutes,
            str(run.id),
        )

    (line,) = queues.workers()

    assert line.would_lose_sec == pytest.approx(900, abs=30)


def test_jobs_of_a_former_process_of_the_same_name_are_its_own(queue_db, queues):
    former, restarted = worker(queue_db), worker(queue_db)
    claimed = {}
    for key, worker_id in (("former", former), ("restarted", restarted), ("of release 0.3.0", None)):
        queue_db.enqueue(key)
        ((run,), _) = queue_db.queue.claim("q", ["t"], new_run_ids(1), "worker-1", worker_id=worker_id)
        claimed[key] = run.id

    running = {line.worker_id: [job.job_id for job in line.running] for line in queues.workers()}

    assert running == {
        former: [claimed["former"], claimed["of release 0.3.0"]],
        restarted: [claimed["restarted"], claimed["of release 0.3.0"]],
    }


def test_workers_list_their_jobs_and_can_be_drained(queue_db, queues):
    worker_id = worker(queue_db)
    run = queue_db.enqueue_and_claim("k")
    control = queue_db.listener("dl_control")

    line = queues.drain_worker(worker_id, draining=True)

    assert [held.job_id for held in line.running] == [run.id]
    assert (line.alive, line.draining, line.threads) == (True, True, 2)
    assert not queues.drain_worker(worker_id, draining=False).draining
    assert control.payloads() == [f"drain {worker_id}", f"undrain {worker_id}"]
    with pytest.raises(WorkerNotFound):
        queues.drain_worker(uuid4(), draining=True)
    with pytest.raises(WorkerNotFound):
        queues.worker(uuid4())


def test_next_jobs_are_in_claim_order(queue_db, queues):
    late = queue_db.enqueue("late", priority=200)
    first = queue_db.enqueue("first", priority=5)
    queue_db.enqueue("other", queue="other")

    found = queues.next_jobs("q")

    assert [job.job_id for job in found] == [first, late]
    assert [job.job_id for job in queues.next_jobs("q", limit=1)] == [first]


def test_tenants_are_counted_with_their_weights(queue_db, queues):
    queues.change_settings("q", fair="args.tenant", weights={"acme": 3})
    for number in range(2):
        queue_db.enqueue(f"a{number}", args={"tenant": "acme"})
    queue_db.enqueue("b", args={"tenant": "beta"})

    assert [(tenant.name, tenant.ready, tenant.running, tenant.weight) for tenant in queues.tenants("q")] == [
        ("acme", 2, 0, 3),
        ("beta", 1, 0, 1),
    ]


def test_question_for_a_leader_keeps_no_lock_until_commit(queue_db):
    leader, sql = queue_db.new_session(), statements("public")["is_maintenance_lock_held"].text
    with queue_db.open_transaction() as step:
        assert step(sql) == [(False,)]
        assert Queues(leader).acquire_maintenance_lock()
        assert step(sql) == [(True,)]
    leader.close()
