"""The exception of the stop escalation ends the pipeline of the thread in which it is raised, and never a later one."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dataloader.app.queue.job import Settlement, Status
from dataloader.pipelines.contract import Pipelines, StopReason
from dataloader.pipelines.runner import run_task
from dataloader.workers.attempt import Attempt
from dataloader.workers.outcome import Outcome
from tests.support import eventually
from tests.support.claimed_jobs import attempt_with


def tasks(call: Any) -> Pipelines:
    made = Pipelines()
    made.register("t", interrupt=True)(call)
    return made


def test_busy_pipeline_is_interrupted_once():
    attempt = attempt_with()
    stop = threading.Thread(target=lambda: (eventually(lambda: attempt.started_at), interrupt(attempt)))

    def spin(args: dict[str, Any]) -> None:
        stop.start()
        while True:
            sum(range(100))

    end = attempt.run(tasks(spin).get("t"))
    stop.join()

    assert isinstance(end, Settlement)
    assert end.status is Status.CANCELED
    assert not attempt.interrupt()


def interrupt(attempt: Attempt) -> bool:
    attempt.stop(StopReason.CANCEL)
    assert attempt.interrupt()
    return True


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns every few bytecodes: on a fast machine the hunter would never be in time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_late_interrupt_hits_neither_worker_nor_next_job():
    """Hundreds of attempts that end by themselves, each of them interrupted at about that moment."""
    # A queue in C: an interrupt within a lock of Python's own would leave it locked for ever.
    ready: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
    hits: list[bool] = []

    def hunt() -> None:
        while (attempt := ready.get()) is not None:
            attempt.stop(StopReason.CANCEL)
            hits.append(attempt.interrupt())

    hunter = threading.Thread(target=hunt)
    hunter.start()
    strayed: list[BaseException] = []
    ends: list[Outcome] = []
    deadline = time.monotonic() + 60
    while (len(ends) < 400 or not any(hits)) and time.monotonic() < deadline:
        n = len(ends) + len(strayed)
        attempt = attempt_with()

        def brief(args: dict[str, Any], n: int = n, attempt: Attempt = attempt) -> str:
            ready.put(attempt)
            return "x" * sum(1 for _ in range(n % 40))

        try:
            ends.append(attempt.run(tasks(brief).get("t")))
            sum(1 for _ in range(2000))  # the worker's own: an interrupt that strays would land here
        except BaseException as error:
            strayed.append(error)
    ready.put(None)
    hunter.join()

    assert strayed == []
    assert {end.status for end in ends if isinstance(end, Settlement)} <= {Status.SUCCEEDED, Status.CANCELED}
    assert len(ends) >= 400
    assert any(hits), "one of them at least was met at work"


def test_internal_error_leaves_no_pending_interrupt(monkeypatch: pytest.MonkeyPatch):
    class Cursed(Exception):
        @property
        def retry_after(self) -> float:
            raise RuntimeError("not even that")

    def breaks(args: dict[str, Any]) -> None:
        raise Cursed("odd")

    attempt = attempt_with()
    end = attempt.run(tasks(breaks).get("t"))

    assert isinstance(end, Settlement)
    assert (end.status, end.error) == (Status.QUEUED, "RuntimeError: not even that")
    assert not attempt.interrupt()


def test_final_commit_counts_despite_an_interrupt_after_it(monkeypatch: pytest.MonkeyPatch):
    attempt = attempt_with()
    monkeypatch.setattr(type(attempt), "is_settled_by_task", property(lambda self: True))

    def sealed(args: dict[str, Any]) -> None:
        interrupt(attempt)
        sum(1 for _ in range(1000))

    assert type(attempt.run(tasks(sealed).get("t"))).__name__ == "SettledByTask"


def test_stop_is_raised_in_a_returned_generator():
    seen: list[str] = []
    attempt = attempt_with()

    def steps():
        try:
            while True:
                yield
                attempt.stop(StopReason.CANCEL)
        finally:
            seen.append("cleaned")

    task = tasks(lambda args: steps()).get("t")
    assert task is not None
    with pytest.raises(BaseException, match="cancel"):
        run_task(task, {}, attempt)

    assert seen == ["cleaned"]
