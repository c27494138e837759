"""Connections that break, fall silent or come back, under a pool that works."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dataloader.app.db.connection import Row, Session
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import StopReason
from dataloader.workers.claimer import Claimer
from tests.support.private_server import PrivateServer
from tests.support.proxy import SilentProxy
from tests.support.queue_fixture import BackgroundCall
from tests.support.recording import record_attempts, record_calls
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import CONNECTION_ROLES, WorkerPoolFixture

SOON = 30.0


@pytest.fixture
def far_worker_pools(server: PrivateServer) -> Iterator[WorkerPoolFixture]:
    """Worker pools on a server of their own, to be restarted."""
    made = WorkerPoolFixture(server.dsn)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("role", CONNECTION_ROLES)
def test_a_lost_connection_costs_no_job_and_no_attempt(worker_pools: WorkerPoolFixture, role: str):
    worker_pools.listening_pool({"q": 3})
    jobs = [worker_pools.add_job(key=f"k{n % 7}", args={"n": n}) for n in range(40)]
    eventually(lambda: len(worker_pools.run_keys) > 3)

    worker_pools.terminate_connection(role)
    jobs += [worker_pools.add_job(key=f"k{n % 7}", args={"n": n}) for n in range(40, 80)]

    worker_pools.wait_for_all(jobs)
    assert sorted(worker_pools.run_keys, key=int) == [str(n) for n in range(80)]
    assert worker_pools.queue_fixture.fetch_row("SELECT max(attempt) FROM dl_jobs") == 1
    eventually(lambda: worker_pools.connections().keys() == set(CONNECTION_ROLES), SOON)


def test_lost_listener_is_logged_and_listens_again(worker_pools: WorkerPoolFixture, logged):
    pool = worker_pools.listening_pool()
    hearings = set()
    gone = threading.Event()

    def watch() -> None:
        while not gone.is_set():
            hearings.add((pool.state().listener, pool.state().self_test_age_sec is None))

    watching = BackgroundCall(watch)
    worker_pools.terminate_connection("listen")
    eventually(lambda: logged("listener.disconnected"), SOON)
    eventually(lambda: pool.state().listener == "listening", SOON)
    gone.set()
    watching.result()

    assert ("disconnected", True) in hearings
    worker_pools.wait_for_status(worker_pools.add_job(), Status.SUCCEEDED, SOON)


def test_pool_without_listener_polls(worker_pools: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch):
    pool, execute = worker_pools.listening_pool(), Session.execute_raw

    def refuse_to_listen(session: Session, sql: str) -> list[Row]:
        if "LISTEN" in sql:
            raise DatabaseUnavailable("no more connections of this role")
        return execute(session, sql)

    monkeypatch.setattr(Session, "execute_raw", refuse_to_listen)
    worker_pools.terminate_connection("listen")
    claims = record_calls(monkeypatch, Claimer, "claim")
    eventually(lambda: len(claims) > 3, SOON)  # the first ones look again for unknown tasks

    worker_pools.wait_for_status(worker_pools.add_job(), Status.SUCCEEDED, SOON)

    assert pool.state().listener == "disconnected"


def test_keys_are_locked_again_after_their_session_was_killed(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool()
    job = worker_pools.add_job("held", "precious")
    worker_pools.gate.wait_for_inside(1)
    taken = "SELECT pg_try_advisory_xact_lock(hashtext('precious'))"
    assert worker_pools.queue_fixture.fetch_row(taken) is False

    worker_pools.terminate_connection("claim")

    eventually(lambda: worker_pools.queue_fixture.fetch_row(taken) is False, SOON)
    worker_pools.gate.open()
    worker_pools.wait_for_status(job, Status.SUCCEEDED, SOON)
    eventually(lambda: worker_pools.queue_fixture.fetch_row(taken) is True, SOON)


def test_attempt_whose_key_lock_was_lost_is_stopped(worker_pools: WorkerPoolFixture, logged):
    worker_pools.listening_pool()
    job_id = worker_pools.add_job("held", "precious")
    worker_pools.gate.wait_for_inside(1)
    thief = BackgroundCall(
        worker_pools.queue_fixture.sql, "SELECT pg_advisory_lock(hashtext('precious'))"
    )  # waits, and is next in turn

    with worker_pools.queue_fixture.open_transaction() as step:
        eventually(lambda: step("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'")[0][0])
        step("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dataloader-claim:%%'")

    thief.result()
    eventually(lambda: worker_pools.stop_reasons, SOON)
    assert [line["lock_key"] for line in logged("key_lock.lost")] == ["precious"]
    assert worker_pools.stop_reasons == ["key_lost"]
    assert (
        worker_pools.wait_for_status(job_id, Status.QUEUED).attempt == 0
    )  # it waits for the key, and that costs nothing
    assert worker_pools.event_payloads(job_id, "requeue")[0]["reason"] == "lock_busy"
    worker_pools.queue_fixture.sql("SELECT pg_advisory_unlock_all()")


def test_settlement_is_retried_through_an_outage(far_worker_pools: WorkerPoolFixture, server, caplog):
    far_worker_pools.pool({"q": 2})
    job = far_worker_pools.add_job("held", lease_ttl_sec=60)
    far_worker_pools.gate.wait_for_inside(1)
    far_worker_pools.queue_fixture.close()
    server.crash()
    far_worker_pools.gate.open()
    logged = caplog.records
    eventually(
        lambda: [r for r in logged if (r.getMessage(), r.threadName) == ("database.unavailable", "settler")], SOON
    )

    server.start()

    far_worker_pools.queue_fixture = type(far_worker_pools.queue_fixture)(server.dsn)
    done = far_worker_pools.wait_for_status(job, Status.SUCCEEDED, SOON)
    assert done.attempt == 1
    far_worker_pools.queue_fixture.check_invariants()


def test_settlement_is_given_up_with_an_untrusted_lease(far_worker_pools: WorkerPoolFixture, server, logged):
    far_worker_pools.pool({"q": 2}, reaper_period_sec=60.0)
    job = far_worker_pools.add_job("stubborn", lease_ttl_sec=2)
    far_worker_pools.gate.wait_for_inside(1)
    far_worker_pools.queue_fixture.close()
    server.stop()
    eventually(lambda: logged("lease.lost"), SOON)

    far_worker_pools.gate.open()

    (line,) = eventually(lambda: logged("attempt.abandoned"), SOON)
    assert line["job"] == str(job)
    server.start()
    far_worker_pools.queue_fixture = type(far_worker_pools.queue_fixture)(server.dsn)
    assert far_worker_pools.queue_fixture.status(job) is Status.RUNNING


@pytest.mark.parametrize("end", ["restart", "crash"])
def test_attempts_that_survive_a_restart_are_not_reaped(far_worker_pools: WorkerPoolFixture, server, end: str, logged):
    pool = far_worker_pools.pool({"q": 4}, reaper_period_sec=0.05)
    jobs = [far_worker_pools.add_job("held", lease_ttl_sec=60) for _ in range(4)]
    far_worker_pools.gate.wait_for_inside(4)
    far_worker_pools.queue_fixture.close()

    getattr(server, end)()
    if end == "crash":
        server.start()
    far_worker_pools.queue_fixture = type(far_worker_pools.queue_fixture)(server.dsn)
    # As if the outage had outlasted the leases in the database's eyes, though not in ours.
    far_worker_pools.queue_fixture.sql(
        "UPDATE dl_jobs SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE status = 'running'"
    )

    eventually(lambda: pool.state().listener == "listening", SOON)
    far_worker_pools.gate.open()
    far_worker_pools.wait_for_all(jobs, timeout=SOON)
    assert far_worker_pools.queue_fixture.fetch_row("SELECT max(attempt) FROM dl_jobs") == 1
    assert logged("reaper.requeued") == []
    far_worker_pools.queue_fixture.check_invariants()


def test_silent_network_stops_attempt_before_command_timeout(worker_pools: WorkerPoolFixture, logged):
    with SilentProxy(worker_pools.dsn) as proxy:
        worker_pools.listening_pool(
            {"q": 1}, dsn=proxy.dsn, heartbeat_sec=0.5, command_timeout_sec=60.0, connect_timeout_sec=0.5
        )
        job = worker_pools.add_job("waits", lease_ttl_sec=4)  # it never asks by itself whether it is to stop
        worker_pools.gate.wait_for_arrivals(1)

        proxy.silence()

        (line,) = eventually(lambda: logged("attempt.abandoned"), SOON)
        assert (line["job"], line["reason"]) == (str(job), "lease_lost")
        assert worker_pools.queue_fixture.status(job) is Status.RUNNING


def test_given_up_attempt_is_not_renewed_while_its_thread_runs(
    worker_pools: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch
):
    attempts = record_attempts(monkeypatch)
    worker_pools.listening_pool({"q": 2})
    job = worker_pools.add_job("stubborn", lease_ttl_sec=1)
    worker_pools.gate.wait_for_inside(1)

    attempts[0].stop(StopReason.LEASE_LOST)

    requeued = eventually(lambda: worker_pools.event_payloads(job, "requeue"), SOON)
    assert requeued[0]["reason"] == "lease_expired"
    assert worker_pools.gate.max_inside == 1, "its successor began while it ran"
    worker_pools.gate.open()
    worker_pools.wait_for_status(job, Status.SUCCEEDED, 60)


def test_outcome_unwritten_at_stop_is_logged(far_worker_pools: WorkerPoolFixture, server, logged):
    pool = far_worker_pools.pool({"q": 1}, stop_wait_sec=0.3, connect_timeout_sec=0.5)
    job = far_worker_pools.add_job("held", lease_ttl_sec=60)
    far_worker_pools.gate.wait_for_inside(1)
    far_worker_pools.queue_fixture.close()
    server.stop()
    far_worker_pools.gate.open()

    assert pool.stop(grace=10) is True

    assert [line["job"] for line in logged("attempt.abandoned")] == [str(job)]
