"""Limits of a job: names, and the weight with which the job counts in each while it runs. Portable."""

from __future__ import annotations

from collections.abc import Mapping

MAX_NAME_BYTES = 200
_MAX_LIMITS = 4
_MAX_WEIGHT = 1_000_000
_OWN_PREFIXES = ("queue:", "task:")


def check_limits(limits: object) -> None:
    """Raises ValueError for limits that no job can have."""
    if not isinstance(limits, Mapping):
        raise ValueError('must be names with weights, such as {"warehouse": 2}')
    if len(limits) > _MAX_LIMITS:
        raise ValueError(f"names {len(limits)} limits; a job has at most {_MAX_LIMITS}")
    for name, weight in limits.items():
        check_limit_name(name)
        if name.endswith("*"):
            raise ValueError(f"{name!r} ends in *, which is for the defaults of limits")
        if name.startswith(_OWN_PREFIXES):
            raise ValueError(f"{name!r} applies by itself to the jobs of that queue or task; leave it out")
        _check_weight(f"the weight of {name!r}", weight)


def check_calls(limit: object, n: object) -> None:
    """Raises ValueError for calls that no rate can count."""
    check_limit_name(limit)
    _check_weight(f"the number of calls in {limit!r}", n)


def _check_weight(label: str, weight: object) -> None:
    if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= _MAX_WEIGHT:
        raise ValueError(f"{label} must be a whole number from 1 to {_MAX_WEIGHT:,}")


def check_limit_name(name: object) -> None:
    """Raises ValueError."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ValueError("a limit's name is a text that is neither empty nor has control characters")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise ValueError(f"a limit's name has at most {MAX_NAME_BYTES} bytes in UTF-8; this one begins {name[:40]!r}")
