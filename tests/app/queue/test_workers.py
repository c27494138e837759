"""What worker processes record about themselves, and whose runs may be taken over on a proof."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from dataloader.app.features.webhooks.rows import Webhooks
from dataloader.app.queue.job import ClaimedJob, ReapedJob, Status, new_run_ids
from dataloader.app.queue.workers import HeartbeatResult, HostFacts, WorkerInfo, WorkerLiveness
from dataloader.app.state.queues import Queues
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually

HERE = HostFacts("boot", "pid:[1]", "time:[2]", 4711, 1000, lock_file="/run/x.lock", child_tasks=("apart",))


@pytest.fixture
def deaths(queue_db: QueueFixture) -> WorkerLiveness:
    return WorkerLiveness(queue_db.session)


@pytest.fixture
def heartbeat(queue_db: QueueFixture, deaths: WorkerLiveness) -> Callable[..., HeartbeatResult]:
    def heartbeats(
        worker: UUID, facts: HostFacts = HERE, heartbeat_sec: float = 10, watched: int | None = None, **more: Any
    ) -> HeartbeatResult:
        info = WorkerInfo(worker, f"host:{facts.pid}", "1", ("q",), ("t", "apart"), 1)
        queue_db.queue.beat(worker, [])
        return deaths.send_heartbeat(info, facts, heartbeat_sec=heartbeat_sec, watched=watched, **more)

    return heartbeats


def claimed_by(queue_db: QueueFixture, worker: UUID | None, key: str = "k", task: str = "t") -> ClaimedJob:
    queue_db.enqueue(key, task=task)
    return claim_again(queue_db, worker, task)


def claim_again(queue_db: QueueFixture, worker: UUID | None, task: str = "t") -> ClaimedJob:
    ((run,), _) = queue_db.queue.claim("q", [task], new_run_ids(1), "host:1", worker_id=worker)
    return run


def reap(queue_db: QueueFixture, run: ClaimedJob, worker: UUID | None) -> list[ReapedJob]:
    return queue_db.queue.reap([(run.id, run.run_id, run.lock_key)], pause_sec=5.0, worker_id=worker)


def test_heartbeats_add_no_pages(queue_db: QueueFixture, deaths: WorkerLiveness):
    tasks = tuple(f"load.table_{n}" for n in range(60))
    workers = [WorkerInfo(uuid4(), f"host:{n}", "1", ("q",), tasks, 1) for n in range(20)]
    for worker in workers:
        deaths.send_heartbeat(worker, HERE, heartbeat_sec=10)
    growths = []
    for _ in range(5):  # in one of them no other session of the server has a snapshot that keeps old rows
        before = queue_db.fetch_row("SELECT pg_relation_size('dl_workers')")
        for worker in workers * 4:
            deaths.send_heartbeat(worker, HERE, heartbeat_sec=10)
        growths.append(queue_db.fetch_row("SELECT pg_relation_size('dl_workers')") - before)

    assert 0 in growths


def test_heartbeat_with_a_limit_names_the_next_processes_in_turn(heartbeat: Callable[..., HeartbeatResult]):
    """So each process of a host is watched by as many others, and by none of another host."""
    heartbeat(UUID(int=3), HostFacts("another boot", "pid:[1]", "time:[2]", 1, 1))
    ids = [UUID(int=n) for n in (1, 2, 4, 5, 6)]
    for worker in ids:
        heartbeat(worker)

    watched = {worker: [other.id for other in heartbeat(worker, watched=3).others] for worker in ids}

    for n, worker in enumerate(ids):
        assert set(watched[worker]) == {ids[(n + step) % 5] for step in (1, 2, 3)}
    assert {other.id for other in heartbeat(ids[0]).others} == set(ids[1:])


def test_heartbeat_without_the_list_is_the_same_otherwise(heartbeat: Callable[..., HeartbeatResult]):
    worker = uuid4()
    assert heartbeat(worker, finds_others=False).is_new
    heartbeat(uuid4())

    found = heartbeat(worker, finds_others=False)
    assert (found.is_new, found.has_others, list(found.others)) == (False, False, [])
    assert len(heartbeat(worker).others) == 1


def test_heartbeat_names_processes_of_its_host_and_its_name(heartbeat: Callable[..., HeartbeatResult]):
    first, second, elsewhere, namesake = (uuid4() for _ in range(4))
    assert heartbeat(first).others == ()
    heartbeat(elsewhere, HostFacts("another boot", "pid:[1]", "time:[2]", 1, 1))
    heartbeat(namesake, HostFacts("third boot", "pid:[1]", "time:[2]", 1, 1, worker_name="etl-0"))

    found = heartbeat(second, HostFacts("boot", "pid:[1]", "time:[2]", 12, 1200, worker_name="etl-0"))

    assert {other.id for other in found.others} == {first, namesake}
    assert found.is_new
    assert found.incarnation == 2
    (neighbour,) = (other for other in found.others if other.id == first)
    assert (neighbour.pid, neighbour.start_time, neighbour.lock_file) == (4711, 1000, "/run/x.lock")
    assert not heartbeat(second).is_new


def test_process_without_identity_meets_only_its_namesakes(heartbeat: Callable[..., HeartbeatResult]):
    heartbeat(uuid4(), HostFacts())
    heartbeat(uuid4())
    assert heartbeat(uuid4(), HostFacts()).others == ()


def test_deregistering_deletes_the_row_and_old_rows(queue_db: QueueFixture, heartbeat: Callable[..., HeartbeatResult]):
    worker, silent, recent = uuid4(), uuid4(), uuid4()
    for each in (worker, silent, recent):
        heartbeat(each)
    queue_db.sql("UPDATE dl_workers SET seen_at = now() - interval '2 days' WHERE worker_id = %s", str(silent))
    queue_db.sql("UPDATE dl_workers SET seen_at = now() - interval '2 hours' WHERE worker_id = %s", str(recent))

    WorkerLiveness(queue_db.session).deregister(worker)

    assert queue_db.sql("SELECT worker_id FROM dl_workers") == [(str(recent),)]


def test_heartbeat_says_whether_a_process_leads(queue_db: QueueFixture, heartbeat: Callable[..., HeartbeatResult]):
    worker, leader = uuid4(), queue_db.new_session()
    assert not heartbeat(worker).is_led

    assert Queues(leader).acquire_maintenance_lock()  # the heartbeat before has left no lock
    assert heartbeat(worker).is_led

    leader.close()
    eventually(lambda: not heartbeat(worker).is_led)


def test_heartbeat_says_when_the_next_schedule_comes(queue_db: QueueFixture, heartbeat: Callable[..., HeartbeatResult]):
    worker = uuid4()
    assert heartbeat(worker).next_schedule_in_sec is None
    queue_db.sql(
        "INSERT INTO dl_schedules (name, source, task, overrides, next_at, paused_at)"
        " VALUES ('s', 'people', 't', '{}', now() - interval '9 s', NULL),"
        " ('paused', 'people', 't', '{}', now() - interval '1 h', now()),"
        " ('never', 'people', 't', '{}', 'infinity', NULL)"
    )

    assert heartbeat(worker).next_schedule_in_sec == pytest.approx(-9, abs=2)
    queue_db.sql("DELETE FROM dl_schedules WHERE name = 's'")
    assert heartbeat(worker).next_schedule_in_sec is None


def test_heartbeat_says_whether_a_process_is_silent(queue_db: QueueFixture, heartbeat: Callable[..., HeartbeatResult]):
    worker, silent, older = uuid4(), uuid4(), uuid4()
    assert not heartbeat(worker).has_silent_workers
    heartbeat(silent)
    assert not heartbeat(worker).has_silent_workers

    queue_db.sql("UPDATE dl_heartbeats SET seen_at = now() - interval '21 s' WHERE worker_id = %s", str(silent))
    assert heartbeat(worker).has_silent_workers
    heartbeat(silent)
    heartbeat(older)
    queue_db.sql("DELETE FROM dl_heartbeats WHERE worker_id = %s", str(older))  # a process of an older version
    queue_db.sql("UPDATE dl_workers SET seen_at = now() - interval '19 s' WHERE worker_id = %s", str(older))
    assert not heartbeat(worker).has_silent_workers
    queue_db.sql("UPDATE dl_workers SET seen_at = now() - interval '21 s' WHERE worker_id = %s", str(older))
    assert heartbeat(worker).has_silent_workers


def test_heartbeat_says_whether_the_queues_asked_about_have_jobs(
    queue_db: QueueFixture, heartbeat: Callable[..., HeartbeatResult]
):
    worker = uuid4()
    queue_db.enqueue("k", queue="q")
    assert heartbeat(worker, idle_queues=["other", "q"]).has_ready_jobs
    assert not heartbeat(worker, idle_queues=["other"]).has_ready_jobs
    assert not heartbeat(worker).has_ready_jobs


def test_heartbeat_says_whether_a_scheduled_job_is_due(
    queue_db: QueueFixture, heartbeat: Callable[..., HeartbeatResult]
):
    worker, later = uuid4(), datetime.now(UTC) + timedelta(hours=1)
    job = queue_db.enqueue("k", queue="elsewhere", available_at=later)
    assert not heartbeat(worker, idle_queues=["q"]).has_ready_jobs

    queue_db.make_due(job)
    assert heartbeat(worker, idle_queues=["q"]).has_ready_jobs
    assert not heartbeat(worker).has_ready_jobs


def test_heartbeat_says_whether_work_waits_for_the_leader(
    queue_db: QueueFixture, heartbeat: Callable[..., HeartbeatResult]
):
    worker = uuid4()
    assert not heartbeat(worker).has_waiting_work
    queue_db.enqueue_and_claim("k")
    queue_db.enqueue("k")
    assert queue_db.claim() == []
    assert heartbeat(worker).has_waiting_work


def test_heartbeat_says_whether_a_delivery_is_due(queue_db: QueueFixture, heartbeat: Callable[..., HeartbeatResult]):
    worker = uuid4()
    Webhooks(queue_db.session).add("https://198.51.100.1/hook")
    assert not heartbeat(worker).has_due_deliveries
    queue_db.settle(queue_db.enqueue_and_claim())
    assert heartbeat(worker).has_due_deliveries

    queue_db.sql("UPDATE dl_webhooks SET paused_until = now() + interval '1 h'")
    assert not heartbeat(worker).has_due_deliveries

    queue_db.sql(
        "INSERT INTO dl_deliveries (webhook_id, target, event, body)"
        " SELECT webhook_id, target, event, body FROM dl_deliveries, generate_series(1, 99)"
    )
    assert heartbeat(worker).has_due_deliveries  # it reads a hundred, all of a paused receiver: there may be others


def test_version_of_settings_changes_with_queue_and_drain(
    queue_db: QueueFixture, heartbeat: Callable[..., HeartbeatResult]
):
    worker, queues = uuid4(), Queues(queue_db.session)
    versions = [heartbeat(worker).settings_version, heartbeat(worker).settings_version]
    queues.change_settings("another", per_worker=1)
    versions.append(heartbeat(worker).settings_version)
    assert len(set(versions)) == 1

    queues.change_settings("q", per_worker=1)
    versions.append(heartbeat(worker).settings_version)
    queues.drain_worker(worker, draining=True)
    versions.append(heartbeat(worker).settings_version)
    assert len(set(versions)) == 3


def test_version_of_settings_changes_with_an_older_change(
    queue_db: QueueFixture, heartbeat: Callable[..., HeartbeatResult]
):
    worker, queues = uuid4(), Queues(queue_db.session)
    heartbeat(worker)
    queue_db.sql("UPDATE dl_workers SET queues = '{q,later}'")
    queues.change_settings("q", per_worker=1)
    with queue_db.open_transaction() as step:
        step("UPDATE dl_queues SET per_worker = 2 WHERE queue = 'q'")
        queues.change_settings("later", per_worker=1)
        before = heartbeat(worker).settings_version

    assert heartbeat(worker).settings_version != before


def test_first_heartbeat_is_announced_once(queue_db: QueueFixture, heartbeat: Callable[..., HeartbeatResult]):
    listener, worker = queue_db.listener("dl_control"), uuid4()
    heartbeat(worker)
    heartbeat(worker)
    assert listener.payloads() == [f"started boot {worker}"]


def test_proof_takes_only_runs_of_the_dead_process(queue_db: QueueFixture):
    dead, alive = uuid4(), uuid4()
    run, other = claimed_by(queue_db, dead, "a"), claimed_by(queue_db, alive, "b")

    assert reap(queue_db, other, dead) == []
    assert reap(queue_db, run, alive) == []
    (reaped,) = reap(queue_db, run, dead)

    assert (reaped.job_id, reaped.status, reaped.attempt) == (run.id, Status.QUEUED, 1)
    event = queue_db.queue.events(run.id)[-1]
    assert (event.kind, event.payload["reason"]) == ("requeue", "process_died")
    queue_db.check_invariants()


def test_former_run_of_the_dead_process_is_left_to_its_new_owner(queue_db: QueueFixture):
    dead, alive = uuid4(), uuid4()
    former = claimed_by(queue_db, dead)
    queue_db.release(former)
    claim_again(queue_db, alive)
    assert reap(queue_db, former, dead) == []


def test_first_death_costs_no_pause_and_the_second_does(queue_db: QueueFixture):
    pauses: list[float] = []
    for _ in range(2):
        worker = uuid4()
        run = claim_again(queue_db, worker) if pauses else claimed_by(queue_db, worker)
        reap(queue_db, run, worker)
        pauses.append(
            queue_db.fetch_row("SELECT extract(epoch FROM available_at - clock_timestamp())::float8 FROM dl_jobs")
        )
    assert pauses[0] <= 0
    assert 0 < pauses[1] <= 10
    queue_db.check_invariants()


def test_retry_by_a_person_forgets_earlier_deaths(queue_db: QueueFixture):
    first, second = uuid4(), uuid4()
    run = claimed_by(queue_db, first)
    reap(queue_db, run, first)
    queue_db.settle(claim_again(queue_db, uuid4()), Status.FAILED)
    queue_db.queue.retry(run.id)
    reap(queue_db, claim_again(queue_db, second), second)
    assert queue_db.fetch_row("SELECT available_at <= clock_timestamp() FROM dl_jobs")
    queue_db.check_invariants()


def test_deaths_use_up_the_attempts(queue_db: QueueFixture):
    worker = uuid4()
    run = claimed_by(queue_db, worker)
    queue_db.sql("UPDATE dl_jobs SET max_attempts = 1")
    (reaped,) = reap(queue_db, run, worker)
    assert reaped.status is Status.LOST
    queue_db.check_invariants()


def test_death_of_a_canceled_run_ends_it_as_canceled(queue_db: QueueFixture):
    worker = uuid4()
    run = claimed_by(queue_db, worker)
    queue_db.queue.cancel(run.id)
    (reaped,) = reap(queue_db, run, worker)
    assert reaped.status is Status.CANCELED
    queue_db.check_invariants()


def test_claim_of_an_older_version_is_not_the_dead_process_run(queue_db: QueueFixture):
    """It sets run_id and leaves worker_id as it was; its own end of a run leaves it, too."""
    dead = uuid4()
    run = claimed_by(queue_db, dead)
    old = uuid4()
    queue_db.sql("UPDATE dl_jobs SET run_id = %s", str(old))  # as its claim does after its reaper
    assert queue_db.fetch_row("SELECT worker_id FROM dl_jobs") is None
    assert queue_db.queue.reap([(run.id, old, run.lock_key)], pause_sec=5.0, worker_id=dead) == []


@pytest.mark.parametrize("end", ["settle", "release", "reap"])
def test_end_of_a_run_clears_its_process(queue_db: QueueFixture, end: str):
    worker = uuid4()
    run = claimed_by(queue_db, worker)
    ends: dict[str, Callable[[ClaimedJob], object]] = {
        "settle": queue_db.settle,
        "release": queue_db.release,
        "reap": lambda run: reap(queue_db, run, worker),
    }
    ends[end](run)
    assert queue_db.fetch_row("SELECT worker_id FROM dl_jobs") is None


def test_settlement_of_a_taken_over_run_is_not_ours(queue_db: QueueFixture):
    worker = uuid4()
    run = claimed_by(queue_db, worker)
    reap(queue_db, run, worker)
    assert queue_db.settle(run).outcome == "not ours"


def test_runs_with_a_process_of_their_own_are_marked(
    queue_db: QueueFixture, deaths: WorkerLiveness, heartbeat: Callable[..., HeartbeatResult]
):
    worker = uuid4()
    heartbeat(worker)
    apart, plain = claimed_by(queue_db, worker, "a", "apart"), claimed_by(queue_db, worker, "b")
    assert {run.run_id: run.may_have_child for run in deaths.held_attempts(worker)} == {
        apart.run_id: True,
        plain.run_id: False,
    }


@pytest.fixture
def predecessor(heartbeat: Callable[..., HeartbeatResult]) -> UUID:
    worker = uuid4()
    heartbeat(worker, HostFacts(worker_name="etl-0"))
    return worker


def test_name_is_not_taken_from_a_process_that_heartbeats(
    deaths: WorkerLiveness, heartbeat: Callable[..., HeartbeatResult], predecessor: UUID
):
    asked_at = deaths.request_heartbeat(predecessor)
    assert not heartbeat(predecessor).is_superseded
    assert deaths.supersede(predecessor, by=uuid4(), requested_at=asked_at) is False
    assert not heartbeat(predecessor).is_superseded


def test_name_taken_from_a_silent_process_is_found_later(
    queue_db: QueueFixture, deaths: WorkerLiveness, heartbeat: Callable[..., HeartbeatResult], predecessor: UUID
):
    listener = queue_db.listener("dl_control")
    asked_at = deaths.request_heartbeat(predecessor)
    assert listener.payloads() == [f"heartbeat {predecessor}"]
    assert deaths.supersede(predecessor, by=uuid4(), requested_at=asked_at) is True
    deaths.end_takeover(predecessor)
    found = heartbeat(predecessor)
    assert (found.is_superseded, found.is_new) == (True, False)
    queue_db.sql("DELETE FROM dl_workers")
    assert deaths.supersede(predecessor, by=uuid4(), requested_at=asked_at) is None


def test_one_process_at_a_time_takes_over(deaths: WorkerLiveness, heartbeat: Callable[..., HeartbeatResult]):
    worker = uuid4()
    heartbeat(worker)
    assert deaths.begin_takeover(worker, exclusive_sec=60)
    assert not deaths.begin_takeover(worker, exclusive_sec=60)
    assert deaths.begin_takeover(worker, exclusive_sec=0)
    deaths.end_takeover(worker)
    assert not deaths.begin_takeover(worker, exclusive_sec=0)
    assert heartbeat(uuid4()).others == ()


def test_sessions_of_one_process_alone_are_ended(queue_db: QueueFixture, deaths: WorkerLiveness):
    worker, other = uuid4(), uuid4()
    theirs = queue_db.new_session(application_name=f"dataloader-claim:{worker}")
    others = queue_db.new_session(application_name=f"dataloader-claim:{other}")
    theirs.execute("ping")
    others.execute("ping")
    assert deaths.end_sessions(worker) == 1
    while deaths.end_sessions(worker):
        pass
    assert queue_db.session_count(f"application_name = 'dataloader-claim:{other}'") == 1


def test_process_whose_name_was_taken_claims_nothing(
    queue_db: QueueFixture, deaths: WorkerLiveness, heartbeat: Callable[..., HeartbeatResult]
):
    """It may have been frozen meanwhile, and claim before its next heartbeat."""
    frozen, successor = uuid4(), uuid4()
    heartbeat(frozen, HostFacts("boot", "pid:[1]", "time:[2]", 11, 1, worker_name="etl-0"))
    assert deaths.supersede(frozen, by=successor, requested_at=deaths.request_heartbeat(frozen))
    queue_db.enqueue()

    assert queue_db.queue.claim("q", ["t"], new_run_ids(1), "host:1", worker_id=frozen)[0] == []
    assert claim_again(queue_db, successor)


def test_reap_over_another_connection_takes_nothing(queue_db: QueueFixture):
    run = claimed_by(queue_db, uuid4())
    queue_db.expire_lease(run.id)
    found = queue_db.queue.expired_runs()
    dead = [(run.id, run.run_id, run.lock_key)]

    assert queue_db.new_queue().reap(dead, pause_sec=0, server=found.server) == []
    assert queue_db.queue.reap(dead, pause_sec=0, server=found.server)
