"""Connections that break, fall silent or come back, under a pool that works."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from app.queue.job import Status
from pipelines.contract import StopReason
from tests.support.private_server import PrivateServer
from tests.support.proxy import SilentProxy
from tests.support.queue_fixture import BackgroundCall
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import CONNECTION_ROLES, WorkerPoolFixture

SOON = 15.0


@pytest.fixture
def far_plant(server: PrivateServer) -> Iterator[WorkerPoolFixture]:
    """A plant on a server of its own, to be restarted."""
    made = WorkerPoolFixture(server.dsn)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("role", CONNECTION_ROLES)
def test_a_lost_connection_costs_no_job_and_no_attempt(plant: WorkerPoolFixture, role: str):
    plant.listening_pool({"q": 3})
    jobs = [plant.add_job(key=f"k{n % 7}", args={"n": n}) for n in range(40)]
    eventually(lambda: len(plant.run_keys) > 3)

    plant.terminate_connection(role)
    jobs += [plant.add_job(key=f"k{n % 7}", args={"n": n}) for n in range(40, 80)]

    plant.wait_for_all(jobs)
    assert sorted(plant.run_keys, key=int) == [str(n) for n in range(80)]
    assert plant.queue_fixture.fetch_row("SELECT max(attempt) FROM dl_jobs") == 1
    eventually(lambda: plant.connections().keys() == set(CONNECTION_ROLES), SOON)


def test_lost_listener_is_logged_and_listens_again(plant: WorkerPoolFixture, said):
    pool = plant.listening_pool()
    hearings = set()
    gone = threading.Event()

    def watch() -> None:
        while not gone.is_set():
            hearings.add((pool.state().listener, pool.state().self_test_age_sec is None))

    watching = BackgroundCall(watch)
    plant.terminate_connection("listen")
    eventually(lambda: said("listener.disconnected"), SOON)
    eventually(lambda: pool.state().listener == "listening", SOON)
    gone.set()
    watching.result()

    assert ("disconnected", True) in hearings
    plant.wait_for_status(plant.add_job(), Status.SUCCEEDED, SOON)


def test_pool_without_listener_polls(plant: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch):
    pool = plant.listening_pool()
    monkeypatch.setattr(pool._listener, "_ensure_listening", lambda: False)
    plant.terminate_connection("listen")

    plant.wait_for_status(plant.add_job(), Status.SUCCEEDED, SOON)

    assert pool.state().listener == "disconnected"


def test_keys_are_locked_again_after_their_session_was_killed(plant: WorkerPoolFixture):
    plant.listening_pool()
    job = plant.add_job("held", "precious")
    plant.gate.wait_for_inside(1)
    taken = "SELECT pg_try_advisory_xact_lock(hashtext('precious'))"
    assert plant.queue_fixture.fetch_row(taken) is False

    plant.terminate_connection("claim")

    eventually(lambda: plant.queue_fixture.fetch_row(taken) is False, SOON)
    plant.gate.open()
    plant.wait_for_status(job, Status.SUCCEEDED, SOON)
    eventually(lambda: plant.queue_fixture.fetch_row(taken) is True, SOON)


def test_attempt_whose_key_lock_was_lost_is_stopped(plant: WorkerPoolFixture, said):
    plant.listening_pool()
    job_id = plant.add_job("held", "precious")
    plant.gate.wait_for_inside(1)
    thief = BackgroundCall(
        plant.queue_fixture.sql, "SELECT pg_advisory_lock(hashtext('precious'))"
    )  # waits, and is next in turn

    with plant.queue_fixture.open_transaction() as step:
        eventually(lambda: step("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'")[0][0])
        step("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dataloader-claim:%%'")

    thief.result()
    eventually(lambda: plant.stop_reasons, SOON)
    assert [line["lock_key"] for line in said("key_lock.lost")] == ["precious"]
    assert plant.stop_reasons == ["key_lost"]
    assert plant.wait_for_status(job_id, Status.QUEUED).attempt == 0  # it waits for the key, and that costs nothing
    assert plant.event_payloads(job_id, "requeue")[0]["reason"] == "lock_busy"
    plant.queue_fixture.sql("SELECT pg_advisory_unlock_all()")


def test_settlement_is_retried_through_an_outage(far_plant: WorkerPoolFixture, server, caplog):
    far_plant.pool({"q": 2})
    job = far_plant.add_job("held", lease_ttl_sec=60)
    far_plant.gate.wait_for_inside(1)
    far_plant.queue_fixture.close()
    server.crash()
    far_plant.gate.open()
    logged = caplog.records
    eventually(
        lambda: [r for r in logged if (r.getMessage(), r.threadName) == ("database.unavailable", "settler")], SOON
    )

    server.start()

    far_plant.queue_fixture = type(far_plant.queue_fixture)(server.dsn)
    done = far_plant.wait_for_status(job, Status.SUCCEEDED, SOON)
    assert done.attempt == 1
    far_plant.queue_fixture.check_invariants()


def test_settlement_is_given_up_with_an_untrusted_lease(far_plant: WorkerPoolFixture, server, said):
    far_plant.pool({"q": 2}, reaper_period_sec=60.0)
    job = far_plant.add_job("stubborn", lease_ttl_sec=2)
    far_plant.gate.wait_for_inside(1)
    far_plant.queue_fixture.close()
    server.stop()
    eventually(lambda: said("lease.lost"), SOON)

    far_plant.gate.open()

    (line,) = eventually(lambda: said("attempt.abandoned"), SOON)
    assert line["job"] == str(job)
    server.start()
    far_plant.queue_fixture = type(far_plant.queue_fixture)(server.dsn)
    assert far_plant.queue_fixture.status(job) is Status.RUNNING


@pytest.mark.parametrize("end", ["restart", "crash"])
def test_attempts_that_survive_a_restart_are_not_reaped(far_plant: WorkerPoolFixture, server, end: str, said):
    pool = far_plant.pool({"q": 4}, reaper_period_sec=0.05)
    jobs = [far_plant.add_job("held", lease_ttl_sec=4) for _ in range(4)]
    far_plant.gate.wait_for_inside(4)
    far_plant.queue_fixture.close()

    getattr(server, end)()
    if end == "crash":
        server.start()
    far_plant.queue_fixture = type(far_plant.queue_fixture)(server.dsn)
    # As if the outage had outlasted the leases in the database's eyes, though not in ours.
    far_plant.queue_fixture.sql(
        "UPDATE dl_jobs SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE status = 'running'"
    )

    eventually(lambda: pool.state().listener == "listening", SOON)
    far_plant.gate.open()
    far_plant.wait_for_all(jobs, timeout=SOON)
    assert far_plant.queue_fixture.fetch_row("SELECT max(attempt) FROM dl_jobs") == 1
    assert said("reaper.requeued") == []
    far_plant.queue_fixture.check_invariants()


def test_silent_network_stops_attempt_before_command_timeout(plant: WorkerPoolFixture, said):
    with SilentProxy(plant.dsn) as proxy:
        plant.listening_pool(
            {"q": 1}, dsn=proxy.dsn, heartbeat_sec=0.5, command_timeout_sec=60.0, connect_timeout_sec=0.5
        )
        job = plant.add_job("waits", lease_ttl_sec=4)  # it never asks by itself whether it is to stop
        plant.gate.wait_for_arrivals(1)

        proxy.silence()

        (line,) = eventually(lambda: said("attempt.abandoned"), SOON)
        assert (line["job"], line["reason"]) == (str(job), "lease_lost")
        assert plant.queue_fixture.status(job) is Status.RUNNING


def test_given_up_attempt_is_not_renewed_while_its_thread_runs(plant: WorkerPoolFixture):
    pool = plant.listening_pool({"q": 2})
    job = plant.add_job("stubborn", lease_ttl_sec=1)
    plant.gate.wait_for_inside(1)
    (attempt,) = pool._running_attempts.all()

    attempt.stop(StopReason.LEASE_LOST)

    requeued = eventually(lambda: plant.event_payloads(job, "requeue"), SOON)
    assert requeued[0]["reason"] == "lease_expired"
    assert plant.gate.max_inside == 1, "its successor began beside it"
    plant.gate.open()
    plant.wait_for_status(job, Status.SUCCEEDED, 60)


def test_outcome_unwritten_at_stop_is_logged(far_plant: WorkerPoolFixture, server, said):
    pool = far_plant.pool({"q": 1}, stop_wait_sec=0.3, connect_timeout_sec=0.5)
    job = far_plant.add_job("held", lease_ttl_sec=60)
    far_plant.gate.wait_for_inside(1)
    far_plant.queue_fixture.close()
    server.stop()
    far_plant.gate.open()

    assert pool.stop(grace=10) is True

    assert [line["job"] for line in said("attempt.abandoned")] == [str(job)]
