"""The language of the search field on the page of jobs: `task:load.invoices status:failed created:1d timeout`.

A word with a colon sets a field of the filter, every other word is text that is searched in args and errors. The page
keeps the filter in its address, field by field, and shows each field as a word that can be removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from dataloader._job_filter import FILTER_FIELDS, MAX_ARGS
from dataloader.app.queue.job import WAIT_STATES, Status
from dataloader.app.ui.base import InvalidForm, parse_time
from dataloader.app.wording import parse_duration

# Of each word: the field that it sets, and an example.
WORDS: Mapping[str, tuple[str, str]] = {
    "task": ("task", "task:load.invoices"),
    "queue": ("queue", "queue:etl.default"),
    "status": ("status", "status:failed,lost"),
    "key": ("lock_key", "key:invoices:2026-11-22"),
    "error": ("error", "error:HTTPError"),
    "worker": ("worker", "worker:etl-03"),
    "tag": ("tag", "tag:month-end"),
    "id": ("job_id", "id:019f1c00-0000-7000-8000-000000000001"),
    "idempotency": ("idempotency_key", "idempotency:order-4711"),
    "partition": ("partition_key", "partition:2026-11-22"),
    "producer": ("producer", "producer:billing"),
    "group": ("consumer_group", "group:etl"),
    "fingerprint": ("fingerprint", "fingerprint:3f2a"),
    "warnings": ("warnings", "warnings:true"),
}
SPANS = ("created", "started", "finished")
_ARGS = "args."
_TOKEN = re.compile(
    r'(?P<word>[a-z]+|args\.[^\s:"]+):(?:"(?P<quoted>[^"]*)"|(?P<value>\S+))|"(?P<phrase>[^"]*)"|(?P<text>\S+)'
)
_RELATIVE = re.compile(r"\d{1,5}[smhdw]")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_ONE_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Chip:
    """A field of the filter as a word of the search, and the filter without it."""

    word: str
    value: str
    without: dict[str, str]


def parse_words(raw: str, zone: str, now: datetime) -> dict[str, str]:
    """The fields that a search sets, as the address of the page has them. Raises InvalidForm."""
    fields: dict[str, str] = {}
    texts: list[str] = []
    for token in _TOKEN.finditer(raw):
        word, value = token["word"], token["quoted"] if token["quoted"] is not None else token["value"]
        if word in WORDS:
            fields[WORDS[word][0]] = value
        elif word in SPANS:
            fields |= _parse_span(word, value, zone, now)
        elif word is not None and word.startswith(_ARGS):
            fields["args"] = "\n".join(filter(None, (fields.get("args"), f"{word.removeprefix(_ARGS)}:{value}")))
        elif word == "state":
            fields["status"] = value
        else:
            texts.append(token["phrase"] if token["phrase"] is not None else token[0])
    if texts:
        fields["text"] = " ".join(texts)
    return _split_states(fields)


def join_fields(fields: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """A filter narrowed by more fields. Raises InvalidForm."""
    joined = {**fields, **more}
    if fields.get("args") and more.get("args"):
        pairs = dict(line.partition(":")[::2] for line in f"{fields['args']}\n{more['args']}".split("\n"))
        joined["args"] = "\n".join(f"{key}:{value}" for key, value in pairs.items())
    if joined.get("args", "").count("\n") >= MAX_ARGS:
        raise InvalidForm(f"A search has at most {MAX_ARGS} words that start with args.")
    if "status" in more and "wait_state" not in more:
        joined["wait_state"] = ""
    return joined


def chips(fields: Mapping[str, str], zone: str) -> list[Chip]:
    """The words of a filter. A single state has none: its tab shows it."""
    found = []
    words = {field: word for word, (field, _) in WORDS.items()}
    for name in FILTER_FIELDS:
        value = fields.get(name, "")
        if not value or name == "wait_state" or (name == "status" and "," not in value):
            continue
        if name == "args":
            found += _args_chips(fields)
            continue
        word = "text" if name == "text" else words.get(name, name.replace("_", " "))
        shown = _format_time(value, zone) if name.endswith(("_from", "_to")) else value
        found.append(Chip(word.replace(" to", " before"), shown, {**fields, name: ""}))
    return found


def _format_time(raw: str, zone: str) -> str:
    try:
        moment = parse_time("", raw, zone)
        return "" if moment is None else f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M}"
    except (InvalidForm, OverflowError):
        return raw


def _args_chips(fields: Mapping[str, str]) -> list[Chip]:
    pairs = fields["args"].split("\n")
    return [
        Chip(_ARGS + key, value, {**fields, "args": "\n".join(pairs[:n] + pairs[n + 1 :])})
        for n, (key, _, value) in enumerate(pair.partition(":") for pair in pairs)
    ]


def _split_states(fields: dict[str, str]) -> dict[str, str]:
    """A state in which a queued job waits is a field of its own."""
    state = fields.get("status", "")
    if state in WAIT_STATES:
        return {**fields, "status": Status.QUEUED.value, "wait_state": state}
    return fields


def _parse_span(word: str, raw: str, zone: str, now: datetime) -> dict[str, str]:
    """`1h`, `today`, `2026-11-21`, `2026-11-20..2026-11-22` or a time, from which the span lasts until now."""
    if _RELATIVE.fullmatch(raw):
        start = now - timedelta(seconds=parse_duration(raw))
        return {f"{word}_from": start.isoformat(timespec="seconds"), f"{word}_to": ""}
    first, is_span, last = raw.partition("..")
    start_text, end_text = _parse_end(word, first, zone, now), _parse_end(word, last, zone, now, is_end=True)
    if not is_span and (_DAY.fullmatch(first) or first in ("today", "yesterday")):
        end_text = _parse_end(word, first, zone, now, is_end=True)
    return {f"{word}_from": start_text, f"{word}_to": end_text}


def _parse_end(word: str, raw: str, zone: str, now: datetime, *, is_end: bool = False) -> str:
    """The start of a span, or the moment after its end: a day ends with the next one."""
    days = {"today": now, "yesterday": now - _ONE_DAY}
    day = f"{days[raw].astimezone(ZoneInfo(zone)):%Y-%m-%d}" if raw in days else raw
    moment = parse_time(word, day, zone)
    if moment is None:
        return ""
    if is_end and _DAY.fullmatch(day):
        try:
            moment = datetime.combine(moment.date() + _ONE_DAY, time(), moment.tzinfo)
        except OverflowError:
            return ""
    return moment.isoformat()
