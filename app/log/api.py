"""The logging API of the program: an event with fields."""

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


def _no_fields() -> Mapping[str, Any]:
    return {}


# Each thread starts without bound fields.
_BOUND: ContextVar[Fields] = ContextVar("bound log fields", default=_no_fields)


class Alert(StrEnum):
    """Events that operators alert on: their names are a contract."""

    CLAIM_BACKOFF = "worker.claim.backoff"
    COMPLETE_FAILED = "worker.complete.failed"
    REAPER_REQUEUED = "reaper.requeued"
    API_ERROR = "api.error"
    WEBHOOK_DISABLED = "webhook.disabled"


def bind(fields: Callable[[], Mapping[str, Any]]) -> Token[Fields]:
    """Add these fields to every line of this thread until `unbind`. They are computed when a line is written."""
    before = _BOUND.get()
    return _BOUND.set(fields if before is _no_fields else lambda: {**before(), **fields()})


def unbind(token: Token[Fields]) -> None:
    _BOUND.reset(token)


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Add these fields to every line of this thread within the block."""
    token = bind(lambda: fields)
    try:
        yield
    finally:
        unbind(token)


def bound_fields() -> dict[str, Any]:
    """Return the bound fields, to be bound again in another thread or process."""
    return dict(_BOUND.get()())


class Log:
    """The logger of one module: `log.info("reaper.requeued", count=3)`."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: Any) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._emit(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._emit(logging.ERROR, event, fields, exc_info=True)

    def is_enabled(self, level: int) -> bool:
        """Return whether a line of this level is written: for what is costly to collect."""
        return self._logger.isEnabledFor(level)

    def _emit(self, level: int, event: str, fields: Mapping[str, Any], *, exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            # There are no arguments, so a percent sign is no placeholder. The caller's line, which costs a walk up the
            # stack, is left out: the module and the event identify it.
            error, logger = sys.exc_info() if exc_info else None, self._logger
            logger.handle(logger.makeRecord(logger.name, level, "", 0, str(event), (), error, "", {"fields": fields}))


def get(name: str) -> Log:
    return Log(logging.getLogger(name))


_METRIC, _AUDIT = get(METRIC_LOGGER), get(AUDIT_LOGGER)
_FILE_LOGGERS = (logging.getLogger(METRIC_LOGGER), logging.getLogger(AUDIT_LOGGER))


def metric(event: str, /, **fields: Any) -> None:
    """Write a line to the metrics file, if there is one."""
    _METRIC.info(event, **fields)


def audit(event: str, /, **fields: Any) -> None:
    """Write a line to the audit file, if there is one."""
    _AUDIT.info(event, **fields)


def audit_file_enabled() -> bool:
    """Return whether there is an audit file."""
    return _AUDIT.is_enabled(logging.INFO)


def file_logging_enabled() -> bool:
    """Return whether there is a metrics or an audit file."""
    metric_logger, audit_logger = _FILE_LOGGERS
    return metric_logger.isEnabledFor(logging.INFO) or audit_logger.isEnabledFor(logging.INFO)


class BoundFieldsFilter(logging.Filter):
    """Adds the bound fields to a record in the thread that logs it."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.bound = bound_fields()
        return True
