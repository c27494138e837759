"""The live key of jobs that are unique by some of their args."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

_MAX_VALUES_LENGTH = 250  # characters in a live key, of up to four bytes


def unique_live_key(task: str, names: Iterable[str], args: Mapping[str, Any]) -> str:
    """Return the live key that jobs of a task have with these values of the named args."""
    values = json.dumps([args.get(name) for name in names], ensure_ascii=False, separators=(",", ":"), default=str)
    if len(values) > _MAX_VALUES_LENGTH:
        values = hashlib.sha256(values.encode("utf-8", "surrogatepass")).hexdigest()
    return f"unique:{task}:{values}"
