"""How a pool takes over from a process that is dead: its row and its runs are written by the test."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import HeartbeatResult, HostFacts, WorkerInfo, WorkerLiveness
from dataloader.workers.registration import WATCHED, Registration
from dataloader.workers.takeover.death_watch import DeathWatch
from dataloader.workers.takeover.process_identity import Identity, ProcessLock, read_identity
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="proof needs /proc")
SOON = 20.0
OWN_ID = uuid4()  # of the process of `registration`


class Planted:
    """Another worker process, with a job of a minute's lease."""

    def __init__(self, worker_pools: WorkerPoolFixture, folder: Path) -> None:
        self.worker_pools, self.id = worker_pools, uuid4()
        self.lock = ProcessLock()
        self.lock.acquire(self.id, (folder,))
        self._deaths = WorkerLiveness(worker_pools.queue_fixture.session)

    def registers(self, identity: Identity, *, reaps: bool = True, **facts: Any) -> None:
        info = WorkerInfo(self.id, "planted:1", "1", ("planted",), ("quick", "apart"), 1, reaps=reaps)
        result = HostFacts(**{**vars(identity), "lock_file": str(self.lock.path), **facts})
        self._deaths.send_heartbeat(info, result, heartbeat_sec=10)

    def claims(self, task: str = "quick", queue: str = "q") -> UUID:
        job_id = self.worker_pools.add_job(task, lease_ttl_sec=60, queue=queue)
        claimed, _ = self.worker_pools.queue_fixture.queue.claim(
            queue, [task], new_run_ids(1), "planted:1", worker_id=self.id
        )
        assert [job.id for job in claimed] == [job_id]
        return job_id


@pytest.fixture
def planted(worker_pools: WorkerPoolFixture, tmp_path: Path) -> Iterator[Planted]:
    made = Planted(worker_pools, tmp_path)
    yield made
    made.lock.release()


@pytest.fixture
def me() -> Identity:
    found = read_identity()
    assert found is not None
    return found


@pytest.fixture
def dead(me: Identity) -> Identity:
    process = subprocess.Popen(["true"])
    process.wait()
    return replace(me, pid=process.pid)


@pytest.fixture
def registration(worker_pools: WorkerPoolFixture) -> Iterator[Registration]:
    """The row of this process, which no pool's threads write."""
    info = WorkerInfo(OWN_ID, "watching:1", "1", ("q",), ("quick",), 1)
    made = Registration(worker_pools.queue_fixture.session, info, heartbeat_sec=30.0, worker_name=None)
    made.read_identity(())
    yield made
    made.process_lock.release()


def test_job_of_a_reused_pid_is_taken_over(worker_pools: WorkerPoolFixture, planted: Planted, me: Identity):
    """The pid is that of this very process, which started at another time."""
    planted.registers(replace(me, start_time=me.start_time - 1))
    job = planted.claims()
    worker_pools.pool()
    assert worker_pools.wait_for_status(job, Status.SUCCEEDED, SOON).attempt == 2
    eventually(
        lambda: (
            worker_pools.queue_fixture.sql("SELECT worker_id FROM dl_workers WHERE dead_at IS NOT NULL")
            == [(str(planted.id),)]
        )
    )


def test_jobs_of_many_dead_processes_are_taken_over_at_once(
    worker_pools: WorkerPoolFixture, tmp_path: Path, dead: Identity, monkeypatch: pytest.MonkeyPatch
):
    """Each process watches a few others; a heartbeat later it would know the next few."""
    watched: list[int | None] = []  # None: all
    send_heartbeat = WorkerLiveness.send_heartbeat

    def record(liveness: WorkerLiveness, info: WorkerInfo, *args: Any, **options: Any) -> HeartbeatResult:
        if info.id == pool.id:
            watched.append(options["watched"])
        return send_heartbeat(liveness, info, *args, **options)

    planted = [Planted(worker_pools, tmp_path) for _ in range(WATCHED + 4)]
    for other in planted:
        other.registers(dead)
    jobs = [other.claims() for other in planted]
    monkeypatch.setattr(WorkerLiveness, "send_heartbeat", record)
    pool = worker_pools.pool(start=False, heartbeat_sec=30.0)

    pool.start()

    for job in jobs:
        assert worker_pools.wait_for_status(job, Status.SUCCEEDED, SOON).attempt == 2
    assert None in watched

    def watches_few() -> bool:
        WorkerLiveness(worker_pools.queue_fixture.session).request_heartbeat(pool.id)
        return watched[-1] == WATCHED

    eventually(watches_few, SOON, "it watches a few again")
    for other in planted:
        other.lock.release()


def test_only_some_processes_look_at_one_that_starts(
    worker_pools: WorkerPoolFixture, registration: Registration, me: Identity, tmp_path: Path
):
    others = [Planted(worker_pools, tmp_path) for _ in range(WATCHED + 1)]
    for other in others:
        other.registers(me)
        other.lock.release()
    watched = [other.id for other in registration.send_heartbeat().others]
    assert len(watched) == WATCHED
    after = sorted(watched, key=lambda other: (other < OWN_ID, other))

    first, last = UUID(int=(after[0].int + 1) % 2**128), UUID(int=(after[-1].int + 1) % 2**128)

    assert registration.is_heartbeat_requested("started", f"{me.boot_id} {first}")
    assert not registration.is_heartbeat_requested("started", f"{me.boot_id} {last}")
    assert not registration.is_heartbeat_requested("started", f"another {first}")
    assert registration.is_heartbeat_requested("started", me.boot_id)  # an older version names no process


def test_list_of_processes_is_read_at_every_third_heartbeat(registration: Registration, me: Identity):
    assert [registration.send_heartbeat().has_others for _ in range(5)] == [True, False, False, True, False]

    assert registration.is_heartbeat_requested("started", f"{me.boot_id} {uuid4()}")
    assert registration.send_heartbeat().has_others
    registration.watches_all = True
    assert registration.send_heartbeat().has_others
    assert registration.send_heartbeat().has_others


def test_start_that_names_no_process_asks_for_a_heartbeat(
    worker_pools: WorkerPoolFixture, me: Identity, tmp_path: Path
):
    """Any program may notify: a crash of the listening thread would end the process."""
    queue_fixture = worker_pools.queue_fixture
    for _ in range(WATCHED):
        other = Planted(worker_pools, tmp_path)
        other.registers(me)
        other.lock.release()
    pool = worker_pools.listening_pool(heartbeat_sec=30.0)
    count_heartbeats = "SELECT count(*) FROM dl_heartbeats WHERE worker_id = %s"
    eventually(lambda: queue_fixture.fetch_row(count_heartbeats, str(pool.id)))
    before = queue_fixture.fetch_row(count_heartbeats, str(pool.id))

    for command in (f"started another {uuid4()}", "cancel 12", f"started {me.boot_id} 12"):
        queue_fixture.sql("SELECT pg_notify('dl_control', %s)", command)

    eventually(lambda: queue_fixture.fetch_row(count_heartbeats, str(pool.id)) > before, SOON)
    assert worker_pools.crashes == []


def test_process_that_does_not_reap_is_watched_by_all(
    worker_pools: WorkerPoolFixture, registration: Registration, me: Identity, tmp_path: Path
):
    """Those before it on the host may not reap either."""
    others = [Planted(worker_pools, tmp_path) for _ in range(WATCHED + 3)]
    for other in others:
        other.registers(me, reaps=False)
        other.lock.release()

    watched = {other.id for other in registration.send_heartbeat().others}

    assert watched == {other.id for other in others}


def test_job_of_a_live_process_is_left_to_it(
    worker_pools: WorkerPoolFixture, planted: Planted, me: Identity, dead: Identity, tmp_path
):
    planted.registers(me)
    job = planted.claims()
    other = Planted(worker_pools, tmp_path)
    other.registers(dead)
    taken = other.claims()
    worker_pools.pool()
    worker_pools.wait_for_status(taken, Status.SUCCEEDED, SOON)
    assert worker_pools.queue_fixture.status(job) is Status.RUNNING
    other.lock.release()
    worker_pools.queue_fixture.settle(worker_pools.queue_fixture.queue.recover_claim([_run(worker_pools, job)])[0])


@pytest.mark.parametrize("takes_from_others", [True, False])
def test_dead_process_is_left_to_others_without_reaper(
    worker_pools: WorkerPoolFixture,
    planted: Planted,
    dead: Identity,
    takes_from_others: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    planted.registers(dead)
    job = planted.claims()
    looks, run_once, on_heartbeat = list[float](), DeathWatch.run_once, DeathWatch.on_heartbeat
    is_known = threading.Event()

    def record_look(watch: DeathWatch) -> float:
        knows = is_known.is_set()
        interval_sec = run_once(watch)
        if knows:
            looks.append(interval_sec)
        return interval_sec

    def record_heartbeat(watch: DeathWatch, heartbeat: HeartbeatResult) -> None:
        on_heartbeat(watch, heartbeat)
        is_known.set()

    monkeypatch.setattr(DeathWatch, "run_once", record_look)
    monkeypatch.setattr(DeathWatch, "on_heartbeat", record_heartbeat)
    worker_pools.listening_pool({"another": 1}, reaps=takes_from_others)

    def has_looked() -> bool:
        worker_pools.queue_fixture.sql("SELECT pg_notify('dl_control', 'drain')")  # the same thread looks
        return len(looks) >= 3

    eventually(has_looked)
    is_taken = worker_pools.queue_fixture.status(job) is not Status.RUNNING
    assert is_taken is takes_from_others


@pytest.mark.parametrize("elsewhere", [{"boot_id": "x"}, {"pid_namespace": "x"}, {"time_namespace": "x"}])
def test_job_of_another_host_is_left_to_its_lease(
    worker_pools: WorkerPoolFixture, planted: Planted, dead: Identity, tmp_path: Path, elsewhere: dict[str, Any]
):
    planted.registers(replace(dead, **elsewhere))
    job = planted.claims()
    near = Planted(worker_pools, tmp_path)
    near.registers(dead)
    taken = near.claims()
    worker_pools.pool()
    worker_pools.wait_for_status(taken, Status.SUCCEEDED, SOON)
    assert worker_pools.queue_fixture.status(job) is Status.RUNNING
    near.lock.release()
    worker_pools.queue_fixture.settle(worker_pools.queue_fixture.queue.recover_claim([_run(worker_pools, job)])[0])


def _run(worker_pools: WorkerPoolFixture, job: UUID) -> UUID:
    return UUID(str(worker_pools.queue_fixture.fetch_row("SELECT run_id FROM dl_jobs WHERE job_id = %s", str(job))))


def test_sessions_of_a_dead_process_end_before_its_jobs_go_on(
    worker_pools: WorkerPoolFixture, planted: Planted, dead: Identity
):
    """One of them may still be about to commit a claim."""
    planted.registers(dead)
    session = worker_pools.queue_fixture.new_session(application_name=f"dataloader-claim:{planted.id}")
    session.execute_raw("BEGIN")
    ((pid,),) = session.execute_raw("SELECT pg_backend_pid()")
    job = worker_pools.add_job("quick", lease_ttl_sec=60)
    session.execute_raw(
        "UPDATE dl_jobs SET status = 'running', wait_state = 'scheduled', run_id = gen_random_uuid(), attempt = 1,"
        f" worker_id = '{planted.id}', lease_expires_at = now() + interval '1 min' WHERE job_id = '{job}'"
    )
    worker_pools.pool()
    assert worker_pools.wait_for_status(job, Status.SUCCEEDED, SOON).attempt == 1  # the claim has not come to pass
    assert worker_pools.queue_fixture.session_count(f"pid = {pid}") == 0


def test_claim_that_commits_late_is_found(
    worker_pools: WorkerPoolFixture, planted: Planted, dead: Identity, monkeypatch
):
    """The first look finds no run; the claim is committed while the sessions are being ended."""
    planted.registers(dead)
    looks: list[int] = []
    real, committed = WorkerLiveness.end_sessions, list[UUID]()

    def once_late(self: WorkerLiveness, worker_id: UUID) -> int:
        if worker_id == planted.id and not looks:
            looks.append(1)
            return real(self, worker_id)
        if worker_id == planted.id and not committed:
            committed.append(planted.claims(queue="nobody's"))
        return real(self, worker_id)

    monkeypatch.setattr(WorkerLiveness, "end_sessions", once_late)
    worker_pools.queue_fixture.new_session(application_name=f"dataloader-claim:{planted.id}").execute("ping")
    worker_pools.pool()
    eventually(lambda: committed, SOON)
    assert worker_pools.wait_for_status(committed[0], Status.QUEUED, SOON).attempt == 1
    assert worker_pools.event_payloads(committed[0], "requeue")[0]["reason"] == "process_died"


def test_run_with_a_process_waits_for_the_lock_and_others_do_not(
    worker_pools: WorkerPoolFixture, planted: Planted, dead: Identity
):
    worker_pools.pipelines.register("apart")(lambda args: args)
    planted.registers(dead, child_tasks=("apart",))
    apart, plain = planted.claims("apart"), planted.claims("quick")
    worker_pools.pool()
    worker_pools.wait_for_status(plain, Status.SUCCEEDED, SOON)
    assert worker_pools.queue_fixture.status(apart) is Status.RUNNING
    assert planted.lock.descriptor is not None
    os.close(planted.lock.descriptor)
    planted.lock.descriptor = None
    assert worker_pools.wait_for_status(apart, Status.SUCCEEDED, SOON).attempt == 2


def test_run_without_a_lock_file_is_left_to_its_lease(
    worker_pools: WorkerPoolFixture, planted: Planted, dead: Identity
):
    worker_pools.pipelines.register("apart")(lambda args: args)
    planted.registers(dead, child_tasks=("apart",), lock_file=None)
    apart, plain = planted.claims("apart"), planted.claims("quick")
    worker_pools.pool()
    worker_pools.wait_for_status(plain, Status.SUCCEEDED, SOON)
    assert worker_pools.queue_fixture.status(apart) is Status.RUNNING
    worker_pools.queue_fixture.sql(
        "UPDATE dl_jobs SET lease_expires_at = now() - interval '1 s' WHERE status = 'running'"
    )
    worker_pools.wait_for_status(apart, Status.SUCCEEDED, SOON)
    assert worker_pools.event_payloads(apart, "requeue")[0]["reason"] == "lease_expired"


def test_watch_asks_no_question_while_all_live(
    worker_pools: WorkerPoolFixture, registration: Registration, planted: Planted, me: Identity, monkeypatch
):
    """A look at the others is one at /proc."""
    planted.registers(me)
    heartbeat = registration.send_heartbeat()
    assert planted.id in {other.id for other in heartbeat.others}
    asked, session = list[str](), worker_pools.queue_fixture.session
    monkeypatch.setattr(session, "execute", lambda name, *_: asked.append(name))
    watch = DeathWatch(
        WorkerLiveness(session),
        JobQueue(session),
        pause_sec=0.1,
        connection_settings=ConnectionSettings(dsn=worker_pools.dsn, schema="public", targets={}),
        registration=registration,
        name_claim=None,
        request_heartbeat=lambda: asked.append("heartbeat"),
    )
    watch.on_heartbeat(heartbeat)

    for _ in range(3):
        watch.run_once()

    assert asked == []
    monkeypatch.undo()


def test_takeover_that_fails_holds_up_no_other(
    worker_pools: WorkerPoolFixture, dead: Identity, tmp_path: Path, monkeypatch
):
    """One may wait for a key that is held, time after time."""
    stuck, other = Planted(worker_pools, tmp_path), Planted(worker_pools, tmp_path)
    stuck.registers(dead)
    other.registers(dead)
    job_id = other.claims(queue="planted")
    runs_of = WorkerLiveness.held_attempts

    def refuse(deaths: WorkerLiveness, worker_id: UUID) -> Any:
        if worker_id == stuck.id:
            raise DatabaseUnavailable("canceling statement due to statement timeout")
        return runs_of(deaths, worker_id)

    monkeypatch.setattr(WorkerLiveness, "held_attempts", refuse)
    worker_pools.pool()

    worker_pools.wait_for_status(job_id, Status.QUEUED, SOON)
    stuck.lock.release()
    other.lock.release()
