"""Waiting on a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from dataloader.app.errors import DatabaseUnavailable

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T],
    timeout_sec: float = 60,
    message: str | Callable[[], str] = "",
    *,
    interval_sec: float = 0.005,
) -> T:
    """Ask until the answer is true, and give it back. AssertionError with the last answer when time is up.

    `message` may be a callable that describes the final state. Probes that take long are repeated less and less
    often, for many a question costs those more time who are to make it true.
    """
    deadline = time.monotonic() + timeout_sec
    while not (answer := predicate()):
        if time.monotonic() > deadline:
            result = message() if callable(message) else message
            raise AssertionError(f"not within {timeout_sec} s: {result or predicate} (last answer: {answer!r})")
        time.sleep(interval_sec)
        interval_sec = min(interval_sec * 1.2, max(interval_sec, 0.05))
    return answer


def answer_of(call: Callable[[], T]) -> T:
    """Return what the database answers to a call with a short timeout, which a stall of the machine may exceed."""
    answers: list[T] = []

    def has_answered() -> bool:
        with suppress(DatabaseUnavailable):
            answers.append(call())
        return bool(answers)

    eventually(has_answered)
    return answers[0]
