"""When a run is taken from its worker: found dead at two looks, a heartbeat apart. Its times are the test's own."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID, uuid4

import pytest

from dataloader.app.queue.attempt_sessions import ConnectionSettings, SessionsEnded, end_sessions
from dataloader.app.queue.job import ExpiredRuns, ReapedJob, Status
from dataloader.app.queue.upkeep import RepairResult
from dataloader.app.queue.workers import HeartbeatResult
from dataloader.workers import reaper as room
from dataloader.workers.reaper import Reaper
from tests.support import eventually

HEARTBEAT = 1.0


class Times:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(room, "clock", lambda: self.now)


class Database:
    """Answers what has expired, and takes its time."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self.dead: list[tuple[UUID, UUID | None, str]] = [(uuid4(), uuid4(), "k")]
        self.server_uptime_sec, self.takes_sec, self.server = 3600.0, 0.0, "00000001 1.5 100"
        self.lease_end = "noon"
        self.reaped: list[tuple[UUID, UUID | None, str]] = []

    def expired_runs(self) -> ExpiredRuns:
        self._times.now += self.takes_sec
        lease_ends = {run[:2]: self.lease_end for run in self.dead}
        return ExpiredRuns(self.dead, self.server_uptime_sec, self.server, lease_ends)

    def reap(self, runs: list[tuple[UUID, UUID | None, str]], *, server: str, **_: Any) -> list[ReapedJob]:
        if server != self.server:
            return []
        self.reaped += runs
        return [ReapedJob(job_id, "q", "t", Status.QUEUED, 1) for job_id, _, _ in runs]

    def open_sessions(self, names: list[str]) -> set[str]:
        return set()

    def repair_blocked(self, **_: Any) -> Any:
        return RepairResult(cursor="", unblocked=(), made_ready=())


class NoKeys:
    are_held = False

    def relock_all(self) -> None: ...


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


@pytest.fixture
def database(times: Times) -> Database:
    return Database(times)


def made(database: Database, **more: Any) -> Reaper:
    make: Any = Reaper
    options = {"interval_sec": 0.99 * HEARTBEAT, **more}  # rarer checks rely on heartbeats
    found: Reaper = make(
        database, NoKeys(), heartbeat_sec=HEARTBEAT, pause_sec=0.0, release_stale=lambda: None,
        on_crash=lambda name: None, **options,
    )  # fmt: skip
    return found


@pytest.fixture
def reaper(database: Database) -> Reaper:
    return made(database)


def test_expired_leases_of_a_heartbeat_are_checked_in_time(times, database):
    reaper = made(database, interval_sec=HEARTBEAT)
    dead, database.dead = database.dead, []
    reaper.run_once()
    database.dead = dead
    for step in (0.5, 0.5, 1.0):
        assert database.reaped == []
        times.now += step * HEARTBEAT
        reaper.on_heartbeat(HeartbeatResult(has_silent_workers=True))
        reaper.run_once()

    assert database.reaped == dead


def test_reaper_checks_without_heartbeats_after_three_periods(times, database):
    reaper = made(database, interval_sec=HEARTBEAT)
    dead, database.dead = database.dead, []
    reaper.run_once()
    database.dead = dead
    for _ in range(4):
        assert database.reaped == []
        times.now += HEARTBEAT
        reaper.run_once()

    assert database.reaped == dead


def test_heartbeat_without_expired_leases_is_a_check(times, database):
    reaper = made(database, interval_sec=HEARTBEAT)
    dead, database.dead = database.dead, []
    reaper.run_once()
    database.dead = dead
    for _ in range(2):
        times.now += HEARTBEAT
        reaper.on_heartbeat(HeartbeatResult())
        reaper.run_once()
        assert reaper.last_check_at == times.now
    assert database.reaped == []

    for _ in range(6):  # other programs send no heartbeats, and a process may have given up a run
        times.now += HEARTBEAT
        reaper.on_heartbeat(HeartbeatResult())
        reaper.run_once()
    assert database.reaped == dead


def test_heartbeat_puts_off_no_second_look_at_an_expired_lease(times, database):
    reaper = made(database, interval_sec=HEARTBEAT)
    reaper.run_once()
    times.now += HEARTBEAT
    reaper.on_heartbeat(HeartbeatResult())
    reaper.run_once()

    assert database.reaped == database.dead


def test_run_is_reaped_at_second_check_after_a_heartbeat(times, database, reaper):
    reaper.run_once()
    times.now += 0.9 * HEARTBEAT
    reaper.run_once()
    assert database.reaped == []

    times.now += 0.2 * HEARTBEAT
    reaper.run_once()
    assert database.reaped == database.dead


def test_process_that_leaves_others_alone_reaps_nothing(times, database):
    apart = made(database, takes_from_others=False)
    for _ in range(4):
        apart.run_once()
        times.now += HEARTBEAT

    assert database.reaped == []


def test_heartbeat_counts_from_answer_of_first_check(times, database, reaper):
    """On a slow network the lease may have run out while the question was on its way."""
    database.takes_sec = 0.9 * HEARTBEAT
    reaper.run_once()
    times.now += 0.2 * HEARTBEAT
    database.takes_sec = 0.0
    reaper.run_once()
    assert database.reaped == []

    times.now += HEARTBEAT
    reaper.run_once()
    assert database.reaped == database.dead


def test_run_renewed_between_checks_starts_over(times, database, reaper):
    dead = database.dead
    no_one: list[tuple[UUID, UUID | None, str]] = []
    for found in (dead, no_one, dead):
        database.dead = found
        reaper.run_once()
        times.now += HEARTBEAT
    assert database.reaped == []

    reaper.run_once()
    assert database.reaped == dead


def test_after_a_restart_of_the_server_everybody_is_forgotten(times, database, reaper):
    reaper.run_once()
    database.server_uptime_sec = 0.5 * HEARTBEAT
    times.now += HEARTBEAT
    reaper.run_once()
    database.server_uptime_sec = 2 * HEARTBEAT
    times.now += HEARTBEAT
    reaper.run_once()
    assert database.reaped == []

    times.now += HEARTBEAT
    reaper.run_once()
    assert database.reaped == database.dead


@pytest.mark.parametrize(
    "server", ["00000002 1.5 100", "00000001 9.5 100", "00000001 1.5 200"], ids=["timeline", "server", "connection"]
)
def test_suspects_of_before_a_failover_are_not_reaped_after(times, database, reaper, server):
    """A standby that is promoted has been up for long: its age does not show that the owners could not renew."""
    reaper.run_once()
    database.server = server
    times.now += 10 * HEARTBEAT
    reaper.run_once()
    assert database.reaped == []
    times.now += 0.9 * HEARTBEAT
    reaper.run_once()
    assert database.reaped == []

    times.now += 0.2 * HEARTBEAT
    reaper.run_once()
    assert database.reaped == database.dead


def test_lease_renewed_between_two_checks_starts_over(times, database, reaper):
    reaper.run_once()
    database.lease_end = "later"
    for is_reaped in (False, True):
        times.now += HEARTBEAT
        reaper.run_once()
        assert database.reaped == (database.dead if is_reaped else [])


def wait_for_ended_sessions() -> None:
    eventually(lambda: "end-sessions" not in {thread.name for thread in threading.enumerate()})


def test_failover_while_sessions_end_starts_over(times, database, monkeypatch):
    """The owners must have had the time to renew on the new server."""
    may_end = threading.Event()
    monkeypatch.setattr(room, "end_sessions", lambda servers, names: may_end.wait(60) and SessionsEnded())
    reaper = made(
        database, connection_settings=ConnectionSettings(dsn="host=a", schema="public", targets={"warehouse": "host=b"})
    )
    reaper.run_once()
    times.now += HEARTBEAT
    reaper.run_once()
    database.server = "00000002 1.5 100"
    may_end.set()
    wait_for_ended_sessions()
    reaper.run_once()
    times.now += 0.9 * HEARTBEAT
    reaper.run_once()
    assert database.reaped == []

    for _ in range(2):
        times.now += HEARTBEAT
        reaper.run_once()
    wait_for_ended_sessions()
    reaper.run_once()
    assert database.reaped == database.dead


def test_reaper_that_gets_no_thread_goes_on(times, database, monkeypatch):
    """A process that runs out of threads has jobs that go well, and must not end for that."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reaper = made(
        database, connection_settings=ConnectionSettings(dsn="host=a", schema="public", targets={"warehouse": "host=b"})
    )
    monkeypatch.setattr(threading.Thread, "start", refuse)
    reaper.run_once()
    times.now += HEARTBEAT
    reaper.run_once()
    assert database.reaped == database.dead
    assert end_sessions({"warehouse": "host=b"}, ["n"]).unresolved_targets == ["warehouse"]
