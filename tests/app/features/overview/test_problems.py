"""Problems grouped by subject: their order, what alerts add, and what the overview and the header show of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from dataloader.app.db.pool import Pool
from dataloader.app.features.alerts.rows import AlertRule, FiredAlert, RuleKind
from dataloader.app.features.doctor.findings import Severity
from dataloader.app.features.doctor.queue import check_queue
from dataloader.app.features.limits.breakers import BreakerState, BreakerStatus
from dataloader.app.features.overview.problems import Situation, count_open, find_problems
from dataloader.app.features.queues.rows import QueueStatus, WorkerStatus
from dataloader.app.features.statistics.rows import PeriodStatistics
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support.databases import execute_sql

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
RULE, ALERT = UUID(int=1), UUID(int=2)
WORKER = WorkerStatus(
    worker_id=UUID(int=3), name="etl-01:7", version="1", queues=("etl",), tasks=("load",), threads=2, busy=0,
    started_at=NOW, last_beat_at=NOW, alive=True, draining=False, listener="listening", rss_bytes=None, running=(),
    pid=7, queue_threads={}, stopping=False,
)  # fmt: skip
CALM = Situation(
    running=[], stalled_sec={}, recent_runs={}, queues=[], workers=[WORKER], breakers=[], schedules=[], last_hour={},
    alerts=[], rules=[], errors=[], at=NOW,
)  # fmt: skip


def breaker(**values: Any) -> BreakerStatus:
    known: dict[str, Any] = {
        "task": "load", "state": BreakerState.OPEN, "failures": 5, "window_sec": 60, "resume_sec": 60,
        "failed_in_row": 5, "opened_at": NOW, "probe_at": NOW, "reason": "5 failures in a row", "is_declared": True,
        "changed_by": None, "changed_at": NOW, "waiting": 3, "waiting_exact": True,
    }  # fmt: skip
    return BreakerStatus(**known | values)


def queue_status(**values: Any) -> QueueStatus:
    known: dict[str, Any] = {
        "queue": "etl", "is_drained": False, "ready": 0, "ready_exact": True, "scheduled": 0, "blocked": 0,
        "limited": 0, "waiting": 0, "running": 0, "workers": 1, "oldest_ready_sec": None, "scanned_at": NOW,
        "last_hour": PeriodStatistics(),
    }  # fmt: skip
    return QueueStatus(**known | values)


def alert(**values: Any) -> FiredAlert:
    known: dict[str, Any] = {
        "alert_id": ALERT, "rule_id": RULE, "kind": "failure_rate", "name": "failing", "subject": "load",
        "queue": None, "task": "load", "value": 0.5, "detail": "5 of 10 runs of load failed within 3600 s",
        "started_at": NOW, "last_checked_at": NOW, "resolved_at": None, "sent_at": NOW, "acknowledged_at": None,
        "acknowledged_by": None,
    }  # fmt: skip
    return FiredAlert(**known | values)


def rule(**values: Any) -> AlertRule:
    known: dict[str, Any] = {
        "rule_id": RULE, "name": "failing", "kind": RuleKind.FAILURE_RATE, "queue": None, "task": None,
        "threshold": 0.2, "window_sec": 3600, "min_runs": 1, "active": True, "created_at": NOW, "dataset": None,
        "by_time": None, "zone": None, "muted_until": None, "muted_by": None,
    }  # fmt: skip
    return AlertRule(**known | values)


def test_calm_service_has_no_problem():
    assert find_problems(CALM) == []


def test_worst_problem_is_first():
    slow = queue_status(queue="slow", ready=1, oldest_ready_sec=400.0)
    unserved = queue_status(queue="unserved", ready=2, workers=0)

    found = find_problems(replace(CALM, queues=[slow, unserved], breakers=[breaker()]))

    assert [(problem.kind, problem.state) for problem in found] == [
        ("breaker open", "alert"),
        ("no worker", "alert"),
        ("long wait", "warning"),
    ]


def test_facts_of_one_task_are_one_problem():
    failing = PeriodStatistics(failed=5, succeeded=5, failure_rate=0.5)

    (found,) = find_problems(replace(CALM, breakers=[breaker()], last_hour={"load": failing}, alerts=[alert()]))

    assert found.kind == "breaker open"
    assert found.others == ("Failed 5 of 10 times in the last hour",)  # once, although the alert has it too
    assert [act.label for act in found.acts] == ["Failures", "Resume", "Alert", "Mute 1 h", "Acknowledge"]
    assert found.alerts == (alert(),)


def test_alert_without_known_problem_shows_its_detail():
    (found,) = find_problems(replace(CALM, alerts=[alert()]))

    assert found.before == "5 of 10 runs of load failed within 1\u00a0h"
    assert found.link == "/tasks/load"


def test_alert_is_as_severe_as_its_kind():
    late, stalled = alert(), alert(kind="stalled", subject=str(ALERT), task=None, detail="no progress for 900 s")

    found = find_problems(replace(CALM, alerts=[stalled, late]))

    assert [(problem.kind, problem.state) for problem in found] == [("failure rate", "alert"), ("stalled", "warning")]


def test_acknowledged_and_muted_alerts_are_not_counted():
    acknowledged = find_problems(replace(CALM, alerts=[alert(acknowledged_at=NOW)]))
    until = datetime.now(UTC) + timedelta(hours=1)
    muted = find_problems(replace(CALM, alerts=[alert()], rules=[rule(muted_until=until)]))

    assert [count_open(found) for found in (acknowledged, muted)] == [0, 0]
    assert len(acknowledged) == len(muted) == 1
    assert [act.label for found in (acknowledged, muted) for act in found[0].acts] == ["Task", "Alert"] * 2


def test_stopped_workers_are_a_problem():
    found = find_problems(replace(CALM, workers=[replace(WORKER, alive=False)]))

    assert [problem.kind for problem in found] == ["no worker", "worker lost"]


def test_error_of_doctor_is_a_problem_once():
    unserved = queue_status(queue="elt", ready=2, workers=0)
    facts = {
        "live": 1, "reaping": 0, "queues_without_worker": ["elt"], "tasks_without_worker": ["lode"],
        "known_tasks": ["load"], "labels_without_worker": [["etl", "train", {"gpu": True}]], "labels": [["etl", {}]],
        "expired": [["018f0000-0000-7000-8000-000000000001", "w", 300]], "odd_leases": [], "unstopped": [],
        "shared_names": [["etl-0", ["a:1", "b:1"]]], "schedules_late": ["nightly"], "schedules_stopped": [],
        "schedules_taken": ["hourly"], "schedules_orphaned": [], "webhooks_disabled": [], "alerts_firing": 0,
    }  # fmt: skip
    errors = [finding for finding in check_queue(facts) if finding.severity is Severity.ERROR]

    found = find_problems(replace(CALM, queues=[unserved], errors=errors))

    assert {problem.subject: problem.kind for problem in found} == {
        ("queue", "elt"): "no worker",
        ("task", "lode"): "tasks without worker",
        ("task", "train"): "labels without worker",
        ("doctor", "no_reaper"): "no reaper",
        ("job", "018f0000-0000-7000-8000-000000000001"): "expired leases",
        ("doctor", "shared_worker_names"): "shared worker names",
        ("schedule", "nightly"): "schedules late",
        ("schedule", "hourly"): "schedules taken",
    }
    assert {problem.state for problem in found} == {"alert"}
    sentences = {problem.kind: problem.before for problem in found}
    assert sentences["tasks without worker"] == "No live worker knows lode; jobs wait; did you mean 'load'?"
    assert "018f…0001" in sentences["expired leases"]


@pytest.fixture
def worker(dsn: str, pool: Pool) -> Iterator[None]:
    info = WorkerInfo(uuid4(), "host-1:77", "1", ("etl",), ("noop",), 1, unserved_tasks={"train": {"gpu": True}})
    WorkerLiveness(pool).send_heartbeat(info, heartbeat_sec=60)
    yield
    execute_sql(dsn, "TRUNCATE dl_workers")


@pytest.mark.usefixtures("worker")
def test_overview_names_tasks_that_no_worker_runs(client, trigger):
    trigger(task="nop", lock_key="a")
    trigger(task="train", lock_key="b")

    page = client.get("/").text

    assert "No live worker knows nop; jobs wait; did you mean &#39;noop&#39;?" in page
    assert "No live worker of queue &#39;etl&#39; has gpu=true" in page
    assert 'href="/tasks/nop"' in page


def test_header_counts_the_problems_of_the_overview(client, trigger):
    trigger()

    overview, jobs = client.get("/").text, client.get("/jobs").text

    count = '<a class="st alert" href="/#problems">2<span class="vh"> problems</span></a>'  # no worker; none for etl
    assert count in overview
    assert count in jobs
    assert "No live worker serves queue " in overview


def test_new_service_shows_the_first_steps(client):
    page = client.get("/").text

    assert "No job has run yet" in page
    assert 'href="/tasks">Choose a task and start it</a>' in page
