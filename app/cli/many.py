"""trigger --from: a job for each line of a file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any
from uuid import uuid4

import click

from app.cli.exits import Exit
from app.cli.service import Service
from app.cli.text import clean
from app.client import BatchItem, ClientError
from app.wording import counted

QUEUE = "etl.default"
AT_ONCE = 1_000  # lines a request,
BYTES_AT_ONCE = 500_000  # and how long they may be together
TOLD = 50  # refused lines that are told one by one

_WORDS = {"created": "created", "exists": "there already", "conflict": "in conflict", "invalid": "invalid"}


@dataclass
class _Tally:
    outcomes: Counter[str] = field(default_factory=Counter)
    refused: list[dict[str, Any]] = field(default_factory=list)
    bytes: int = 0
    warnings: set[str] = field(default_factory=set)

    def told(self) -> str:
        parts = [f"{self.outcomes[name]:,} {word}" for name, word in _WORDS.items() if self.outcomes[name]]
        return ", ".join(parts) or "no jobs"


@dataclass(frozen=True)
class _Line:
    number: int
    size: int
    request: dict[str, Any] | str  # a text: what is wrong with it


def trigger_lines(service: Service, lines: IO[str], given: Mapping[str, Any], prefix: str | None) -> None:
    """Put a job for each line into the queue. What stands on a line goes before what was given."""
    from app.cli import draw  # noqa: PLC0415 - rich takes its time

    prefix = prefix or f"cli-{uuid4()}"
    tally = _Tally()
    with draw.Amount(_size(lines)) as shown:
        try:
            for batch in _batches(_read(lines, given, prefix)):
                _send(service, batch, tally, shown.say)
                shown.show(tally.bytes, tally.told())
        except (ClientError, KeyboardInterrupt):
            shown.say(f"Ended early: {tally.told()}. To go on: the same command with --idempotency-key {prefix}")
            raise
    _tell(service, tally, prefix)


def _size(lines: IO[str]) -> int | None:
    try:
        return os.fstat(lines.fileno()).st_size or None
    except (OSError, ValueError):
        return None


def _read(lines: IO[str], given: Mapping[str, Any], prefix: str) -> Iterator[_Line]:
    try:
        for number, text in enumerate(lines, 1):
            if text.strip():
                yield _Line(number, len(text.encode()), _request(text, given, f"{prefix}:{number}"))
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{lines.name} is not UTF-8: {error}", param_hint="--from") from error


def _request(text: str, given: Mapping[str, Any], key: str) -> dict[str, Any] | str:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    if not isinstance(said, dict):
        return "it is no JSON object"
    request = {"idempotency_key": key, **given, **said}
    if isinstance(said.get("args"), dict):
        request["args"] = {**given.get("args", {}), **said["args"]}
    return request


def _batches(lines: Iterator[_Line]) -> Iterator[list[_Line]]:
    batch: list[_Line] = []
    for line in lines:
        if batch and (len(batch) == AT_ONCE or sum(one.size for one in batch) + line.size > BYTES_AT_ONCE):
            yield batch
            batch = []
        batch.append(line)
    if batch:
        yield batch


def _send(service: Service, batch: list[_Line], tally: _Tally, say: Callable[[str], None]) -> None:
    requests = {line.number: line.request for line in batch if isinstance(line.request, dict)}

    def warn(text: str) -> None:
        if text not in tally.warnings and not service.as_json:
            say(f"Warning: {clean(text)}")
        tally.warnings.add(text)

    items = dict(zip(requests, _triggered(service, list(requests.values()), warn), strict=True))
    for line in batch:
        item = items.get(line.number)
        outcome, why = ("invalid", str(line.request)) if item is None else (item.outcome, item.why)
        tally.outcomes[outcome] += 1
        tally.bytes += line.size
        if item is None or not item.done:
            tally.refused.append({"line": line.number, "outcome": outcome, "detail": why})
            if len(tally.refused) <= TOLD and not service.as_json:
                say(f"line {line.number}: {why}")


def _triggered(service: Service, requests: list[dict[str, Any]], warn: Callable[[str], None]) -> list[BatchItem]:
    """What a line does not say is the task's to say; of a task that has no default, or is not known, ours stands."""
    items = service.client.trigger_many(requests, on_warning=warn)
    again = [n for n, item in enumerate(items) if _lacks_defaults(item, requests[n])]
    if again:
        filled = [{"queue": QUEUE, "lock_key": requests[n]["task"], **requests[n]} for n in again]
        for n, item in zip(again, service.client.trigger_many(filled, on_warning=warn), strict=True):
            items[n] = item
    return items


def _lacks_defaults(item: BatchItem, request: Mapping[str, Any]) -> bool:
    errors = (item.problem or {}).get("errors") or []
    missing = [error["field"] for error in errors if error["message"] == "is required"]
    return "task" in request and 0 < len(missing) == len(errors) and set(missing) <= {"queue", "lock_key"}


def _tell(service: Service, tally: _Tally, prefix: str) -> None:
    said = {
        "lines": sum(tally.outcomes.values()),
        **{name: tally.outcomes[name] for name in _WORDS},
        "idempotency_key": prefix,
        "refused": tally.refused,
        "warnings": sorted(tally.warnings),
    }
    more = len(tally.refused) - TOLD
    service.show(
        said, [f"{tally.told()}.", *([f"{counted(more, 'more refused line')} not shown."] if more > 0 else [])]
    )
    if tally.refused:
        click.get_current_context().exit(Exit.REFUSED)
