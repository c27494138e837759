"""What the report reckons."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import uuid4

import pytest

from tests.chaos.checker import check
from tests.chaos.client_log import ClientLog, ClientResponse, read_client_log
from tests.chaos.fault_runner import InjectedFault
from tests.chaos.history_builder import NOON, HistoryBuilder
from tests.chaos.report import Report, make_report, recoveries
from tests.chaos.services import Death

WALL = NOON.timestamp()  # the tale's clock begins at noon


@pytest.fixture
def killed() -> HistoryBuilder:
    """A job whose process, 7, was killed at 2.5 s: it was given back at 3 s and begun again at 4 s."""
    tale = HistoryBuilder()
    job = tale.job()
    run = uuid4()
    tale.event(job, "picked", "running", 1, run, worker="here:7")
    tale.report(job, run, "began")
    tale.reap(job, run, after=2.0)
    heir = tale.claim(job, 2)
    tale.succeed(job, heir, 2)
    return tale


def report(
    tale: HistoryBuilder, injected: list[InjectedFault] | None = None, complaints: list[str] | None = None
) -> Report:
    history = tale.history()
    return make_report(
        history, check(history), injected or [], [Death("worker-1", 7, 2.5)],
        seed=1, server="PostgreSQL", seconds=10.0, drained_sec=1.0, complaints=complaints or [], wall=WALL,
        bound={"heartbeat": 0.5, "reaper": 0.5},
    )  # fmt: skip


def test_a_recovery_is_timed_from_the_death_of_the_process(killed):
    (found,) = recoveries(killed.history(), [], [Death("worker-1", 7, 2.5)], WALL)

    assert found.given_back_sec == pytest.approx(0.6)
    assert found.started_sec == pytest.approx(1.6)
    assert found.undisturbed


@pytest.mark.parametrize("death", [Death("w", 7, 1.0), Death("w", 7, 3.5), Death("w", 8, 2.5)])
def test_recovery_excludes_jobs_ended_or_run_elsewhere(killed, death):
    assert recoveries(killed.history(), [], [death], WALL) == []


@pytest.mark.parametrize(("fault", "calm"), [("worker SIGKILL", True), ("PostgreSQL fast restart", False)])
def test_recovery_during_a_database_fault_is_separate(killed, fault, calm):
    injected = [InjectedFault(fault, 2.0, 3.0, "")]

    (found,) = recoveries(killed.history(), injected, [Death("worker-1", 7, 2.5)], WALL)

    assert found.undisturbed is calm


def test_report_has_figures_and_a_verdict(killed, tmp_path):
    made = report(
        killed, [InjectedFault("network cut", 1, 2, ""), InjectedFault("disk full", 3, 4, "", "no room to fill")]
    )
    made.write(tmp_path / "made" / "report.json")

    assert made.passed
    assert made.text().splitlines()[-1] == "PASSED: nothing lost, nothing doubled, no rule violated"
    assert "     1  network cut" in made.text()
    assert "not done: disk full: no room to fill" in made.text()
    result = json.loads((tmp_path / "made" / "report.json").read_text())
    assert (result["passed"], result["jobs"]["accepted"], result["jobs"]["lost"]) == (True, 1, 0)
    assert result["runs"]["recovered from the dead"] == 1
    assert (tmp_path / "made" / "report.txt").read_text().endswith("no rule violated\n")


def test_a_violation_or_a_complaint_fails_it(killed):
    assert not report(killed, complaints=["a caller was answered 500"]).passed

    killed.responses.append(ClientResponse("accepted", 1.0, str(uuid4())))
    broken = report(killed)

    assert not broken.passed
    assert "VIOLATED 1 times: job missing after acceptance" in broken.text()
    assert broken.jobs["lost"] == 1
    assert broken.text().endswith("FAILED")


def test_a_record_is_read_as_it_was_written(tmp_path):
    record = ClientLog(tmp_path / "told.jsonl")
    record.accepted("a", "chaos.short", "once")
    record.canceled("a", "running")
    record.retried("a", "queued")
    record.unanswered("chaos.long", "twice")
    record.close()

    assert read_client_log(tmp_path / "told.jsonl") == record.responses
    assert [result.what for result in record.responses] == ["accepted", "canceled", "retried", "unsure"]
    assert replace(record.responses[0], at=0.0) == ClientResponse("accepted", 0.0, "a", "chaos.short", "once")
