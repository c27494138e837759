"""What the thread of the heartbeat does for queues whose claims no longer start at the front."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dataloader.app.errors import DatabaseUnavailable
from dataloader.pipelines.portable import clock
from dataloader.pipelines.retry import Fixed
from dataloader.workers import front_scans
from dataloader.workers.claim_timers import PollTimer
from dataloader.workers.front_scans import FrontScans
from dataloader.workers.queue_buffer import QueueBuffer

FOUND = ("5", "2026-01-01 00:00:00+00", "00000000-0000-0000-0000-000000000001")


class RecordedQueue:
    def __init__(self, *, is_failing: bool = False) -> None:
        self.sent: list[str] = []
        self._is_failing = is_failing

    def promote_overdue(self) -> None:
        self.sent.append("promote")

    def find_first_ready(self, queue: str, tasks: Any, *, quiet_priority: str | None) -> tuple[Any, float]:
        self.sent.append(f"scan {queue}")
        if self._is_failing:
            raise DatabaseUnavailable("it took too long")
        return FOUND, 0.1

    def defer_unknown_tasks(self, queue: str, tasks: Any) -> dict[str, int]:
        self.sent.append(f"defer in {queue}")
        return {}


def make(queue: RecordedQueue, *, slow: str, quick: str = "") -> tuple[FrontScans, dict[str, QueueBuffer], list[Any]]:
    names = (*slow.split(), *quick.split())
    buffers = {name: QueueBuffer(name, 1, threading.Condition(), PollTimer(Fixed(15))) for name in names}
    for name in slow.split():
        for _ in range(3):
            buffers[name].cursor.front_pace.record(0.1)
    woken: list[Any] = []
    dispatcher: Any = SimpleNamespace(
        queues=buffers, claims=SimpleNamespace(), claim_soon=lambda buffer: woken.append(buffer.queue)
    )
    return FrontScans(queue, ("t",), dispatcher), buffers, woken  # type: ignore[arg-type]


def test_quick_fronts_cost_nothing():
    queue = RecordedQueue()
    scans, _, _ = make(queue, slow="", quick="a b")

    scans.run_once()

    assert queue.sent == []


def test_each_call_sends_one_statement_and_each_has_its_turn(monkeypatch: pytest.MonkeyPatch):
    now = [clock()]
    monkeypatch.setattr(front_scans, "clock", lambda: now[0])
    queue = RecordedQueue()
    scans, buffers, woken = make(queue, slow="a b", quick="c")

    for n in range(40):
        scans.run_once()
        assert len(queue.sent) <= n + 1
        now[0] += 1.0

    assert set(queue.sent) == {"defer in a", "defer in b", "scan a", "scan b", "promote"}
    assert queue.sent[:2] == ["scan a", "scan b"]
    assert queue.sent.count("scan a") >= 5
    assert queue.sent.count("defer in a") == 1
    assert set(woken) == {"a", "b"}
    assert buffers["a"].cursor.start(now[0], promoted=False) is not None


@pytest.mark.parametrize("position", [None, FOUND])
def test_scan_that_takes_too_long_ends_nothing(position: Any):
    """Where a process knows no position, its next claim starts at the front: it may take longer than a scan."""
    queue = RecordedQueue(is_failing=True)
    scans, buffers, woken = make(queue, slow="a")
    cursor = buffers["a"].cursor
    cursor.position = position

    for _ in range(5):
        scans.run_once()

    assert queue.sent.count("scan a") == 1
    assert cursor.is_front_slow
    assert woken == ([] if position else ["a"])
    assert cursor.start(clock(), promoted=False) is not None
