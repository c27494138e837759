"""Encodes response values as JSON."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any
from uuid import UUID


def dump_json(value: Any) -> str:
    try:
        return _encode(value)
    except ValueError:  # a jsonb number beyond the range of a float, written by another service
        return json.dumps(_replace_non_finite(json.loads(json.dumps(value, default=_default))))


def _default(value: Any) -> Any:
    """Encode times in UTC, UUIDs, and dataclasses as objects."""
    if isinstance(value, datetime):
        # Always UTC: the offsets of some old local times have seconds, which RFC 3339 does not allow.
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, UUID):
        return str(value)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "__dataclass_fields__"):
        return vars(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


_encode = json.JSONEncoder(default=_default, allow_nan=False).encode


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
