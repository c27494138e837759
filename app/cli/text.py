"""Payloads as plain text, for a pipe, a log and a screen reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Payload = Mapping[str, Any]
Columns = Mapping[str, str | Callable[[Any], Any]]  # heading → a field, or what makes the cell of an item

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
MAX_ERROR_LENGTH = 300
MAX_AMOUNT = 1e15  # a larger float is no longer exact; such a progress is shown as it came
_DAY_SEC, _HOUR_SEC, _MINUTE_SEC = 86_400, 3_600, 60


@dataclass(frozen=True)
class ProgressAmount:
    """How much of a job is done, where its progress has numbers."""

    done: float
    total: float | None
    unit: str


def one_line(raw: str) -> str:
    """Text of others on one line of the terminal: it cannot move the cursor, recolour or retitle anything."""
    return " ".join("".join(c if c.isprintable() else " " for c in raw).split())


def printable(raw: str) -> str:
    """A line without the characters that act on the terminal."""
    return "".join(c if c.isprintable() or c == "\t" else " " for c in raw)


def json_text(value: Any) -> str:
    return escape_json(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def json_line(value: Any) -> str:
    return escape_json(json.dumps(value, ensure_ascii=False))


def escape_json(raw: str) -> str:
    """Escape what JSON allows as it is, yet moves a cursor or reverses text. It means the same."""
    if raw.isprintable():
        return raw
    return "".join(c if c.isprintable() or c == "\n" else _escape_char(c) for c in raw)


def _escape_char(char: str) -> str:
    """`\\uXXXX`, beyond the first 65,536 characters a surrogate pair."""
    pair = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(pair[i : i + 2]):04x}" for i in range(0, len(pair), 2))


def parse_amount(progress: Payload) -> ProgressAmount | None:
    done = _parse_number(progress.get("processed", progress.get("done")))
    if done is None:
        return None
    unit = progress.get("unit")
    return ProgressAmount(done, _parse_number(progress.get("total")) or None, unit if isinstance(unit, str) else "")


def format_progress(progress: Payload) -> str:
    if not progress:
        return ""
    amount = parse_amount(progress)
    if amount is None:
        return one_line(json.dumps(progress, ensure_ascii=False))
    unit = f" {one_line(amount.unit)}" if amount.unit else ""
    if amount.total is None:
        return f"{_format_number(amount.done)}{unit}"
    return f"{_format_number(amount.done)} of {_format_number(amount.total)}{unit} ({amount.done / amount.total:.0%})"


def format_time(at: datetime | str | None) -> str:
    """A time in this machine's zone with its offset, as options such as --created-from take it."""
    if at is None:
        return ""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return moment.astimezone().isoformat(sep=" ", timespec="seconds")


def format_duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for size, unit in ((_DAY_SEC, "d"), (_HOUR_SEC, "h"), (_MINUTE_SEC, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def format_value(value: Any) -> str:
    """Any JSON value on one line; null is empty."""
    if value is None:
        return ""
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def format_error(error: str | None) -> str:
    return one_line(error or "")[:MAX_ERROR_LENGTH]


def time_of(field: str) -> Callable[[Payload], str]:
    """A column that shows the time in a field."""
    return lambda item: format_time(item[field])


def table_rows(columns: Columns, items: Sequence[Payload]) -> list[list[str]]:
    return [
        [format_value(item[cell] if isinstance(cell, str) else cell(item)) for cell in columns.values()]
        for item in items
    ]


def align_columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, never cut: a pipe has no width."""
    table = [names, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(names))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def state_line(state: Payload) -> str:
    """A job's state on one line."""
    attempt = f"attempt {state['attempt']}" if state["attempt"] else ""
    parts = [state["status"], attempt, format_progress(state["progress"]), format_error(state["error"])]
    return ", ".join(part for part in parts if part)


def state_lines(state: Payload) -> list[str]:
    """A job's state as names and values."""
    facts = {
        "job": state["job_id"],
        "status": state["status"],
        "attempt": str(state["attempt"]),
        "started": format_time(state["started_at"]),
        "heartbeat": format_time(state["heartbeat_at"]) if state["status"] == "running" else "",
        "finished": format_time(state["finished_at"]),
        "progress": format_progress(state["progress"]),
        "error": one_line(state["error"] or ""),
    }
    return [f"{name:<10} {value}" for name, value in facts.items() if value]


def log_line(line: Payload) -> str:
    """A line of a job's log after its time, attempt and level."""
    head = f"{format_time(line['ts'])}  {line['attempt']}  {one_line(line['level']):<8}"
    return f"{head} {printable(line['line'])}".rstrip()


def _parse_number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MAX_AMOUNT
    return float(value) if usable else None


def _format_number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.2f}"
