"""The texts of log records. Portable."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def level_of(record: logging.LogRecord) -> str:
    return LEVELS[min(max(record.levelno // 10 - 1, 0), len(LEVELS) - 1)]


def record_texts(record: logging.LogRecord) -> list[str]:
    """Return the message without its fields, and a traceback or stack that the record has."""
    try:
        message = record.getMessage()
    except Exception:  # formatting calls any object's __str__
        message = f"{record.msg!r} (with arguments that do not fit it)"
    texts = [message]
    if record.exc_info:
        texts.append(logging.Formatter().formatException(record.exc_info))
    if record.stack_info:
        texts.append(record.stack_info)
    return texts


def record_fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def add_fields(message: str, fields: Mapping[str, Any]) -> str:
    """Return a message with fields of JSON data, as in `loaded rows=3`."""
    for name, value in fields.items():
        is_plain = isinstance(value, str) and " " not in value
        message += f" {name}={value if is_plain else json.dumps(value, ensure_ascii=False)}"
    return message
