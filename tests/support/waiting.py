"""Waiting on a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T], timeout: float = 60, message: str | Callable[[], str] = "", *, period: float = 0.005
) -> T:
    """Ask until the answer is true, and give it back. AssertionError with the last answer when time is up.

    `message` may be a callable that tells what the world looked like at the end. What takes long is asked less and less
    often, for many a question costs those more time who are to make it true.
    """
    deadline = time.monotonic() + timeout
    while not (answer := predicate()):
        if time.monotonic() > deadline:
            told = message() if callable(message) else message
            raise AssertionError(f"not within {timeout} s: {told or predicate} (last answer: {answer!r})")
        time.sleep(period)
        period = min(period * 1.2, max(period, 0.05))
    return answer
