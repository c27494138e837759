"""Handlers on, handlers off: once by the process that owns its logging, never by a library."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TextIO
from zoneinfo import ZoneInfo

from app.log.files import RotatingFile
from app.log.lines import JsonLines, TextLines
from app.log.masking import Masker
from app.log.speaking import AUDIT_LOGGER, METRIC_LOGGER, AddBound

_NEVER = logging.CRITICAL + 1


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What to say where. A file that is None does not exist."""

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
    keep_files: int = 10
    secrets: tuple[str, ...] = field(default=(), repr=False)
    masked_keys: tuple[str, ...] = ()  # words that make a name a secret's, beside those that everybody knows


# What this thread says in one breath, by who writes it; None: each line is written as it is said.
_GATHERED: ContextVar[dict[Console, list[str]] | None] = ContextVar("lines that are written together", default=None)


@contextmanager
def gathered() -> Iterator[None]:
    """What this thread says within is written to standard error in one piece, at the end: each time that something is
    written another thread takes the interpreter."""
    lines: dict[Console, list[str]] = {}
    token = _GATHERED.set(lines)
    try:
        yield
    finally:
        _GATHERED.reset(token)
        for console, of_its in lines.items():
            console.write(of_its)


class Console(logging.StreamHandler[TextIO]):
    """A terminal that was closed costs lines, and there is nobody left to tell."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = _GATHERED.get()
        if lines is None:
            super().emit(record)
            return
        try:
            lines.setdefault(self, []).append(self.format(record))
        except Exception:  # as the handler's own emit has it
            self.handleError(record)

    def write(self, lines: Sequence[str]) -> None:
        with self.lock or nullcontext(), suppress(OSError, ValueError):  # the latter: it was closed
            self.stream.write("".join(f"{line}{self.terminator}" for line in lines))
            self.flush()

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def set_up(options: LogOptions) -> None:
    """Let all loggers of the process, other libraries' too, speak as the options say.

    A second call replaces the first. No file is opened before something is said to it.
    """
    masker, zone = Masker(options.secrets, options.masked_keys), ZoneInfo(options.timezone)
    stream = options.stream or sys.stderr
    on_terminal = stream.isatty()
    json_lines = JsonLines(masker, zone)
    text_lines = TextLines(masker, zone, colour=False)

    def file(path: Path, lines: logging.Formatter) -> logging.Handler:
        handler = RotatingFile(
            path,
            max_bytes=options.rotate_bytes,
            every_sec=options.rotate_every_sec,
            keep_files=options.keep_files,
            zone=zone,
        )
        return _ours(handler, lines)

    console_is_text = options.format == "text" or (options.format == "auto" and on_terminal)
    colourful = TextLines(masker, zone, colour=options.colour and on_terminal)
    application = [_ours(Console(stream), colourful if console_is_text else json_lines)]
    if options.file is not None:
        application.append(file(options.file, text_lines if options.format == "text" else json_lines))

    tear_down()
    _give(logging.getLogger(), application, logging.DEBUG if options.debug else logging.INFO)
    for name, path in ((METRIC_LOGGER, options.metric_file), (AUDIT_LOGGER, options.audit_file)):
        logger = logging.getLogger(name)
        logger.propagate = False
        _give(logger, [file(path, json_lines)] if path else [], logging.INFO if path else _NEVER)


def tear_down() -> None:
    """Close what `set_up` opened, and leave other people's handlers alone."""
    for name, level in ((None, logging.WARNING), (METRIC_LOGGER, logging.NOTSET), (AUDIT_LOGGER, logging.NOTSET)):
        logger = logging.getLogger(name)
        ours = [handler for handler in logger.handlers if isinstance(handler, Console | RotatingFile)]
        for handler in ours:
            logger.removeHandler(handler)
            handler.close()
        if name:
            logger.propagate = True
        logger.setLevel(level)


def _ours(handler: logging.Handler, lines: logging.Formatter) -> logging.Handler:
    handler.setFormatter(lines)
    handler.addFilter(AddBound())
    return handler


def _give(logger: logging.Logger, handlers: list[logging.Handler], level: int) -> None:
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(level)
