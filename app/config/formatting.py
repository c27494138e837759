"""Formats the values of settings as they are written in the environment, without their secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from app.config import dsn, tasks
from app.config.values import QueueWorkers, Rotation


def format_value(value: Any) -> str:
    match value:
        case SecretStr():
            secret = value.get_secret_value()
            text = dsn.mask_dsn(secret) if "=" in secret or "://" in secret else dsn.MASK
        case bool():
            text = str(value).lower()
        case float():
            text = f"{value:.10g}"
        case Rotation():
            text = value.text
        case tuple() if all(isinstance(part, QueueWorkers) for part in value):
            text = json.dumps([vars(part) for part in value], ensure_ascii=False, separators=(",", ":"))
        case tuple():
            text = ",".join(value)
        case Mapping():
            text = json.dumps({name: _format_part(v) for name, v in value.items()}, ensure_ascii=False)
        case _:
            text = "" if value is None else str(value)
    return text


def _format_part(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tasks.mask_environment(value)
    return list(value) if isinstance(value, tuple) else format_value(value)
