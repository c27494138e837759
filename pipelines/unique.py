"""The live key of jobs that are unique by some of their args."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

_MAX_VALUES_LENGTH = 250  # characters in a live key, of up to four bytes


def unique_live_key(task: str, names: Iterable[str], args: Mapping[str, Any]) -> str:
    """Return the live key that jobs of a task have with these values of the named args."""
    named = [_comparable(args.get(name)) for name in names]
    values = json.dumps(named, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=str)
    if len(values) > _MAX_VALUES_LENGTH:
        values = hashlib.sha256(values.encode("utf-8", "surrogatepass")).hexdigest()
    return f"unique:{task}:{values}"


def _comparable(value: Any) -> Any:
    """The same for values that PostgreSQL's jsonb takes as equal: 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _comparable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    return value
