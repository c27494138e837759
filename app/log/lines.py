"""One record as one line, whatever was in it: JSON for programs, text for people."""

from __future__ import annotations

import json
import logging
from datetime import datetime, tzinfo
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from app.log.masking import Masker

_RESERVED = ("time", "level", "logger", "event", "pid", "thread")
# Valid inside JSON, yet taken for the end of a line, or obeyed, by some readers and terminals.
_UNSAFE_IN_JSON = {
    code: f"\\u{code:04x}"
    for code in (
        *range(0x7F, 0xA0), 0x2028, 0x2029,
        0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF,  # what turns the text around
    )
}  # fmt: skip
_ENCODE = json.JSONEncoder(ensure_ascii=False).encode
_quote = json.encoder.encode_basestring
_COLOURS = {"DEBUG": "\x1b[2m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}
_PLAIN = "\x1b[0m"


class JsonLines(JsonFormatter):
    """A JSON object a line: time, level, logger, event, then what is bound, then the fields."""

    def __init__(self, masker: Masker, zone: tzinfo) -> None:
        super().__init__()
        self.masker = masker
        self._zone = zone

    def format(self, record: logging.LogRecord) -> str:
        if type(record.msg) is str and not (record.args or record.exc_info or record.exc_text or record.stack_info):
            told = self._told(record, record.msg)
            if self.masker.lets_through(told):  # as nearly every line
                return "{" + ", ".join([f"{_quote(name)}: {_plain(value)}" for name, value in told.items()]) + "}"
        _make_sayable(record)
        return super().format(record)

    def _told(self, record: logging.LogRecord, event: str) -> dict[str, Any]:
        return {
            "time": _when(record, self._zone).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
            "pid": record.process,
            "thread": record.threadName,
            **_facts(record),
        }

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        log_data |= self._told(record, record.message)
        if record.exc_info and record.exc_info[1] is not None:
            log_data.setdefault("error", record.exc_info[1])
        if "exc_info" in message_dict:
            log_data.setdefault("traceback", message_dict.pop("exc_info"))
        log_data |= {_free(key): value for key, value in message_dict.items()}

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        return self.masker.fields(log_data)

    def serialize_log_record(self, log_data: dict[str, Any]) -> str:
        text = _ENCODE(log_data)  # what has been masked is plain JSON
        return text if text.isascii() and "\x7f" not in text else text.translate(_UNSAFE_IN_JSON)


class TextLines(logging.Formatter):
    """A line for people. A traceback follows on lines of its own, marked so that it can pass for nothing else."""

    def __init__(self, masker: Masker, zone: tzinfo, *, colour: bool) -> None:
        super().__init__()
        self.masker = masker
        self._zone = zone
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        _make_sayable(record)
        when = _when(record, self._zone).isoformat(sep=" ", timespec="milliseconds")
        level = f"{record.levelname:<7}"
        if self._colour and record.levelname in _COLOURS:
            level = f"{_COLOURS[record.levelname]}{level}{_PLAIN}"
        event = _one_line(self.masker.text(record.getMessage()))
        fields = self.masker.fields(_facts(record))
        told = "".join(f" {_one_line(key)}={_quoted(value)}" for key, value in fields.items())
        return f"{when} {level} {_one_line(record.name)}: {event}{told}{self._traceback(record)}"

    def _traceback(self, record: logging.LogRecord) -> str:
        if not record.exc_info:
            return ""
        lines = self.masker.text(self.formatException(record.exc_info)).split("\n")
        return "".join(f"\n  | {_one_line(line)}" for line in lines)


def _plain(value: str | float | bool | None) -> str:
    match value:
        case str():
            return _quote(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
    return repr(value)


def _make_sayable(record: logging.LogRecord) -> None:
    """Other people's records may have arguments that do not fit their message."""
    try:
        record.getMessage()
    except Exception:  # formatting runs anybody's __str__ and __format__
        record.msg, record.args = f"{record.msg!s} (with arguments that do not fit it)", ()


def _when(record: logging.LogRecord, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(record.created, zone)


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts = {**getattr(record, "bound", {}), **getattr(record, "fields", {})}
    return {_free(key): value for key, value in facts.items()}


def _free(key: Any) -> Any:
    return f"{key}_" if key in _RESERVED else key


def _quoted(value: Any) -> str:
    if isinstance(value, str) and value and not any(mark in value for mark in ' "=\\'):
        return _one_line(value)
    return _one_line(json.dumps(value, ensure_ascii=False))


def _one_line(text: str) -> str:
    """The text with everything written out that could start a line, move a cursor or turn the text around."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _written_out(char) for char in text)


def _written_out(char: str) -> str:
    return char.encode("unicode_escape").decode()
