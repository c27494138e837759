"""How the rest of the program speaks: an event, and its facts as fields."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from enum import StrEnum
from typing import Any

METRIC_LOGGER = "dataloader.metric"
AUDIT_LOGGER = "dataloader.audit"

Fields = Callable[[], Mapping[str, Any]]


def _nothing() -> Mapping[str, Any]:
    return {}


# Each thread begins with nothing bound; what it binds, it binds for itself.
_BOUND: ContextVar[Fields] = ContextVar("bound log fields", default=_nothing)


class Alert(StrEnum):
    """Events that people's alerts are built on: their names stay as they are."""

    CLAIM_BACKOFF = "worker.claim.backoff"
    COMPLETE_FAILED = "worker.complete.failed"
    REAPER_REQUEUED = "reaper.requeued"
    API_ERROR = "api.error"
    WEBHOOK_DISABLED = "webhook.disabled"


def bind(fields: Callable[[], Mapping[str, Any]]) -> Token[Fields]:
    """Add these to all that this thread says until `unbind`. They are asked for when something is said: most jobs say
    nothing."""
    before = _BOUND.get()
    return _BOUND.set(fields if before is _nothing else lambda: {**before(), **fields()})


def unbind(token: Token[Fields]) -> None:
    _BOUND.reset(token)


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Add these fields to all that this thread says within."""
    token = bind(lambda: fields)
    try:
        yield
    finally:
        unbind(token)


def bound_fields() -> dict[str, Any]:
    """What is bound now, to be bound again in another thread or process."""
    return dict(_BOUND.get()())


class Log:
    """The voice of one module: `log.info("reaper.requeued", count=3)`."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: Any) -> None:
        self._say(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._say(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._say(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._say(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._say(logging.ERROR, event, fields, exc_info=True)

    def is_heard(self, level: int) -> bool:
        """Whether anybody would hear it: for what is costly to tell."""
        return self._logger.isEnabledFor(level)

    def _say(self, level: int, event: str, fields: Mapping[str, Any], *, exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            # An event is said as it is: a percent sign in it is no placeholder, as there are no arguments. Nobody asks
            # for the line of code, which the module's name and the event tell, and which costs a walk up the stack.
            why, logger = sys.exc_info() if exc_info else None, self._logger
            logger.handle(logger.makeRecord(logger.name, level, "", 0, str(event), (), why, "", {"fields": fields}))


def get(name: str) -> Log:
    return Log(logging.getLogger(name))


_METRIC, _AUDIT = get(METRIC_LOGGER), get(AUDIT_LOGGER)


def metric(event: str, /, **fields: Any) -> None:
    """A line of the metrics file. Said to nobody when there is no such file."""
    _METRIC.info(event, **fields)


def audit(event: str, /, **fields: Any) -> None:
    """A line of the audit file: what was done, and by whom. Said to nobody when there is no such file."""
    _AUDIT.info(event, **fields)


def lines_are_kept() -> bool:
    """Is there a metrics or an audit file?"""
    return _METRIC.is_heard(logging.INFO) or _AUDIT.is_heard(logging.INFO)


def is_audited() -> bool:
    """Whether there is an audit file: what would be said to nobody need not be gathered."""
    return _AUDIT.is_heard(logging.INFO)


class AddBound(logging.Filter):
    """Puts the bound fields on a record while still in the thread that said it."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.bound = bound_fields()
        return True
