"""Calls that a task with an interpreter of its own makes through its worker."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from dataloader.pipelines.contract import StopReason
from dataloader.workers.isolation.database_calls import DatabaseCalls
from tests.support import eventually
from tests.support.claimed_jobs import attempt_with


def test_call_of_child_that_is_stopped_raises_stop():
    attempt = attempt_with(task="t")
    attempt.stop(StopReason.CANCEL)
    calls = DatabaseCalls(attempt, lambda: None)

    calls.start("enqueue", {"task": "t"})
    calls.end()

    assert calls.finished() == [{"stop": "cancel"}]
    assert calls.finished() == []


def test_call_without_database_or_with_wrong_arguments_is_an_error():
    calls = DatabaseCalls(attempt_with(task="t"), lambda: None)
    wrong: dict[str, dict[str, Any]] = {
        "try_acquire": {"limit": 5},
        "fan_out": {},
        "enqueue": {"task": "t", "available_at": "x"},
        "produced": {"dataset": "d"},
    }
    for name, arguments in {"upstream": {}, **wrong}.items():
        calls.start(name, arguments)
        calls.end()

    kinds = [next(iter(reply)) for reply in calls.finished()]

    assert kinds[1:] == ["value_error", "type_error", "value_error", "value_error"]
    assert kinds[0] == "unavailable"


def test_calls_at_once_are_done_one_after_another(monkeypatch: pytest.MonkeyPatch):
    """Processes that a task forks share its socket: calls at once would share a transaction."""
    attempt, running, thread_counts = attempt_with(task="t"), set(), []

    def work(**_: Any) -> None:
        running.add(threading.get_ident())
        thread_counts.append(len(running))
        time.sleep(0.002)
        running.discard(threading.get_ident())

    monkeypatch.setattr(attempt, "draw_fence", work)
    calls = DatabaseCalls(attempt, lambda: None)
    for _ in range(20):
        calls.start("draw_fence", {})

    eventually(lambda: len(thread_counts) == 20)
    calls.end()
    assert thread_counts == [1] * 20
    assert calls.finished() == [{"value": None}] * 20


def test_flood_of_calls_is_refused(monkeypatch: pytest.MonkeyPatch):
    attempt, is_over = attempt_with(task="t"), threading.Event()
    monkeypatch.setattr(attempt, "draw_fence", lambda: is_over.wait(20))
    calls = DatabaseCalls(attempt, lambda: None)
    before = threading.active_count()
    for _ in range(1000):
        calls.start("draw_fence", {})

    replies = calls.finished()
    assert threading.active_count() == before + 1
    assert 800 < len(replies) < 1000
    assert {next(iter(reply)) for reply in replies} == {"value_error"}
    is_over.set()
    calls.end()
