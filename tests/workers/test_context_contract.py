"""The contexts of a thread, an isolated process, another interpreter and a test answer the same questions alike."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import Settlement, Status
from dataloader.pipelines.contract import Pipelines, load_tasks
from dataloader.pipelines.portable import clock
from dataloader.pipelines.reported_state import ReportedState
from dataloader.pipelines.testing import FakeContext
from dataloader.pipelines.testing import run as run_fake
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.isolation.run import run_isolated
from dataloader.workers.reports.secrets import SecretStore
from tests.support import context_questions
from tests.support.claimed_jobs import CapturedLines
from tests.support.context_questions import CLEAN_UP, QUESTIONS, SAFE_POINTS
from tests.support.queue_fixture import QueueFixture
from tests.workers.isolation.old_project import OLDEST

START, END = datetime(2030, 1, 31, tzinfo=UTC), datetime(2030, 2, 1, tzinfo=UTC)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = "s3cret-of-partner"
MODULE = "tests.support.context_questions"
OPTIONS: dict[str, dict[str, Any]] = {  # of the task, by kind of context
    "thread": {"isolation": "thread"},
    "process": {"isolation": "process"},
    "interpreter": {"isolation": "process", "python": OLDEST},
}


class Answers:
    """What a context answered and reported."""

    def __init__(self, result: Any, reported: ReportedState, lines: list[tuple[str, str]], outcome: Any = None) -> None:
        self.result, self.reported, self.lines, self.outcome = result, reported, lines, outcome


@pytest.fixture
def ask(queue_db: QueueFixture, tmp_path: Path) -> Any:
    """Run a task of the questions in a context of some kind, with a real queue unless it is the one for tests."""

    def run(kind: str, call: str, args: dict[str, Any] | None = None) -> Answers:
        if kind == "fake":
            return ask_fake(call, args or {})
        tasks = Pipelines()
        definition: dict[str, Any] = {"call": f"{MODULE}:{call}", **OPTIONS[kind]}
        if kind == "interpreter":
            source = Path(context_questions.__file__).read_text(encoding="utf-8")
            (tmp_path / "questions.py").write_text(source, encoding="utf-8")
            definition |= {"call": f"questions:{call}", "cwd": str(tmp_path)}
        assert load_tasks((), {"ask": definition}, known_tasks=tasks) == {}
        queue_db.enqueue("key", task="ask", args=args or {})
        (job,) = queue_db.claim(tasks=["ask"])
        captured = CapturedLines()
        settings = AttemptSettings(
            connection_settings=ConnectionSettings(dsn=queue_db.dsn, schema="public", targets={}),
            tasks={"ask": definition},
            run_isolated=run_isolated,
            secret_store=SecretStore({"DL_SECRET_PARTNER": SECRET}),
            log=captured,
        )
        row = job._replace(
            attempt=2, max_attempts=5, traceparent=TRACE, partition_key="2030-01-31", logical_at=END,
            interval_start=START, interval_end=END, checkpoint_text='{"page": 3}', progress_text="{}",
        )  # fmt: skip
        attempt = Attempt(row, claimed_at=clock(), settings=settings)
        outcome = attempt.run(tasks.get("ask"))
        assert isinstance(outcome, Settlement)
        lines = [(level, text) for level, stream, text in captured.lines if stream == "log"]
        return Answers(outcome.result, attempt.reported, lines, outcome)

    return run


def ask_fake(call: str, args: dict[str, Any]) -> Answers:
    ctx = FakeContext(
        task="ask", attempt=2, max_attempts=5, resume={"page": 3}, logical_at=END, interval=(START, END),
        partition="2030-01-31", traceparent=TRACE,
    )  # fmt: skip
    result = run_fake(getattr(context_questions, call), args, ctx)
    return Answers(json.loads(json.dumps(result)), ctx.reported, [])


@pytest.mark.parametrize("kind", [*OPTIONS, "fake"])
def test_every_context_gives_the_same_answers(ask: Any, kind: str):
    answers = ask(kind, "ask")

    assert answers.result == {name: expected for name, (_, expected) in QUESTIONS.items()}
    reported = answers.reported
    assert {**reported.progress, "links": len(reported.progress["links"])} == {
        "processed": 2, "total": 10, "unit": "rows", "file": "a", "counts": {"read": 4, "bad": 1}, "links": 20,
    }  # fmt: skip
    assert reported.checkpoint is None
    assert [(check["name"], check["outcome"]) for check in reported.checks] == [
        ("rows", "passed"), ("bad", "warned"), ("few", "failed"), ("new", "passed"),
    ]  # fmt: skip
    assert [(use["kind"], use["dataset"], use["partition"], use["rows"]) for use in reported.datasets] == [
        ("produced", "sales", "p", 8), ("consumed", "orders", None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [*OPTIONS, "fake"])
def test_every_context_stops_at_the_same_calls(ask: Any, kind: str):
    answers = ask(kind, "ask_while_stopped")

    assert answers.result == {
        "stopped": dict.fromkeys(SAFE_POINTS, "Stop"),
        "cleaned": dict.fromkeys(CLEAN_UP),
        "stopping_in": 0.0,
        "reason": "cancel",
    }


@pytest.mark.parametrize("kind", OPTIONS)
def test_no_context_reports_a_secret(ask: Any, kind: str):
    answers = ask(kind, "report_secret", {"password": {"$secret": "partner"}})

    outcome, reported = answers.outcome, answers.reported
    assert (outcome.status, outcome.error) == (Status.QUEUED, "ValueError: cannot open ***")
    assert SECRET not in outcome.traceback
    assert reported.progress == {"message": "***", "links": {"with ***": "https://user:***@example.org/***"}}
    assert reported.checkpoint == {"key": "***"}
    assert [check["name"] for check in reported.checks] == ["rows of ***"]
    assert [(use["dataset"], use["partition"], use["schema"]) for use in reported.datasets] == [
        ("table ***", "***", {"comment": "***"})
    ]
    assert outcome.error_fingerprint in (
        "ValueError context_questions.py:report_secret",
        "ValueError questions.py:report_secret",
    )
    if kind != "thread":  # its lines are captured by a pool
        assert answers.lines[-1] == ("INFO", f"read {SECRET} credential=*** rows=1")  # redacted when they are written
