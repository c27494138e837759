from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from dataloader.app.errors import DatabaseUnavailable
from dataloader.pipelines.portable import clock
from dataloader.workers.threads import BackgroundThread, WakeupPipe
from tests.support.queue_fixture import BackgroundCall
from tests.support.waiting import eventually


@pytest.fixture
def wakeup() -> Iterator[WakeupPipe]:
    made = WakeupPipe()
    yield made
    made.close()


def test_clock_never_goes_back():
    times = [clock() for _ in range(1000)]

    assert times == sorted(times)


# ── the wake-up pipe ──────────────────────────────────────────────────────────────────────────────────────────


def test_wakeup_pipe_wakes_a_waiter_in_another_thread(wakeup: WakeupPipe):
    waiting = BackgroundCall(wakeup.wait, 30.0)

    wakeup.set()

    assert waiting.result() is True


def test_wakeup_set_before_the_wait_resteps_once(wakeup: WakeupPipe):
    for _ in range(3):
        wakeup.set()

    assert wakeup.wait(30.0) is True
    assert wakeup.wait(0.0) is False


def test_wakeup_without_a_waiter_never_blocks(wakeup: WakeupPipe):
    for _ in range(70_000):  # more than a pipe holds
        wakeup.set()

    assert wakeup.wait(0.0) is True


def test_wait_ends_when_a_descriptor_is_readable(wakeup: WakeupPipe):
    read_end, write_end = os.pipe()
    try:
        waiting = BackgroundCall(wakeup.wait, 30.0, read_end, None)
        os.write(write_end, b"x")

        assert waiting.result() is True
    finally:
        os.close(read_end)
        os.close(write_end)


def test_closed_wakeup_pipe_writes_to_no_reused_descriptor(monkeypatch: pytest.MonkeyPatch):
    make_pipe, pipes = os.pipe, list[tuple[int, int]]()

    def record_pipe() -> tuple[int, int]:
        pipes.append(make_pipe())
        return pipes[-1]

    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe", record_pipe)
        wakeup = WakeupPipe()
    ((_, write_end),) = pipes
    wakeup.close()
    read_end, other = os.pipe()
    if other != write_end:
        os.dup2(other, write_end)  # what any thread of the process may get when it opens something next
    os.set_blocking(read_end, False)
    try:
        wakeup.set()
        wakeup.close()

        with pytest.raises(BlockingIOError):
            os.read(read_end, 1)
        os.fstat(write_end)
    finally:
        for number in {read_end, other, write_end}:
            os.close(number)


# ── the thread ────────────────────────────────────────────────────────────────────────────────────────────────────


class Steps:
    def __init__(self, *answers: float | Exception) -> None:
        self.count = 0
        self.crashes: list[str] = []
        self._answers = list(answers)
        self.started = threading.Semaphore(0)

    def __call__(self) -> float:
        self.count += 1
        self.started.release()
        answer = self._answers.pop(0) if self._answers else 3600.0
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def looping() -> Iterator[Callable[[Steps], BackgroundThread]]:
    made: list[BackgroundThread] = []

    def start(steps: Steps) -> BackgroundThread:
        loop = BackgroundThread("test-thread", steps, on_crash=steps.crashes.append, outage_retry_sec=0.01)
        made.append(loop)
        loop.start()
        return loop

    yield start
    for loop in made:
        loop.stop()
        loop.join(20)
        assert not loop.is_alive()


def test_thread_waits_as_long_as_the_step_returned(looping):
    steps = Steps(0.0, 0.01, 0.0)

    looping(steps)

    eventually(lambda: steps.count == 4)


def test_wake_during_a_step_is_not_lost(looping):
    steps = Steps()
    loop = looping(steps)
    for expected in range(1, 50):
        steps.started.acquire(timeout=20)
        assert steps.count == expected
        loop.wake()

    eventually(lambda: steps.count == 50)


def test_stop_ends_the_thread_at_once(looping):
    steps = Steps()
    loop = looping(steps)
    eventually(lambda: steps.count == 1)

    loop.stop()

    loop.join(20)
    assert not loop.is_alive()
    assert steps.crashes == []


def test_outage_is_logged_once_and_step_retried(looping, logged):
    outage = DatabaseUnavailable("no answer")
    steps = Steps(outage, outage, outage, 0.0)

    looping(steps)

    eventually(lambda: steps.count == 5)
    assert logged("database.unavailable") == [{"error": "no answer"}]
    assert logged("database.available") == [{}]


def test_error_ends_the_background_thread_and_calls_on_crash(looping, logged):
    steps = Steps(ZeroDivisionError("a bug"))

    loop = looping(steps)

    eventually(lambda: steps.crashes)
    assert steps.crashes == ["test-thread"]
    loop.join(20)
    assert not loop.is_alive()
    assert logged("thread.crashed") == [{}]
