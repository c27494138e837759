"""What a pipeline reports in addition to its result: checks, datasets and links. Pure values, validated. Portable."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

Severity = Literal["fail", "warn"]
CheckOutcome = Literal["passed", "warned", "failed"]
DatasetUseKind = Literal["produced", "consumed"]
MAX_NAME_BYTES = 200
MAX_DATASET_BYTES = 500
MAX_PARTITION_BYTES = 1_000
MAX_URL_BYTES = 2_000
MAX_REPORTS = 1_000  # of each kind, of one attempt
MAX_LINKS = 20
MIN_HISTORY = 3  # values, before a median counts
_MAX_HISTORY = 365
_MAX_ROWS = 2**63 - 1
_MEDIAN = re.compile(r"median:(\d{1,4})")


@dataclass(frozen=True)
class Check:
    """A value that a pipeline compared with its limits. `low` and `high` include what `median` allows."""

    name: str
    value: float
    outcome: CheckOutcome
    low: float | None = None
    high: float | None = None
    median: float | None = None  # of the values before it
    detail: str | None = None  # why it did not pass, or why the median did not count


@dataclass(frozen=True)
class CheckRequest:
    """The arguments of `ctx.check`, validated."""

    name: str
    value: float
    low: float | None
    high: float | None
    history_count: int  # earlier values to compare with
    tolerance: float
    severity: Severity

    def evaluate(self, history: Sequence[float]) -> Check:
        """Compare with the limits and with earlier values; with too few of these, only with the limits."""
        low, high, middle, detail = self.low, self.high, None, None
        if self.history_count:
            if len(history) < min(MIN_HISTORY, self.history_count):
                needed = min(MIN_HISTORY, self.history_count)
                detail = f"too little history for a median: {len(history)} of at least {needed} values"
            else:
                from statistics import median  # noqa: PLC0415 - slow to load, and few checks need it

                middle = median(history)
                margin = abs(middle) * self.tolerance
                low = middle - margin if low is None else max(low, middle - margin)
                high = middle + margin if high is None else min(high, middle + margin)
        outcome: CheckOutcome = "passed"
        if (low is not None and self.value < low) or (high is not None and self.value > high):
            outcome = "failed" if self.severity == "fail" else "warned"
            detail = self._describe(low, high, middle, len(history))
        return Check(self.name, self.value, outcome, low, high, middle, detail)

    def _describe(self, low: float | None, high: float | None, middle: float | None, count: int) -> str:
        limits = [f"{label} {limit:.15g}" for label, limit in (("low", low), ("high", high)) if limit is not None]
        if middle is not None:
            limits.append(f"median of the last {count} {middle:.15g}, tolerance {self.tolerance:g}")
        return f"{self.value:.15g} is outside its limits: {', '.join(limits)}"


def parse_check(
    name: object,
    value: object,
    *,
    low: object = None,
    high: object = None,
    vs: object = None,
    tolerance: object = None,
    severity: object = "fail",
) -> CheckRequest:
    """Raises ValueError, which names the argument."""
    if severity not in get_args(Severity):
        raise ValueError(f"severity must be 'fail' or 'warn', not {severity!r:.60}")
    history_count = 0
    if vs is not None:
        match = _MEDIAN.fullmatch(vs) if isinstance(vs, str) else None
        history_count = int(match[1]) if match else 0
        if not 1 <= history_count <= _MAX_HISTORY:
            raise ValueError(
                f"vs must be 'median:N' with N from 1 to {_MAX_HISTORY}, such as 'median:7', not {vs!r:.60}"
            )
    if (tolerance is None) != (vs is None):
        raise ValueError("vs and tolerance go together: vs='median:7', tolerance=0.3 allows 30 % to both sides")
    tolerated = 0.0 if tolerance is None else _number("tolerance", tolerance)
    if tolerated < 0:
        raise ValueError(f"tolerance must not be negative, as {tolerated:g} is; 0.3 is 30 %")
    request = CheckRequest(
        name=_text("name", name, MAX_NAME_BYTES),
        value=_number("value", value),
        low=None if low is None else _number("min", low),
        high=None if high is None else _number("max", high),
        history_count=history_count,
        tolerance=tolerated,
        severity=severity,  # type: ignore[arg-type]  # one of them
    )
    if request.low is not None and request.high is not None and request.low > request.high:
        raise ValueError(f"min is {request.low:g}, above max, which is {request.high:g}")
    return request


@dataclass(frozen=True)
class DatasetUse:
    """A dataset that a pipeline produced or consumed."""

    kind: DatasetUseKind
    dataset: str
    partition: str | None = None  # None: the job's own
    rows: int | None = None
    schema: Any = None


def parse_dataset(
    kind: Literal["produced", "consumed"],
    dataset: object,
    *,
    rows: object = None,
    partition: object = None,
    schema: Any = None,
) -> DatasetUse:
    """Raises ValueError, which names the argument."""
    if rows is not None and (isinstance(rows, bool) or not hasattr(rows, "__index__")):
        raise ValueError(f"rows must be a whole number, not {rows!r:.60}")
    count = None if rows is None else rows.__index__()  # such as numpy's
    if count is not None and not 0 <= count <= _MAX_ROWS:
        raise ValueError(f"rows must be from 0 to {_MAX_ROWS}")
    return DatasetUse(
        kind,
        _text("dataset", dataset, MAX_DATASET_BYTES),
        None if partition is None else _text("partition", partition, MAX_PARTITION_BYTES),
        count,
        schema,
    )


def parse_link(name: object, url: object) -> tuple[str, str]:
    """Return the name and the address. Raises ValueError, which names the argument."""
    address = _text("url", url, MAX_URL_BYTES)
    if not is_web_address(address):
        raise ValueError(f"url must begin with http:// or https:// and name a host, not {address[:60]!r}")
    return _text("name", name, MAX_NAME_BYTES), address


def is_web_address(url: object) -> bool:
    """Whether a browser opens it over HTTP: no `javascript:`, no `data:`."""
    if not isinstance(url, str) or not url.isprintable() or any(character in url for character in ' <>"\\'):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _text(argument: str, value: object, max_bytes: int) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{argument} must be a text that is neither empty nor has control characters")
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise ValueError(f"{argument} has {size} bytes in UTF-8, and may have {max_bytes}; it begins {value[:40]!r}")
    return value


def _number(argument: str, value: object) -> float:
    if not isinstance(value, Number) or isinstance(value, complex):
        raise ValueError(f"{argument} must be a number, not {value!r:.60}")
    try:
        number = float(value)  # type: ignore[arg-type]  # a Decimal, or one that is real
    except (OverflowError, ValueError):  # of more digits than a float has; a signaling NaN
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{argument} must be a finite number, not {str(value)[:60]}")
    return number
