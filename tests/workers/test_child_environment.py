"""PGAPPNAME and PGOPTIONS of isolated processes and programs."""

from __future__ import annotations

import threading
from typing import Any

import psycopg2
import pytest
from psycopg2 import extensions as ext

from app.queue import connection_check
from app.queue.connection_check import CHECK_OPTIONS, Acceptance, probe_options
from tests.support.processes import free_port
from workers import child_environment
from workers.child_environment import ConnectionCheck, session_variables


def test_task_options_stand_behind_ours():
    assert session_variables("n", own_options="-c work_mem=1GB", check=True) == {
        "PGAPPNAME": "n",
        "PGOPTIONS": f"{CHECK_OPTIONS} -c work_mem=1GB",
    }
    assert session_variables("n", own_options="", check=True)["PGOPTIONS"] == CHECK_OPTIONS
    assert session_variables("n", own_options="-c a=b", check=False) == {"PGAPPNAME": "n", "PGOPTIONS": "-c a=b"}
    assert session_variables("n", own_options="", check=False) == {"PGAPPNAME": "n"}


def test_server_accepts_the_settings_and_uses_them(empty_dsn):
    assert probe_options(empty_dsn, 2) is Acceptance.ACCEPTED
    with psycopg2.connect(empty_dsn, options=CHECK_OPTIONS) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW client_connection_check_interval")
        assert cursor.fetchone() == ("2s",)


def test_server_that_does_not_know_a_setting_refuses(empty_dsn, monkeypatch):
    monkeypatch.setattr(connection_check, "CHECK_OPTIONS", "-c no_such_setting=2s")

    assert probe_options(empty_dsn, 2) is Acceptance.REFUSED
    assert probe_options(ext.make_dsn(empty_dsn, options="-c work_mem=1MB"), 2) is Acceptance.REFUSED


def test_server_that_is_away_is_unreachable():
    assert probe_options(f"host=127.0.0.1 port={free_port()} dbname=x", 2) is Acceptance.UNREACHABLE


class Probe:
    def __init__(self, **answers: Acceptance) -> None:
        self.answers, self.probed = answers, list[str]()

    def __call__(self, dsn: str, timeout_sec: float) -> Acceptance:
        self.probed.append(dsn)
        return self.answers[dsn]


def check_with(probe: Any, *names: str) -> ConnectionCheck:
    return ConnectionCheck({name: name for name in names}, probe=probe)


def test_answers_are_kept():
    probe = Probe(a=Acceptance.ACCEPTED, b=Acceptance.ACCEPTED)
    check = check_with(probe, "a", "b")

    assert check.is_accepted()
    assert check.is_accepted()
    assert sorted(probe.probed) == ["a", "b"]


def test_one_server_that_refuses_is_logged_once(said):
    check = check_with(Probe(a=Acceptance.ACCEPTED, b=Acceptance.REFUSED), "a", "b")

    assert not check.is_accepted()
    assert not check.is_accepted()
    assert said("connection_check.off") == [{"servers": {"b": "refused"}}]


def test_server_that_was_away_is_probed_again(monkeypatch):
    probe = Probe(a=Acceptance.ACCEPTED, b=Acceptance.UNREACHABLE)
    check = check_with(probe, "a", "b")
    assert not check.is_accepted()

    probe.answers["b"] = Acceptance.ACCEPTED
    assert not check.is_accepted()
    assert len(probe.probed) == 2
    monkeypatch.setattr(child_environment, "_PROBE_INTERVAL_SEC", 0.0)
    check.is_accepted()
    for thread in check._probes:
        thread.join()

    assert check.is_accepted()
    assert probe.probed.count("a") == 1


def test_silent_server_holds_up_nothing_for_long(monkeypatch):
    monkeypatch.setattr(child_environment, "_FIRST_WAIT_SEC", 0.05)
    answered = threading.Event()

    def silent(dsn: str, timeout_sec: float) -> Acceptance:
        answered.wait(30)
        return Acceptance.ACCEPTED

    check = check_with(silent, "a")
    assert not check.is_accepted()
    answered.set()
    check._probes[0].join()
    assert check.is_accepted()


@pytest.mark.parametrize("names", [(), ("a",)])
def test_check_without_servers_is_accepted(names):
    assert check_with(Probe(a=Acceptance.ACCEPTED), *names).is_accepted()
