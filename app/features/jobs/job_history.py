"""The events of a job in words, and where the reasons of its state lead."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape

from dataloader.app.acts.reasons import ExplanationReason
from dataloader.app.http.links import quote_name
from dataloader.app.log.masking import mask_secret_fields
from dataloader.app.queue.job_records import JobEvent
from dataloader.app.ui.formatter import Formatter

_EDITED_FIELDS = (
    "priority", "available_at", "args", "max_attempts", "lease_ttl_sec", "time_limit_sec", "retry", "partition_key",
)  # fmt: skip
_MAX_VALUE_LENGTH = 80
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NOTHING = object()
# By kind of event: the word, the class of its state, and the details, with the name of who or what it concerns.
_WORDS = {
    "queued": ("created", "", "by {name}"),
    "picked": ("attempt {attempt} started", "running", "on {name}"),
    "done": ("attempt {attempt} succeeded", "succeeded", ""),
    "failed": ("failed", "failed", ""),
    "lost": ("lost", "lost", ""),
    "canceled": ("canceled", "canceled", ""),
    "limited": ("limited", "limited", "by the limit {name}"),
    "released": ("ready", "ready", "the limit {name} has room"),
    "cancel_requested": ("cancel requested", "warning", ""),
    "stop_pending": ("stop not obeyed yet", "warning", ""),
}


@dataclass(frozen=True)
class Change:
    """A field that was edited."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class HistoryRow:
    """An event: `style` is the class of its state, `word` what happened, `details` the rest."""

    at: datetime
    word: str
    style: str = ""
    details: str = ""
    changes: list[Change] = field(default_factory=list)


@dataclass(frozen=True)
class Link:
    url: str
    title: str


def describe_event(event: JobEvent, formatter: Formatter) -> HistoryRow:
    payload = event.payload
    reason = str(payload.get("reason") or "").replace("_", " ")
    if event.kind == "edited":
        return HistoryRow(event.ts, "edited", changes=list(_changes(payload, formatter)))
    if event.kind == "requeue":
        return HistoryRow(event.ts, *_describe_requeue(payload, reason, formatter))
    word, style, details = _WORDS.get(event.kind, (event.kind.replace("_", " "), "", ""))
    known = {name: payload[name] for name in ("producer", "worker", "waits_on", "limit") if payload.get(name)}
    values = {"attempt": payload.get("attempt"), "name": next(iter(known.values()), "")}
    shown = details.format(**values) if known or "{name}" not in details else ""
    return HistoryRow(event.ts, word.format(**values), style, shown or reason)


def reason_links(reason: ExplanationReason) -> list[Link]:
    """The pages that show what a job waits for."""
    return list(_reason_links(reason.details))


def link_job_ids(sentence: str) -> Markup:
    """The sentence with each job's id as a short link."""
    parts, end = [], 0
    for match in _UUID.finditer(sentence):
        parts += [escape(sentence[end : match.start()]), Markup('<a class="mono" href="/jobs/{}">{}</a>').format(
            match[0], Formatter.short_id(match[0]))]  # fmt: skip
        end = match.end()
    return Markup("").join([*parts, escape(sentence[end:])])


def _reason_links(details: Mapping[str, Any]) -> Iterator[Link]:
    if details.get("limit"):
        yield Link(f"/limits#limit-{quote_name(details['limit'])}", f"limit {details['limit']}")
    if details.get("graph_id"):
        yield Link(f"/graphs/{details['graph_id']}", "its graph")
    if "probe_at" in details:
        yield Link("/limits#breakers", "circuit breakers")
    if details.get("schedule"):
        yield Link(f"/schedules/{quote_name(details['schedule'])}", f"schedule {details['schedule']}")
    if details.get("queue"):
        yield Link("/queues", f"queue {details['queue']}")
    if "ahead" in details or "threads" in details or "seen_at" in details or "per_worker" in details:
        yield Link("/workers", "workers")


def _describe_requeue(payload: Mapping[str, Any], reason: str, formatter: Formatter) -> tuple[str, str, str]:
    if reason != "error":
        return "queued again", "ready", reason
    pause = payload.get("pause_sec")
    details = f"retried in {formatter.duration(pause)}" if isinstance(pause, int | float) and pause > 0 else "retried"
    return f"attempt {payload.get('attempt')} failed", "failed", details


def _changes(payload: Mapping[str, Any], formatter: Formatter) -> Iterator[Change]:
    before, after = (
        dict(value) if isinstance(value := payload.get(name), dict) else {} for name in ("before", "after")
    )
    for name in _EDITED_FIELDS:
        old, new = before.get(name, _NOTHING), after.get(name, _NOTHING)
        if old is _NOTHING and new is _NOTHING:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            old, new = mask_secret_fields(old), mask_secret_fields(new)
            for key in sorted({*old, *new}):
                if old.get(key, _NOTHING) != new.get(key, _NOTHING):
                    yield Change(f"{name}.{key}", _value(old.get(key, _NOTHING)), _value(new.get(key, _NOTHING)))
        elif name == "available_at":
            yield Change("scheduled for", *(_time(value, formatter) for value in (old, new)))
        else:
            yield Change(name, _value(old), _value(new))


def _value(value: Any) -> str:
    if value is _NOTHING or value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 1] + "…"


def _time(value: Any, formatter: Formatter) -> str:
    try:
        return formatter.time(datetime.fromisoformat(value))
    except (ValueError, TypeError):
        return _value(value)
