"""A question that hangs holds one thread, not its askers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from app.web.bounded import Bounded, NoAnswer
from tests.support import eventually


def test_the_answer_is_handed_on():
    assert Bounded(lambda: 7, patience_sec=10).get() == 7


def test_an_error_is_handed_on_and_the_next_question_is_asked_anew():
    answers: Iterator[ValueError | int] = iter([ValueError("no"), 7])

    def ask() -> int:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    question = Bounded(ask, patience_sec=10)

    with pytest.raises(ValueError, match="no"):
        question.get()
    assert question.get() == 7


def test_a_question_that_itself_times_out_is_not_taken_for_silence():
    def ask() -> int:
        raise TimeoutError("the driver's own")

    with pytest.raises(TimeoutError, match="the driver's own"):
        Bounded(ask, patience_sec=10).get()


def test_silence_ends_with_the_patience_and_opens_no_second_question():
    asked, answer = [], threading.Event()

    def ask() -> int:
        asked.append(1)
        answer.wait(30)
        return 7

    question = Bounded(ask, patience_sec=0.05)
    for _ in range(3):
        with pytest.raises(NoAnswer, match=r"no answer within 0\.05 s"):
            question.get()

    assert len(asked) == 1

    answer.set()
    assert eventually(lambda: _told(question)) == 7


def _told(question: Bounded[int]) -> int | None:
    try:
        return question.get()
    except NoAnswer:
        return None


def test_a_fresh_answer_serves_all_who_ask():
    count = iter(range(10))
    fresh = Bounded(lambda: next(count), patience_sec=10, fresh_sec=60)
    unkept = Bounded(lambda: next(count), patience_sec=10)

    assert [fresh.get(), fresh.get()] == [0, 0]
    assert [unkept.get(), unkept.get()] == [1, 2]
