"""Sessions of an attempt are ended by their name, on every server that the settings name, and are then gone."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from uuid import uuid4

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from dataloader.app.queue.attempt_sessions import (
    QUEUE_DATABASE,
    ConnectionSettings,
    attempt_application_name,
    end_sessions,
    foreign_server_dsns,
    server_dsns,
)
from tests.support import eventually
from tests.support.databases import another_role
from tests.support.proxy import SilentProxy

LONG = "SELECT pg_sleep(60)"


@pytest.fixture
def name() -> str:
    return attempt_application_name(uuid4(), uuid4())


@pytest.fixture
def other_role(queue_db):
    """A role that is no superuser, with a password; its DSN."""
    with another_role(queue_db.dsn) as role:
        yield make_dsn(queue_db.dsn, user=role, password="x")


class FakeTime:
    """Time that passes only while a thread sleeps: a stall of the machine does not use up a timeout."""

    def __init__(self) -> None:
        self._slept_sec = threading.local()

    def monotonic(self) -> float:
        return getattr(self._slept_sec, "total", 0.0)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self._slept_sec.total = self.monotonic() + seconds


@pytest.fixture
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataloader.app.queue.attempt_sessions.time", FakeTime())
    monkeypatch.setattr("dataloader.app.queue.attempt_sessions._JOIN_MARGIN_SEC", 60.0)


class Busy:
    """A session in the middle of a long statement."""

    def __init__(self, dsn: str, name: str) -> None:
        self.connection = psycopg2.connect(dsn, application_name=name)
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        with suppress(psycopg2.Error):
            self.connection.cursor().execute(LONG)

    def close(self) -> None:
        with suppress(psycopg2.Error):  # it was ended
            self.connection.cancel()
        self._thread.join(20)
        self.connection.close()


def active(queue_db, name: str) -> int:
    return int(queue_db.fetch_row("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", name))


def test_sessions_are_gone_when_ending_returns(queue_db, name):
    sessions = [Busy(queue_db.dsn, name) for _ in range(3)]
    eventually(lambda: active(queue_db, name) == 3)

    report = end_sessions({"warehouse": queue_db.dsn}, [name])

    assert active(queue_db, name) == 0
    assert (report.is_complete, report.ended, report.unresolved_targets) == (True, 3, [])
    for session in sessions:
        session.connection.close()


@pytest.mark.usefixtures("slow_machine")
def test_session_of_other_role_is_left_and_others_end(queue_db, name, other_role):
    with closing(Busy(queue_db.dsn, name)):
        mine = psycopg2.connect(other_role, application_name=name)
        eventually(lambda: active(queue_db, name) == 2)

        report = end_sessions({"warehouse": other_role}, [name], timeout_sec=0.3)

        assert active(queue_db, name) == 1
        assert (report.ended, report.unresolved_targets, report.targets_with_session(name)) == (
            1,
            ["warehouse"],
            ["warehouse"],
        )
        assert report.targets_with_session("another") == []
    mine.close()


@pytest.mark.usefixtures("slow_machine")
def test_silent_servers_together_cost_one_timeout(queue_db, name):
    with SilentProxy(queue_db.dsn) as proxy, closing(Busy(queue_db.dsn, name)):
        proxy.silence()
        eventually(lambda: active(queue_db, name) == 1)
        began = time.monotonic()

        silent = {f"silent {n}": proxy.dsn for n in range(10)}
        report = end_sessions({**silent, "one": queue_db.dsn}, [name], timeout_sec=1.0)

        assert time.monotonic() - began < 15
        assert active(queue_db, name) == 0
        assert report.unresolved_targets == list(silent)


def test_every_host_of_a_target_is_a_server(dsn):
    given = parse_dsn(dsn)
    host, port = given.get("host", "/tmp"), given.get("port", "5432")
    several = make_dsn(dsn, host=f"127.0.0.1,{host}", port=f"1,{port}")
    places = ConnectionSettings(
        dsn=dsn, schema="public", targets={"same": dsn, "two": several, "other": make_dsn(dsn, dbname="x")}
    )

    assert list(server_dsns(places)) == [QUEUE_DATABASE, "two at 127.0.0.1", "other"]
    assert list(foreign_server_dsns(places)) == ["two at 127.0.0.1", "other"]


def test_name_fits_into_what_a_server_keeps(queue_db, name):
    with closing(psycopg2.connect(queue_db.dsn, application_name=name)):
        assert active(queue_db, name) == 1
