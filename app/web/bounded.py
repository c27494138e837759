"""A question that may hang, asked so that its asker does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class NoAnswer(Exception):
    """The question is still open after all the patience there was."""


class Bounded(Generic[T]):
    """Asks in a thread of its own, one question at a time, and shares the answer among all who wait for it.

    A database that is silent costs each asker `patience_sec`, and the process one thread however many ask.
    """

    def __init__(self, ask: Callable[[], T], *, patience_sec: float, fresh_sec: float = 0.0) -> None:
        self._ask = ask
        self._patience_sec = patience_sec
        self._fresh_sec = fresh_sec
        self._lock = threading.Lock()
        self._open: Future[T] | None = None  # under the lock, as are the next two
        self._last: Future[T] | None = None
        self._answered_at = 0.0

    def get(self) -> T:
        """The answer, at most `fresh_sec` old. Raises what the question raised, or `NoAnswer`."""
        answer = self._answer()
        try:
            return answer.result(self._patience_sec)
        except TimeoutError:
            if answer.done():  # the question itself ended with a time-out
                raise
            raise NoAnswer(f"no answer within {self._patience_sec:g} s") from None

    def _answer(self) -> Future[T]:
        with self._lock:
            if self._last is not None and time.monotonic() - self._answered_at < self._fresh_sec:
                return self._last
            if self._open is None:
                self._open = Future()
                threading.Thread(target=self._turn, args=(self._open,), name="web-question", daemon=True).start()
            return self._open

    def _turn(self, answer: Future[T]) -> None:
        try:
            found = self._ask()
        except BaseException as error:
            self._close(answer)
            answer.set_exception(error)
        else:
            self._close(answer)
            answer.set_result(found)

    def _close(self, answer: Future[T]) -> None:
        with self._lock:
            self._open, self._last, self._answered_at = None, answer, time.monotonic()
