"""A request that comes a second way: what it was called on the first, and what it came to there."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Again:
    request_id: str
    told: bool = False  # its beginning is counted, and in the audit
    failure: Exception | None = None  # the database was asked already, and this is what that came to


_AGAIN: ContextVar[Again | None] = ContextVar("what the request has come to already", default=None)


@contextmanager
def once_more(again: Again | None) -> Iterator[None]:
    """The request that this thread answers within was here before; None: it was not."""
    token = _AGAIN.set(again)
    try:
        yield
    finally:
        _AGAIN.reset(token)


def before() -> Again | None:
    return _AGAIN.get()


def fail_as_before() -> None:
    """What was asked for, and not answered, is not asked for twice."""
    again = _AGAIN.get()
    if again is not None and again.failure is not None:
        raise _of_its_own(again.failure)


def _of_its_own(error: Exception) -> Exception:
    """Many may have come to the same error: each raises one of its own, for a traceback grows as it is raised."""
    try:
        own = copy.copy(error)
    except Exception:  # one that cannot be made again of what it shows
        return error
    own.__cause__ = error.__cause__
    return own.with_traceback(None)
