"""Answers as plain text, for a pipe, a log and a screen reader. Nothing here draws."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.client import JobEvent, JobLine, JobLogLine, JobState
from app.queue.job import Status

# The last ones are the first that a narrow terminal does without.
JOB_COLUMNS = ("job", "status", "task", "queue", "try", "progress", "created", "error")
EVENT_COLUMNS = ("time", "event", "details")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
ERROR_CHARACTERS = 300
LARGEST_AMOUNT = 1e15  # beyond it a float no longer counts; such a progress is shown as it came


@dataclass(frozen=True)
class Amount:
    """How much of a job is done, where its progress says so with numbers."""

    done: float
    total: float | None
    unit: str


def clean(told: str) -> str:
    """Text of others on one line of the terminal: it cannot move the cursor, recolour or retitle anything."""
    return " ".join("".join(c if c.isprintable() else " " for c in told).split())


def plain(told: str) -> str:
    """A line as it was said, but for what would act on the terminal."""
    return "".join(c if c.isprintable() or c == "\t" else " " for c in told)


def json_text(value: Any) -> str:
    return harmless(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def json_line(value: Any) -> str:
    return harmless(json.dumps(value, ensure_ascii=False))


def harmless(told: str) -> str:
    """JSON that a terminal can show: what JSON lets stand as it is, yet moves a cursor or turns the text around, is
    written out. It means the same."""
    if told.isprintable():
        return told
    return "".join(c if c.isprintable() or c == "\n" else _written_out(c) for c in told)


def _written_out(char: str) -> str:
    """As JSON writes it: beyond the first 65,536 characters as a pair."""
    pair = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(pair[i : i + 2]):04x}" for i in range(0, len(pair), 2))


def amount(progress: Mapping[str, Any]) -> Amount | None:
    done = _number(progress.get("processed", progress.get("done")))
    if done is None:
        return None
    unit = progress.get("unit")
    return Amount(done, _number(progress.get("total")) or None, unit if isinstance(unit, str) else "")


def progress_text(progress: Mapping[str, Any]) -> str:
    if not progress:
        return ""
    so_far = amount(progress)
    if so_far is None:
        return clean(json.dumps(progress, ensure_ascii=False))
    unit = f" {clean(so_far.unit)}" if so_far.unit else ""
    if so_far.total is None:
        return f"{_figure(so_far.done)}{unit}"
    return f"{_figure(so_far.done)} of {_figure(so_far.total)}{unit} ({so_far.done / so_far.total:.0%})"


def local_time(at: datetime | str | None) -> str:
    """A time in this machine's zone, with its offset: what is shown can be given to --created-from and the like."""
    if at is None:
        return ""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return moment.astimezone().isoformat(sep=" ", timespec="seconds")


def state_line(state: JobState) -> str:
    """A job's state in one line, for a watcher's log."""
    parts = [state.status.value]
    if state.attempt:
        parts.append(f"attempt {state.attempt}")
    if state.progress:
        parts.append(progress_text(state.progress))
    if state.error:
        parts.append(clean(state.error)[:ERROR_CHARACTERS])
    return ", ".join(parts)


def state_lines(state: JobState) -> list[str]:
    """A job's state as a block of names and values."""
    facts = {
        "job": str(state.job_id),
        "status": state.status.value,
        "attempt": str(state.attempt),
        "started": local_time(state.started_at),
        "heartbeat": local_time(state.heartbeat_at) if state.status is Status.RUNNING else "",
        "finished": local_time(state.finished_at),
        "progress": progress_text(state.progress),
        "error": clean(state.error or ""),
    }
    return [f"{name:<10} {value}" for name, value in facts.items() if value]


def job_rows(jobs: Iterable[JobLine]) -> list[tuple[str, ...]]:
    return [
        (
            str(job.job_id),
            job.status.value,
            clean(job.task),
            clean(job.queue),
            f"{job.attempt}/{job.max_attempts}",
            progress_text(job.progress),
            local_time(job.created_at),
            clean(job.error or "")[:ERROR_CHARACTERS],
        )
        for job in jobs
    ]


def event_rows(events: Iterable[JobEvent]) -> list[tuple[str, ...]]:
    return [
        (
            local_time(event.at),
            clean(event.kind),
            clean(json.dumps(event.payload, ensure_ascii=False)) if event.payload else "",
        )
        for event in events
    ]


def log_line(line: JobLogLine) -> str:
    """A line of a job's log as it was said, behind when, in which try and how gravely."""
    return f"{local_time(line.at)}  {line.attempt}  {clean(line.level):<8} {plain(line.line)}".rstrip()


def columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, never cut: a pipe has no width."""
    table = [names, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(names))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < LARGEST_AMOUNT
    return float(value) if usable else None


def _figure(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.2f}"
