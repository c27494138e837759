"""Connections that break, fall silent or come back, under a pool that works."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from app.queue.job import Status
from pipelines.contract import StopReason
from tests.support.desk import Aside
from tests.support.plant import ROLES, Plant
from tests.support.private_server import PrivateServer
from tests.support.proxy import SilentProxy
from tests.support.waiting import eventually

SOON = 15.0


@pytest.fixture
def far_plant(server: PrivateServer) -> Iterator[Plant]:
    """A plant on a server of its own, to be restarted."""
    made = Plant(server.dsn)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("role", ROLES)
def test_a_lost_connection_costs_no_job_and_no_attempt(plant: Plant, role: str):
    plant.listening({"q": 3})
    jobs = [plant.add(key=f"k{n % 7}", args={"n": n}) for n in range(40)]
    eventually(lambda: len(plant.ran) > 3)

    plant.cut(role)
    jobs += [plant.add(key=f"k{n % 7}", args={"n": n}) for n in range(40, 80)]

    plant.until_all(jobs)
    assert sorted(plant.ran, key=int) == [str(n) for n in range(80)]
    assert plant.desk.one("SELECT max(attempt) FROM dl_jobs") == 1
    eventually(lambda: plant.connections().keys() == set(ROLES), SOON)


def test_a_lost_listener_says_so_and_listens_again(plant: Plant, said):
    pool = plant.listening()
    hearings = set()
    gone = threading.Event()

    def watch() -> None:
        while not gone.is_set():
            hearings.add((pool.state().listener, pool.state().echo_age_sec is None))

    watching = Aside(watch)
    plant.cut("listen")
    eventually(lambda: said("listener.lost"), SOON)
    eventually(lambda: pool.state().listener == "listening", SOON)
    gone.set()
    watching.result()

    assert ("away", True) in hearings
    plant.until(plant.add(), Status.SUCCEEDED, SOON)


def test_while_it_cannot_listen_the_pool_polls(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    pool = plant.listening()
    monkeypatch.setattr(pool._listener, "_ready", lambda: False)
    plant.cut("listen")

    plant.until(plant.add(), Status.SUCCEEDED, SOON)

    assert pool.state().listener == "away"


def test_the_keys_of_running_jobs_are_locked_again_when_their_session_was_killed(plant: Plant):
    plant.listening()
    job = plant.add("held", "precious")
    plant.gate.until_inside(1)
    taken = "SELECT pg_try_advisory_xact_lock(hashtext('precious'))"
    assert plant.desk.one(taken) is False

    plant.cut("settle")

    eventually(lambda: plant.desk.one(taken) is False, SOON)
    plant.gate.open()
    plant.until(job, Status.SUCCEEDED, SOON)
    eventually(lambda: plant.desk.one(taken) is True, SOON)


def test_a_run_whose_key_was_stolen_while_its_session_was_gone_is_stopped(plant: Plant, said):
    plant.listening()
    job_id = plant.add("held", "precious")
    plant.gate.until_inside(1)
    thief = Aside(plant.desk.sql, "SELECT pg_advisory_lock(hashtext('precious'))")  # waits, and is next in turn

    with plant.desk.held() as step:
        eventually(lambda: step("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'")[0][0])
        step(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dataloader-settle:%%'"
        )

    thief.result()
    eventually(lambda: plant.stopped, SOON)
    assert [line["lock_key"] for line in said("key.lost")] == ["precious"]
    assert plant.stopped == ["key_lost"]
    assert plant.until(job_id, Status.QUEUED).attempt == 0  # it waits for the key, and that costs nothing
    assert plant.payloads(job_id, "requeue")[0]["reason"] == "lock_busy"
    plant.desk.sql("SELECT pg_advisory_unlock_all()")


def test_an_end_that_meets_an_outage_is_written_down_when_the_database_is_back(far_plant: Plant, server, said):
    far_plant.pool({"q": 2})
    job = far_plant.add("held", lease_ttl_sec=60)
    far_plant.gate.until_inside(1)
    far_plant.desk.close()
    server.crash()
    far_plant.gate.open()
    eventually(lambda: [line for line in said("database.away") if line["keeper"] == "settler"], SOON)

    server.start()

    far_plant.desk = type(far_plant.desk)(server.dsn)
    done = far_plant.until(job, Status.SUCCEEDED, SOON)
    assert done.attempt == 1
    far_plant.desk.check()


def test_an_end_is_given_up_when_its_lease_cannot_be_trusted_any_more(far_plant: Plant, server, said):
    far_plant.pool({"q": 2}, reaper_period_sec=60.0)
    job = far_plant.add("stubborn", lease_ttl_sec=2)
    far_plant.gate.until_inside(1)
    far_plant.desk.close()
    server.stop()
    eventually(lambda: said("lease.lost"), SOON)

    far_plant.gate.open()

    (line,) = eventually(lambda: said("attempt.abandoned"), SOON)
    assert line["job"] == str(job)
    server.start()
    far_plant.desk = type(far_plant.desk)(server.dsn)
    assert far_plant.desk.status(job) is Status.RUNNING


@pytest.mark.parametrize("end", ["restart", "crash"])
def test_runs_that_live_through_a_restart_of_the_server_are_not_reaped(far_plant: Plant, server, end: str, said):
    pool = far_plant.pool({"q": 4}, reaper_period_sec=0.05)
    jobs = [far_plant.add("held", lease_ttl_sec=4) for _ in range(4)]
    far_plant.gate.until_inside(4)
    far_plant.desk.close()

    getattr(server, end)()
    if end == "crash":
        server.start()
    far_plant.desk = type(far_plant.desk)(server.dsn)
    # As if the outage had outlasted the leases in the database's eyes, though not in ours.
    far_plant.desk.sql(
        "UPDATE dl_jobs SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE status = 'running'"
    )

    eventually(lambda: pool.state().listener == "listening", SOON)
    far_plant.gate.open()
    far_plant.until_all(jobs, timeout=SOON)
    assert far_plant.desk.one("SELECT max(attempt) FROM dl_jobs") == 1
    assert said("reaper.requeued") == []
    far_plant.desk.check()


def test_a_silent_network_stops_a_run_in_time_even_where_commands_may_take_long(plant: Plant, said):
    with SilentProxy(plant.dsn) as proxy:
        plant.listening({"q": 1}, dsn=proxy.dsn, heartbeat_sec=0.5, command_timeout_sec=60.0, connect_timeout_sec=0.5)
        job = plant.add("waits", lease_ttl_sec=4)  # it never asks by itself whether it is to stop
        plant.gate.until_came(1)

        proxy.silence()

        (line,) = eventually(lambda: said("attempt.abandoned"), SOON)
        assert (line["job"], line["reason"]) == (str(job), "lease_lost")
        assert plant.desk.status(job) is Status.RUNNING


def test_the_lease_of_a_run_that_was_given_up_is_not_renewed_although_its_thread_goes_on(plant: Plant):
    pool = plant.listening({"q": 2})
    job = plant.add("stubborn", lease_ttl_sec=1)
    plant.gate.until_inside(1)
    (attempt,) = pool._roster.all()

    attempt.stop(StopReason.LEASE_LOST)

    requeued = eventually(lambda: plant.payloads(job, "requeue"), SOON)
    assert requeued[0]["reason"] == "lease_expired"
    assert plant.gate.most_inside == 1, "its successor began beside it"
    plant.gate.open()
    plant.until(job, Status.SUCCEEDED, 60)


def test_what_a_stop_could_not_write_down_is_said(far_plant: Plant, server, said):
    pool = far_plant.pool({"q": 1}, stop_sec=0.3, connect_timeout_sec=0.5)
    job = far_plant.add("held", lease_ttl_sec=60)
    far_plant.gate.until_inside(1)
    far_plant.desk.close()
    server.stop()
    far_plant.gate.open()

    assert pool.stop(grace=10) is True

    assert [line["job"] for line in said("attempt.abandoned")] == [str(job)]
