"""Problems grouped by subject: their order, what alerts add, and what the overview and the header show of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest

from dataloader.app.acts.feature import Feature
from dataloader.app.acts.service_problems import Impact, Problem, ProblemAct
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.db.pool import Pool
from dataloader.app.db.statements import Executor
from dataloader.app.features.alerts.rows import SUBJECT_KINDS, RuleKind, read_firing_alerts, read_rules
from dataloader.app.features.doctor.problems import read_findings
from dataloader.app.features.doctor.queue import check_queue
from dataloader.app.features.jobs.job_search import read_running_jobs
from dataloader.app.features.limits.breakers import read_open_breakers
from dataloader.app.features.overview.notes import NoteReader
from dataloader.app.features.overview.problems import count_open
from dataloader.app.features.overview.service_counts import ProblemCounter, ServiceCounter
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.schedules.checks import check_schedules
from dataloader.app.features.schedules.checks import read_findings as read_schedule_findings
from dataloader.app.features.schedules.rows import read_not_firing
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.queue.job import new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.app.state.queues import read_queue_statuses, read_worker_statuses
from dataloader.app.state.statistics import PeriodStatistics, read_last_hour
from dataloader.pipelines.contract import Pipelines
from tests.support.databases import execute_sql
from tests.support.problem_reads import (
    ALERT,
    NOW,
    alert,
    breaker,
    queue_status,
    read_problems,
    rule,
    running_job,
    schedule,
    worker,
)

FAILING = PeriodStatistics(failed=5, succeeded=5, failure_rate=0.5)


def test_calm_service_has_no_problem():
    assert read_problems({}) == []


def test_worst_problem_is_first():
    slow = queue_status(queue="slow", ready=1, oldest_ready_sec=400.0)
    unserved = queue_status(queue="unserved", ready=2, workers=0)

    found = read_problems({read_queue_statuses: [slow, unserved], read_open_breakers: [breaker()]})

    assert [(problem.kind, problem.state) for problem in found] == [
        ("breaker open", "alert"),
        ("no worker", "alert"),
        ("long wait", "warning"),
    ]


def test_problems_of_one_state_are_in_order_of_their_impact():
    found = read_problems({
        read_last_hour: {"sales": FAILING}, read_not_firing: [schedule()], read_open_breakers: [breaker()],
        read_findings: _errors(reaping=0), read_queue_statuses: [queue_status(ready=1, workers=0)],
        read_worker_statuses: [],
    })  # fmt: skip

    assert [problem.kind for problem in found] == [
        "no worker", "breaker open", "no worker", "late", "failing", "no reaper",
    ]  # fmt: skip
    assert [problem.impact for problem in found] == sorted(set(Impact) - {Impact.DELAYED})


def test_facts_of_one_task_are_one_problem():
    facts = {read_open_breakers: [breaker()], read_last_hour: {"load": FAILING}, read_firing_alerts: [alert()]}

    (found,) = read_problems(facts)

    assert found.kind == "breaker open"
    assert found.others == ("Failed 5 of 10 times in the last hour",)  # once, although the alert has it too
    assert [act.label for act in found.acts] == ["Failures", "Resume", "Alert", "Mute 1 h", "Acknowledge"]
    assert found.acts[-1].fields == {f"alert-{ALERT}": str(ALERT), "next": "/", "action": "acknowledge"}


def test_alert_without_known_problem_shows_its_detail():
    (found,) = read_problems({read_firing_alerts: [alert()]})

    assert found.before == "5 of 10 runs of load failed within 1\u00a0h"
    assert found.link == "/tasks/load"


def test_alert_is_as_severe_as_its_kind():
    late, stalled = alert(), alert(kind="stalled", subject=str(ALERT), task=None, detail="no progress for 900 s")

    found = read_problems({read_firing_alerts: [stalled, late]})

    assert [(problem.kind, problem.state) for problem in found] == [("failure rate", "alert"), ("stalled", "warning")]


def test_acknowledged_and_muted_alerts_are_not_counted():
    acknowledged = read_problems({read_firing_alerts: [alert(acknowledged_at=NOW)]})
    until = datetime.now(UTC) + timedelta(hours=1)
    muted = read_problems({read_firing_alerts: [alert()], read_rules: [rule(muted_until=until)]})

    assert [count_open(found) for found in (acknowledged, muted)] == [0, 0]
    assert len(acknowledged) == len(muted) == 1
    assert [act.label for found in (acknowledged, muted) for act in found[0].acts] == ["Task", "Alert"] * 2


def test_subject_of_each_kind_of_alert_has_a_page():
    pages = {kind for feature in FEATURES for kind in feature.subjects}

    assert set(SUBJECT_KINDS) == set(RuleKind)
    assert set(SUBJECT_KINDS.values()) <= pages


def test_error_of_doctor_is_a_problem_once():
    errors = _errors(
        reaping=0, queues_without_worker=["elt"], tasks_without_worker=["lode"],
        labels_without_worker=[["etl", "train", {"gpu": True}]],
        expired=[["018f0000-0000-7000-8000-000000000001", "w", 300]],
        shared_names=[["etl-0", ["a:1", "b:1"]]],
    )  # fmt: skip
    of_schedules = list(check_schedules(SchedulesToCheck(taken=["hourly"], orphaned=["weekly"], late=["nightly"])))

    found = read_problems(
        {
            read_queue_statuses: [queue_status(queue="elt", ready=2, workers=0)],
            read_findings: errors,
            read_schedule_findings: of_schedules,
        }
    )

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
    acts = {problem.kind: [(act.label, act.path) for act in problem.acts] for problem in found}
    assert acts["tasks without worker"] == [("Task", "/tasks/lode")]
    assert acts["no reaper"] == []


def test_error_of_doctor_about_several_subjects_is_left_out_if_all_have_it():
    errors, queues = _errors(queues_without_worker=["a", "b"]), [queue_status(queue="a", ready=1, workers=0)]

    some = read_problems({read_queue_statuses: queues, read_findings: errors})
    queues.append(queue_status(queue="b", ready=1, workers=0))
    each = read_problems({read_queue_statuses: queues, read_findings: errors})

    assert [problem.subject for problem in some] == [("queue", "a"), ("doctor", "queues_without_worker")]
    assert [problem.subject for problem in each] == [("queue", "a"), ("queue", "b")]


@pytest.mark.parametrize(
    ("left_out", "subject"),
    [
        ("workers", ("worker", "etl-02:8")),
        ("limits", ("task", "load")),
        ("queues", ("queue", "etl")),
        ("schedules", ("schedule", "nightly")),
        ("failures", ("task", "sales")),
        ("jobs", ("job", "00000000-0000-0000-0000-000000000004")),
        ("doctor", ("doctor", "no_reaper")),
    ],
)
def test_service_without_a_feature_has_none_of_its_problems(left_out: str, subject: tuple[str, str]):
    facts = {
        read_worker_statuses: [worker(), worker(name="etl-02:8", alive=False)], read_open_breakers: [breaker()],
        read_queue_statuses: [queue_status(ready=1, workers=0)], read_not_firing: [schedule()],
        read_last_hour: {"sales": FAILING}, read_running_jobs: [running_job(cancel_requested=True)],
        read_findings: _errors(reaping=0),
    }  # fmt: skip

    complete = [problem.subject for problem in read_problems(facts)]
    others = [problem.subject for problem in read_problems(facts, _without(left_out))]

    assert others == [known for known in complete if known != subject]
    assert len(others) == 6


def test_problem_of_a_new_feature_is_on_the_overview(queue: JobQueue, pipelines: Pipelines, monkeypatch):
    def find_problems(reads: SharedReads) -> Iterator[Problem]:
        yield Problem(
            kind="rude", subject=("greeting", "good/bye"), state="alert", before="Greeting ", after=" is rude"
        )
        yield Problem(kind="shy", subject=("greeter", "ann"), before="", after=" greets no one", acts=(act,))

    def create_page(site: Site) -> ApiBlueprint:
        blueprint = ApiBlueprint("greetings", "")
        blueprint.get("/greetings/<name>", response=str)(lambda name: name)
        return blueprint

    act = ProblemAct("Encourage", "/greetings/ann", {"name": "ann"})
    module = ModuleType("problems")
    monkeypatch.setattr(module, "find_problems", find_problems, raising=False)
    monkeypatch.setattr(module, "create_page", create_page, raising=False)
    monkeypatch.setitem(sys.modules, "dataloader.app.features.greetings.problems", module)
    greetings = Feature(
        name="greetings",
        blueprints=("problems.create_page",),
        problems="problems.find_problems",
        subjects={"greeting": "/greetings/{}"},
    )

    def overview(*features: Feature) -> str:
        options = WebOptions(version="1")
        return create_app(queue, pipelines, options, features=(*FEATURES, *features)).test_client().get("/").text

    page = overview(greetings)

    assert 'Greeting <a href="/greetings/good%2Fbye"><b>good/bye</b></a> is rude' in page
    assert '<a class="btn sm" href="/greetings/good%2Fbye">Greeting<' in page
    assert "<b>ann</b> greets no one" in page
    assert 'action="/greetings/ann"' in page
    assert '<h2 id="problems-title">3 problems</h2>' in page  # with that of no worker
    assert "good/bye" not in overview()


class CountingExecutor:
    """Executes statements, and counts each with its parameters."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self.schema, self.executed = pool, pool.schema, list[str]()

    def execute(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        self.executed.append(f"{name} {json.dumps(parameters, default=str)}")
        return self._pool.execute(name, parameters)


def test_overview_and_header_read_nothing_twice(pool: Pool, pipelines: Pipelines, trigger, monkeypatch):
    trigger()
    JobQueue(pool).claim("etl", ["noop"], new_run_ids(1), "worker")  # without a running job they read less
    trigger(lock_key="another")
    monkeypatch.setattr(ProblemCounter, "counts", lambda self: None)  # the header reads in a thread of its own
    monkeypatch.setattr(NoteReader, "get", lambda self: [])
    of_page, of_header = CountingExecutor(pool), CountingExecutor(pool)
    client = create_app(JobQueue(of_page), pipelines, WebOptions(version="1")).test_client()
    of_page.executed.clear()

    assert client.get("/").status_code == 200
    reads = SharedReads(of_header)
    counts = ServiceCounter(FEATURES).count(reads)

    assert counts.problems == 2  # no worker; none for etl
    assert len(set(of_page.executed)) == len(of_page.executed) == 19
    assert len(set(of_header.executed)) == len(of_header.executed) == 15
    assert set(of_header.executed) < set(of_page.executed)


def test_shared_read_is_executed_once(pool: Pool):
    reads, executors = SharedReads(pool), list[Executor]()

    def read_times(executor: Executor) -> int:
        executors.append(executor)
        return len(executors)

    assert [reads.get(read_times), reads.get(read_times)] == [1, 1]
    assert executors == [pool]
    assert SharedReads(pool, {read_times: 7}).get(read_times) == 7


def _errors(**facts: Any) -> list[Any]:
    """What doctor finds in a queue with nothing wrong but for these facts."""
    calm: dict[str, Any] = {
        "live": 1, "reaping": 1, "queues_without_worker": [], "tasks_without_worker": [], "known_tasks": ["load"],
        "labels_without_worker": [], "labels": [["etl", {}]], "expired": [], "odd_leases": [], "unstopped": [],
        "shared_names": [],
    }  # fmt: skip
    return list(check_queue(calm | facts))


class SchedulesToCheck:
    """Executes the one statement that finds these schedules."""

    schema = "public"

    def __init__(self, *, taken: list[str], orphaned: list[str], late: list[str]) -> None:
        self._row = tuple(json.dumps(names) for names in (taken, orphaned, [], late))

    def execute(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        assert name == "schedules_to_check"
        return [self._row]


def _without(name: str) -> list[Feature]:
    return [feature for feature in FEATURES if feature.name != name]


@pytest.fixture
def live_worker(dsn: str, pool: Pool) -> Iterator[None]:
    info = WorkerInfo(uuid4(), "host-1:77", "1", ("etl",), ("noop",), 1, unserved_tasks={"train": {"gpu": True}})
    WorkerLiveness(pool).send_heartbeat(info, heartbeat_sec=60)
    yield
    execute_sql(dsn, "TRUNCATE dl_workers")


@pytest.mark.usefixtures("live_worker")
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
