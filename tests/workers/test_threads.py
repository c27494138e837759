from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from app.errors import DatabaseUnavailable
from tests.support.desk import Aside
from tests.support.waiting import eventually
from workers.threads import Bell, Loop, clock


@pytest.fixture
def bell() -> Iterator[Bell]:
    made = Bell()
    yield made
    made.close()


def test_the_clock_never_goes_back():
    times = [clock() for _ in range(1000)]

    assert times == sorted(times)


# ── the bell ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bell_wakes_one_who_waits_in_another_thread(bell: Bell):
    waiting = Aside(bell.wait, 30.0)

    bell.ring()

    assert waiting.result() is True


def test_a_bell_that_was_rung_before_the_wait_is_heard_once(bell: Bell):
    for _ in range(3):
        bell.ring()

    assert bell.wait(30.0) is True
    assert bell.wait(0.0) is False


def test_a_bell_nobody_listens_to_can_be_rung_for_ever(bell: Bell):
    for _ in range(70_000):  # more than a pipe holds
        bell.ring()

    assert bell.wait(0.0) is True


def test_a_wait_ends_when_something_else_can_be_read(bell: Bell):
    ears, rope = os.pipe()
    try:
        waiting = Aside(bell.wait, 30.0, ears, None)
        os.write(rope, b"x")

        assert waiting.result() is True
    finally:
        os.close(ears)
        os.close(rope)


def test_a_closed_bell_writes_into_nobody_elses_file():
    bell = Bell()
    rope = bell._rope
    bell.close()
    ears, other = os.pipe()
    if other != rope:
        os.dup2(other, rope)  # what any thread of the process may get when it opens something next
    os.set_blocking(ears, False)
    try:
        bell.ring()
        bell.close()

        with pytest.raises(BlockingIOError):
            os.read(ears, 1)
        os.fstat(rope)
    finally:
        for number in {ears, other, rope}:
            os.close(number)


def test_a_bell_is_made_where_there_is_no_pipe2(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "pipe2", raising=False)
    bell = Bell()

    bell.ring()

    assert bell.wait(0.0) is True
    assert bell.wait(0.0) is False
    bell.close()


# ── the loop ────────────────────────────────────────────────────────────────────────────────────────────────────


class Turns:
    def __init__(self, *answers: float | Exception) -> None:
        self.taken = 0
        self.died: list[str] = []
        self._answers = list(answers)
        self.taking = threading.Semaphore(0)

    def __call__(self) -> float:
        self.taken += 1
        self.taking.release()
        answer = self._answers.pop(0) if self._answers else 3600.0
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def looping() -> Iterator[Callable[[Turns], Loop]]:
    made: list[Loop] = []

    def start(turns: Turns) -> Loop:
        loop = Loop("keeper", turns, died=turns.died.append, away=0.01)
        made.append(loop)
        loop.start()
        return loop

    yield start
    for loop in made:
        loop.stop()
        assert loop.join(20)


def test_a_loop_takes_its_next_turn_after_the_pause_the_last_one_asked_for(looping):
    turns = Turns(0.0, 0.01, 0.0)

    looping(turns)

    eventually(lambda: turns.taken == 4)


def test_a_ring_during_a_turn_is_not_lost(looping):
    turns = Turns()
    loop = looping(turns)
    for expected in range(1, 50):
        turns.taking.acquire(timeout=20)
        assert turns.taken == expected
        loop.ring()

    eventually(lambda: turns.taken == 50)


def test_a_stop_ends_the_loop_at_once(looping):
    turns = Turns()
    loop = looping(turns)
    eventually(lambda: turns.taken == 1)

    loop.stop()

    assert loop.join(20) is True
    assert not loop.alive
    assert turns.died == []


def test_a_database_that_is_away_is_told_once_and_the_turn_is_taken_again(looping, said):
    away = DatabaseUnavailable("no answer")
    turns = Turns(away, away, away, 0.0)

    looping(turns)

    eventually(lambda: turns.taken == 5)
    assert said("database.away") == [{"keeper": "keeper", "error": "no answer"}]
    assert said("database.back") == [{"keeper": "keeper"}]


def test_a_bug_ends_the_loop_and_is_told_to_whoever_must_know(looping, said):
    turns = Turns(ZeroDivisionError("a bug"))

    loop = looping(turns)

    eventually(lambda: turns.died)
    assert turns.died == ["keeper"]
    assert loop.join(20)
    assert said("keeper.died") == [{"keeper": "keeper"}]
