"""Our values as JSON text."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any
from uuid import UUID


def json_text(answer: Any) -> str:
    try:
        return _encoded(answer)
    except ValueError:  # a jsonb number past what a float holds, written by another service
        return json.dumps(_finite(json.loads(json.dumps(answer, default=_plain))))


def _plain(value: Any) -> Any:
    """What JSON has no word for: times in UTC, ids, and our own values as objects."""
    if isinstance(value, datetime):
        # UTC always: the offsets of old local times have seconds, which RFC 3339 does not know.
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, UUID):
        return str(value)
    if hasattr(value, "__dataclass_fields__"):
        return vars(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_encoded = json.JSONEncoder(default=_plain, allow_nan=False).encode


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
