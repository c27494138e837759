"""When a run is taken from its worker: found dead at two looks, a heartbeat apart. Its times are the test's own."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID, uuid4

import pytest

from app.queue.attempt_sessions import Places, SessionsEnded, end_sessions
from app.queue.job import Expired, Reaped, Status
from tests.support import eventually
from workers import reaper as room
from workers.reaper import Reaper

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
        self.up_sec, self.takes_sec, self.server = 3600.0, 0.0, "00000001 1.5 100"
        self.reaped: list[tuple[UUID, UUID | None, str]] = []

    def expired(self) -> Expired:
        self._times.now += self.takes_sec
        return Expired(self.dead, self.up_sec, self.server)

    def reap(self, runs: list[tuple[UUID, UUID | None, str]], *, server: str, **_: Any) -> list[Reaped]:
        if server != self.server:
            return []
        self.reaped += runs
        return [Reaped(job_id, "q", "t", Status.QUEUED, 1) for job_id, _, _ in runs]

    def open_sessions(self, names: list[str]) -> set[str]:
        return set()

    def sweep(self, **_: Any) -> Any:
        return type("Swept", (), {"seen_to": "", "promoted": ()})


class NoKeys:
    def restore(self) -> None: ...


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


@pytest.fixture
def database(times: Times) -> Database:
    return Database(times)


def made(database: Database, **more: Any) -> Reaper:
    make: Any = Reaper
    found: Reaper = make(
        database, NoKeys(), every=HEARTBEAT, heartbeat_sec=HEARTBEAT, pause_sec=0.0, clear_stale=lambda: None,
        died=lambda name: None, **more,
    )  # fmt: skip
    return found


@pytest.fixture
def reaper(database: Database) -> Reaper:
    return made(database)


def test_a_run_is_taken_at_the_second_look_and_not_before_a_heartbeat_has_passed(times, database, reaper):
    reaper.turn()
    times.now += 0.9 * HEARTBEAT
    reaper.turn()
    assert database.reaped == []

    times.now += 0.2 * HEARTBEAT
    reaper.turn()
    assert database.reaped == database.dead


def test_the_heartbeat_counts_from_the_answer_of_the_first_look_and_not_from_its_question(times, database, reaper):
    """On a slow network the lease may have run out while the question was on its way."""
    database.takes_sec = 0.9 * HEARTBEAT
    reaper.turn()
    times.now += 0.2 * HEARTBEAT
    database.takes_sec = 0.0
    reaper.turn()
    assert database.reaped == []

    times.now += HEARTBEAT
    reaper.turn()
    assert database.reaped == database.dead


def test_a_run_that_was_renewed_between_two_looks_is_a_new_suspect(times, database, reaper):
    dead = database.dead
    nobody: list[tuple[UUID, UUID | None, str]] = []
    for found in (dead, nobody, dead):
        database.dead = found
        reaper.turn()
        times.now += HEARTBEAT
    assert database.reaped == []

    reaper.turn()
    assert database.reaped == dead


def test_after_a_restart_of_the_server_everybody_is_forgotten(times, database, reaper):
    reaper.turn()
    database.up_sec = 0.5 * HEARTBEAT
    times.now += HEARTBEAT
    reaper.turn()
    database.up_sec = 2 * HEARTBEAT
    times.now += HEARTBEAT
    reaper.turn()
    assert database.reaped == []

    times.now += HEARTBEAT
    reaper.turn()
    assert database.reaped == database.dead


@pytest.mark.parametrize(
    "server", ["00000002 1.5 100", "00000001 9.5 100", "00000001 1.5 200"], ids=["timeline", "server", "connection"]
)
def test_suspects_of_before_a_failover_are_not_reaped_after(times, database, reaper, server):
    """A standby that is promoted has been up for long: its age does not show that the owners could not renew."""
    reaper.turn()
    database.server = server
    times.now += 10 * HEARTBEAT
    reaper.turn()
    assert database.reaped == []
    times.now += 0.9 * HEARTBEAT
    reaper.turn()
    assert database.reaped == []

    times.now += 0.2 * HEARTBEAT
    reaper.turn()
    assert database.reaped == database.dead


def test_failover_while_sessions_end_starts_over(times, database, monkeypatch):
    """The owners must have had the time to renew on the new server."""
    may_end = threading.Event()
    monkeypatch.setattr(room, "end_sessions", lambda servers, names: may_end.wait(60) and SessionsEnded())
    reaper = made(database, places=Places(dsn="host=a", schema="public", targets={"warehouse": "host=b"}))
    reaper.turn()
    times.now += HEARTBEAT
    reaper.turn()
    database.server = "00000002 1.5 100"
    may_end.set()
    eventually(lambda: reaper._ended)
    reaper.turn()
    times.now += 0.9 * HEARTBEAT
    reaper.turn()
    assert database.reaped == []

    for _ in range(2):
        times.now += HEARTBEAT
        reaper.turn()
    eventually(lambda: reaper._ended)
    reaper.turn()
    assert database.reaped == database.dead


def test_reaper_that_gets_no_thread_goes_on(times, database, monkeypatch):
    """A process that runs out of threads has jobs that go well, and must not end for that."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reaper = made(database, places=Places(dsn="host=a", schema="public", targets={"warehouse": "host=b"}))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    reaper.turn()
    times.now += HEARTBEAT
    reaper.turn()
    assert database.reaped == database.dead
    assert end_sessions({"warehouse": "host=b"}, ["n"]).left_on == ["warehouse"]
