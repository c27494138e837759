"""Formats a log record as one line: JSON for programs, text for people."""

from __future__ import annotations

import json
import logging
from datetime import datetime, tzinfo
from typing import Any

from dataloader.app.log.masking import Masker

_RESERVED = ("time", "level", "logger", "event", "pid", "thread")
# Valid inside JSON, but some readers end a line there, and some terminals obey it.
_UNSAFE_IN_JSON = {
    code: f"\\u{code:04x}"
    for code in (
        *range(0x7F, 0xA0), 0x2028, 0x2029,
        0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF,  # change the direction of text
    )
}  # fmt: skip
_ENCODE = json.JSONEncoder(ensure_ascii=False).encode
_COLOURS = {"DEBUG": "\x1b[2m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}
_RESET = "\x1b[0m"


class JsonLineFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, event, then the bound fields, then its own."""

    def __init__(self, masker: Masker, zone: tzinfo) -> None:
        super().__init__()
        self.masker = masker
        self._zone = zone

    def format(self, record: logging.LogRecord) -> str:
        _repair_arguments(record)
        extra = record.msg if isinstance(record.msg, dict) else {}
        fields = {
            "time": datetime.fromtimestamp(record.created, self._zone).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": "" if extra else record.getMessage(),
            "pid": record.process,
            "thread": record.threadName,
            **_fields_of(record),
            **{_unreserved(key): value for key, value in extra.items()},
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields.setdefault("error", record.exc_info[1])
            fields.setdefault("traceback", self.formatException(record.exc_info))
        if record.stack_info:
            fields.setdefault("stack_info", self.formatStack(record.stack_info))
        text = _ENCODE(self.masker.mask_fields(fields))
        return text if text.isascii() and "\x7f" not in text else text.translate(_UNSAFE_IN_JSON)


class TextLineFormatter(logging.Formatter):
    """Formats a record as a line of text. Lines of a traceback follow, each marked with a bar."""

    def __init__(self, masker: Masker, zone: tzinfo, *, colour: bool) -> None:
        super().__init__()
        self.masker = masker
        self._zone = zone
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        _repair_arguments(record)
        timestamp = datetime.fromtimestamp(record.created, self._zone).isoformat(sep=" ", timespec="milliseconds")
        level = f"{record.levelname:<7}"
        if self._colour and record.levelname in _COLOURS:
            level = f"{_COLOURS[record.levelname]}{level}{_RESET}"
        event = _one_line(self.masker.mask_text(record.getMessage()))
        fields = self.masker.mask_fields(_fields_of(record))
        pairs = "".join(f" {_one_line(key)}={_format_value(value)}" for key, value in fields.items())
        return f"{timestamp} {level} {_one_line(record.name)}: {event}{pairs}{self._format_traceback(record)}"

    def _format_traceback(self, record: logging.LogRecord) -> str:
        if not record.exc_info:
            return ""
        lines = self.masker.mask_text(self.formatException(record.exc_info)).split("\n")
        return "".join(f"\n  | {_one_line(line)}" for line in lines)


def _repair_arguments(record: logging.LogRecord) -> None:
    """Replace a message of another library whose arguments do not fit it."""
    try:
        record.getMessage()
    except Exception:  # formatting runs foreign __str__ and __format__
        record.msg, record.args = f"{record.msg!s} (with arguments that do not fit it)", ()


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    fields = {**getattr(record, "bound", {}), **getattr(record, "fields", {})}
    return {_unreserved(key): value for key, value in fields.items()}


def _unreserved(key: Any) -> Any:
    return f"{key}_" if key in _RESERVED else key


def _format_value(value: Any) -> str:
    if isinstance(value, str) and value and not any(mark in value for mark in ' "=\\'):
        return _one_line(value)
    return _one_line(json.dumps(value, ensure_ascii=False))


def _one_line(text: str) -> str:
    """Escape everything that could start a line, move a cursor or change the direction of the text."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
