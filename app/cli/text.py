"""Payloads as plain text, for a pipe, a log and a screen reader."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dataloader.app import wording
from dataloader.app.wording import format_outside_calendar, is_outside_calendar, replace_utc_times

Payload = Mapping[str, Any]

_MAX_ERROR_LENGTH = 300


def one_line(raw: str) -> str:
    """Text of others on one line of the terminal: it cannot move the cursor, recolour or retitle anything."""
    return " ".join("".join(c if c.isprintable() else " " for c in raw).split())


def printable(raw: str) -> str:
    """A line without the characters that act on the terminal."""
    return "".join(c if c.isprintable() or c == "\t" else " " for c in raw)


def json_text(value: Any, indent: int | None = 2) -> str:
    """JSON in which what JSON allows as it is, yet moves a cursor or reverses text, is escaped."""
    raw = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in raw)


def json_line(value: Any) -> str:
    return json_text(value, indent=None)


def parse_amount(progress: Any) -> tuple[float, float | None, str] | None:
    """How much of a job is done, of how much, and the unit; None for a progress without numbers."""
    amount = wording.parse_amount(progress)
    return None if amount is None else (*amount[:2], one_line(amount[2]))


def format_progress(progress: Any) -> str:
    amount = parse_amount(progress)
    if amount is None:
        return "" if progress in (None, {}) else one_line(json.dumps(progress, ensure_ascii=False))
    done, total, unit = amount
    of_total, share = ("", "") if total is None else (f" of {_format_number(total)}", f" ({done / total:.0%})")
    return f"{_format_number(done)}{of_total}{f' {unit}' if unit else ''}{share}"


def format_estimate(progress: Payload) -> str:
    """The rate and the time left of an answer of `GET /api/v1/jobs/{job_id}/progress`; empty if there are none."""
    rate, remaining_sec, stalled_sec = (progress.get(name) for name in ("rate", "remaining_sec", "stalled_sec"))
    if isinstance(stalled_sec, int | float):
        return f"no progress for {wording.format_duration(stalled_sec)}"
    parts = [wording.format_rate(rate)] if isinstance(rate, int | float) and rate > 0 else []
    if isinstance(remaining_sec, int | float):
        parts.append(f"{wording.format_duration(remaining_sec)} left")
    return ", ".join(parts)


def format_time(at: datetime | str | None) -> str:
    """A time in the zone of the terminal (TZ, else the machine's) with its offset, as options such as --created-from
    take it."""
    if at is None:
        return ""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    if is_outside_calendar(moment):
        return format_outside_calendar(moment)
    return moment.astimezone().isoformat(sep=" ", timespec="seconds")


def format_value(value: Any) -> str:
    """Any JSON value on one line; null is empty."""
    if value is None:
        return ""
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def format_number(value: Any, pattern: str = "g") -> str:
    """A number in this pattern. NaN and infinity are texts in JSON."""
    return format(value, pattern) if isinstance(value, int | float) else format_value(value)


def format_field(field: str, value: Any) -> str:
    return format_time(value) if field in ("at", "ts") or field.endswith("_at") else format_value(value)


def localize_times(message: str) -> str:
    """A message of the service with its times in the zone of the terminal."""
    return replace_utc_times(message, format_time)


def format_message(message: str) -> str:
    """A message of the service on one line, with its times in the zone of the terminal."""
    return one_line(localize_times(message))


def format_error(error: str | None) -> str:
    return format_message(error or "")[:_MAX_ERROR_LENGTH]


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


def format_status(job: Payload) -> str:
    """A job's status; of a queued job that cannot be claimed also how it waits."""
    wait_state = job.get("wait_state")
    waits = job["status"] == "queued" and wait_state not in (None, "ready")
    return f"queued ({wait_state})" if waits else str(job["status"])


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


def _format_number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.2f}"
