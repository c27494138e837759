"""Templates of scheduled jobs: texts in which placeholders stand for the times of a job."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from dataloader.pipelines.job_args import REFERENCE_KEYS

PLACEHOLDERS = ("logical_at", "interval_start", "interval_end", "partition")
_DIRECTIVES = re.compile(r"(?:[^%{}]|%(?:-?[dHIjmMSUWwy]|[aAbBpuVYGzZfsT%]))*")
_MAX_DEPTH = 50


def check_template(value: Any, path: str = "") -> None:
    """Raises ValueError for a text whose placeholders no job can fill; the message names the place."""
    fill_template(value, dict.fromkeys(PLACEHOLDERS, _ANY), "UTC", path)


class _Any:
    """Stands for a value that is not known yet."""


_ANY = _Any()


def fill_template(value: Any, values: Mapping[str, Any], zone: str, path: str = "") -> Any:
    """Return the value with the placeholders of all its texts replaced, times in the zone: as RFC 3339 texts, or by a
    strftime format, as in `{interval_start:%Y-%m-%d}`. References to secrets and results stay. Raises ValueError."""
    if path.count("/") > _MAX_DEPTH:
        raise ValueError(f"{path[:100]}: nested deeper than {_MAX_DEPTH}")
    if isinstance(value, str):
        try:
            return _fill_text(value, values, zone)
        except ValueError as error:
            raise ValueError(f"{path.lstrip('/').replace('/', '.')}: {error}" if path else str(error)) from None
    if isinstance(value, Mapping):
        if any(key in value for key in REFERENCE_KEYS):
            return value
        return {key: fill_template(inner, values, zone, f"{path}/{key}") for key, inner in value.items()}
    if isinstance(value, list):
        return [fill_template(inner, values, zone, f"{path}/{n}") for n, inner in enumerate(value)]
    return value


def _fill_text(text: str, values: Mapping[str, Any], zone: str) -> str:
    if "{" not in text and "}" not in text:
        return text
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError:
        raise ValueError(f"the braces of {text!r} do not match; write {{{{ and }}}} for braces") from None
    return "".join(
        literal + ("" if name is None else _fill_placeholder(name, form or "", conversion, values, zone))
        for literal, name, form, conversion in parts
    )


def _fill_placeholder(name: str, form: str, conversion: str | None, values: Mapping[str, Any], zone: str) -> str:
    if name not in PLACEHOLDERS or conversion:
        known = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
        raise ValueError(f"{{{name}}} is none of the placeholders {known}")
    value = values.get(name)
    if value is None:
        raise ValueError(f"this job has no {name}")
    if form and (name == "partition" or not _DIRECTIVES.fullmatch(form)):
        raise ValueError(f"{{{name}:{form}}}: {form!r} is no strftime format for it")
    if isinstance(value, _Any):
        return ""
    if not isinstance(value, datetime):
        return str(value)
    local = value.astimezone(ZoneInfo(zone))
    return local.strftime(form) if form else local.isoformat()
