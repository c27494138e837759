"""Sets up the handlers of a process; a library never does."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TextIO
from zoneinfo import ZoneInfo

from dataloader.app.log.api import AUDIT_LOGGER, METRIC_LOGGER, BoundFieldsFilter
from dataloader.app.log.files import RotatingFileHandler
from dataloader.app.log.formatters import JsonLineFormatter, TextLineFormatter
from dataloader.app.log.masking import Masker

_LEVEL_OFF = logging.CRITICAL + 1


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Where and how a process logs. There is no file whose path is None."""

    format: Literal["auto", "json", "text"] = "auto"  # auto: text on a terminal, JSON otherwise
    debug: bool = False
    colour: bool = True  # on a terminal only
    timezone: str = "UTC"
    stream: TextIO | None = None  # None: standard error
    file: Path | None = None
    metric_file: Path | None = None
    audit_file: Path | None = None
    rotate_bytes: int | None = None
    rotate_every_sec: int | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    masked_keys: tuple[str, ...] = ()  # more words that mark a name as a secret's


class ConsoleHandler(logging.StreamHandler[TextIO]):
    """Drops the lines that a closed terminal does not take."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def set_up(options: LogOptions) -> None:
    """Set up all loggers of the process, also those of other libraries.

    A second call replaces the first. A file is opened by its first line.
    """
    masker, zone = Masker(options.secrets, options.masked_keys), ZoneInfo(options.timezone)
    stream = options.stream or sys.stderr
    on_terminal = stream.isatty()
    json_lines = JsonLineFormatter(masker, zone)
    text_lines = TextLineFormatter(masker, zone, colour=False)

    def add_file(logger: logging.Logger, path: Path, formatter: logging.Formatter) -> None:
        every_sec = options.rotate_every_sec
        handler = RotatingFileHandler(path, max_bytes=options.rotate_bytes, every_sec=every_sec, zone=zone)
        _add_handler(logger, handler, formatter)

    tear_down()
    root = logging.getLogger()
    root.setLevel(logging.DEBUG if options.debug else logging.INFO)
    console_is_text = options.format == "text" or (options.format == "auto" and on_terminal)
    coloured_lines = TextLineFormatter(masker, zone, colour=options.colour and on_terminal)
    _add_handler(root, ConsoleHandler(stream), coloured_lines if console_is_text else json_lines)
    if options.file is not None:
        add_file(root, options.file, text_lines if options.format == "text" else json_lines)
    for name, path in ((METRIC_LOGGER, options.metric_file), (AUDIT_LOGGER, options.audit_file)):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.setLevel(logging.INFO if path else _LEVEL_OFF)
        if path is not None:
            add_file(logger, path, json_lines)


def tear_down() -> None:
    """Close what `set_up` opened; the handlers of others stay."""
    for name, level in ((None, logging.WARNING), (METRIC_LOGGER, logging.NOTSET), (AUDIT_LOGGER, logging.NOTSET)):
        logger = logging.getLogger(name)
        ours = [handler for handler in logger.handlers if isinstance(handler, ConsoleHandler | RotatingFileHandler)]
        for handler in ours:
            logger.removeHandler(handler)
            handler.close()
        if name:
            logger.propagate = True
        logger.setLevel(level)


def _add_handler(logger: logging.Logger, handler: logging.Handler, formatter: logging.Formatter) -> None:
    handler.setFormatter(formatter)
    handler.addFilter(BoundFieldsFilter())
    logger.addHandler(handler)
