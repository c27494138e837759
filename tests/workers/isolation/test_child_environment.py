"""PGAPPNAME and PGOPTIONS of isolated processes and programs."""

from __future__ import annotations

import threading
from typing import Any

import psycopg2
import pytest
from psycopg2 import extensions as ext

from dataloader.app.queue.attempt_sessions import attempt_application_name
from dataloader.pipelines.contract import TaskOptions
from dataloader.workers.connections import check_options
from dataloader.workers.connections.check_options import CHECK_OPTIONS, OptionSupport, probe_options
from dataloader.workers.isolation import environment
from dataloader.workers.isolation.environment import ConnectionCheck
from dataloader.workers.isolation.run import session_variables
from tests.support import eventually
from tests.support.claimed_jobs import attempt_with
from tests.support.processes import free_port


def test_task_options_follow_ours():
    attempt, unchecked = attempt_with(), TaskOptions(connection_check=False)
    name = {"PGAPPNAME": attempt_application_name(attempt.job_id, attempt.job.run_id)}

    assert session_variables(attempt, TaskOptions(), "-c a=b") == {**name, "PGOPTIONS": f"{CHECK_OPTIONS} -c a=b"}
    assert session_variables(attempt, TaskOptions(), "") == {**name, "PGOPTIONS": CHECK_OPTIONS}
    assert session_variables(attempt, unchecked, "-c a=b") == {**name, "PGOPTIONS": "-c a=b"}
    assert session_variables(attempt, unchecked, "") == name


def test_server_accepts_the_settings_and_uses_them(empty_dsn):
    assert probe_options(empty_dsn, 2) is OptionSupport.ACCEPTED
    with psycopg2.connect(empty_dsn, options=CHECK_OPTIONS) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW client_connection_check_interval")
        assert cursor.fetchone() == ("2s",)


def test_server_that_does_not_know_a_setting_refuses(empty_dsn, monkeypatch):
    monkeypatch.setattr(check_options, "CHECK_OPTIONS", "-c no_such_setting=2s")

    assert probe_options(empty_dsn, 2) is OptionSupport.REFUSED
    assert probe_options(ext.make_dsn(empty_dsn, options="-c work_mem=1MB"), 2) is OptionSupport.REFUSED


def test_server_without_connection_is_unreachable():
    assert probe_options(f"host=127.0.0.1 port={free_port()} dbname=x", 2) is OptionSupport.UNREACHABLE


class Probe:
    def __init__(self, **answers: OptionSupport) -> None:
        self.answers, self.probed = answers, list[str]()

    def __call__(self, dsn: str, timeout_sec: float) -> OptionSupport:
        self.probed.append(dsn)
        return self.answers[dsn]


def check_with(probe: Any, *names: str) -> ConnectionCheck:
    return ConnectionCheck({name: name for name in names}, probe=probe)


def test_answers_are_kept():
    probe = Probe(a=OptionSupport.ACCEPTED, b=OptionSupport.ACCEPTED)
    check = check_with(probe, "a", "b")

    assert check.is_accepted()
    assert check.is_accepted()
    assert sorted(probe.probed) == ["a", "b"]


def test_one_server_that_refuses_is_logged_once(logged):
    check = check_with(Probe(a=OptionSupport.ACCEPTED, b=OptionSupport.REFUSED), "a", "b")

    assert not check.is_accepted()
    assert not check.is_accepted()
    assert logged("connection_check.off") == [{"servers": {"b": "refused"}}]


def test_unreachable_server_is_probed_again(monkeypatch):
    probe = Probe(a=OptionSupport.ACCEPTED, b=OptionSupport.UNREACHABLE)
    check = check_with(probe, "a", "b")
    assert not check.is_accepted()

    probe.answers["b"] = OptionSupport.ACCEPTED
    assert not check.is_accepted()
    assert len(probe.probed) == 2
    monkeypatch.setattr(environment, "_PROBE_INTERVAL_SEC", 0.0)

    eventually(check.is_accepted)
    assert probe.probed.count("a") == 1


def test_silent_server_delays_only_the_first_attempts(monkeypatch):
    monkeypatch.setattr(environment, "_FIRST_PROBE_WAIT_SEC", 0.05)
    answered = threading.Event()

    def silent(dsn: str, timeout_sec: float) -> OptionSupport:
        answered.wait(30)
        return OptionSupport.ACCEPTED

    check = check_with(silent, "a")
    assert not check.is_accepted()
    answered.set()
    eventually(check.is_accepted)


@pytest.mark.parametrize("names", [(), ("a",)])
def test_check_without_servers_is_accepted(names):
    assert check_with(Probe(a=OptionSupport.ACCEPTED), *names).is_accepted()
