"""Calls that a task with an interpreter of its own makes through its worker."""

from __future__ import annotations

import threading
import time
from typing import Any

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


def test_calls_at_once_are_done_one_after_another():
    """Processes that a task forks share its socket: calls at once would share a transaction."""
    calls, running, thread_counts = DatabaseCalls(attempt_with(task="t"), lambda: None), set(), []

    def work(**_: Any) -> None:
        running.add(threading.get_ident())
        thread_counts.append(len(running))
        time.sleep(0.002)
        running.discard(threading.get_ident())

    calls._calls = {"upstream": work}
    for _ in range(20):
        calls.start("upstream", {})

    eventually(lambda: len(thread_counts) == 20)
    calls.end()
    assert thread_counts == [1] * 20
    assert calls.finished() == [{"value": None}] * 20


def test_flood_of_calls_is_refused():
    calls, is_over = DatabaseCalls(attempt_with(task="t"), lambda: None), threading.Event()
    calls._calls = {"upstream": lambda: is_over.wait(20)}
    before = threading.active_count()
    for _ in range(1000):
        calls.start("upstream", {})

    replies = calls.finished()
    assert threading.active_count() == before + 1
    assert 800 < len(replies) < 1000
    assert {next(iter(reply)) for reply in replies} == {"value_error"}
    is_over.set()
    calls.end()
