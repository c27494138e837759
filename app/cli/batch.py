"""trigger --from: a job for each line of a file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import IO, Any
from uuid import uuid4

import click

from app.cli.exit_codes import ExitCode
from app.cli.service_options import RemoteService
from app.cli.text import one_line
from app.wording import format_count
from dataloader.errors import ClientError

DEFAULT_QUEUE = "etl.default"
MAX_BATCH_LINES = 1_000
MAX_BATCH_BYTES = 500_000
MAX_SHOWN_ERRORS = 50

_OUTCOME_LABELS = {"created": "created", "exists": "there already", "conflict": "in conflict", "invalid": "invalid"}


@dataclass
class _Totals:
    outcomes: Counter[str] = field(default_factory=Counter)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    byte_count: int = 0
    warnings: set[str] = field(default_factory=set)

    def summary(self) -> str:
        parts = [f"{self.outcomes[name]:,} {label}" for name, label in _OUTCOME_LABELS.items() if self.outcomes[name]]
        return ", ".join(parts) or "no jobs"


@dataclass(frozen=True)
class _InputLine:
    number: int
    byte_count: int
    request: dict[str, Any] | str  # text: why the line is invalid


def trigger_lines(service: RemoteService, lines: IO[str], defaults: Mapping[str, Any], prefix: str | None) -> None:
    """Put a job for each line into the queue. Fields of a line override `defaults`."""
    from app.cli import render  # noqa: PLC0415 - rich is loaded only where it draws

    prefix = prefix or f"cli-{uuid4()}"
    totals = _Totals()
    with closing(render.BatchProgressView(_file_size(lines))) as view:
        try:
            for batch in _split_batches(_read_lines(lines, defaults, prefix)):
                _send_batch(service, batch, totals, view.print_notice)
                view.show(totals.byte_count, totals.summary())
        except (ClientError, KeyboardInterrupt):
            view.print_notice(
                f"Ended early: {totals.summary()}. To continue: the same command with --idempotency-key {prefix}"
            )
            raise
    _show_summary(service, totals, prefix)


def _file_size(lines: IO[str]) -> int | None:
    try:
        return os.fstat(lines.fileno()).st_size or None
    except (OSError, ValueError):
        return None


def _read_lines(lines: IO[str], defaults: Mapping[str, Any], prefix: str) -> Iterator[_InputLine]:
    try:
        for number, text in enumerate(lines, 1):
            if text.strip():
                yield _InputLine(number, len(text.encode()), _build_request(text, defaults, f"{prefix}:{number}"))
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{lines.name} is not UTF-8: {error}", param_hint="--from") from error


def _build_request(text: str, defaults: Mapping[str, Any], key: str) -> dict[str, Any] | str:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    if not isinstance(fields, dict):
        return "it is not a JSON object"
    request = {"idempotency_key": key, **defaults, **fields}
    if isinstance(fields.get("args"), dict):
        request["args"] = {**defaults.get("args", {}), **fields["args"]}
    return request


def _split_batches(lines: Iterator[_InputLine]) -> Iterator[list[_InputLine]]:
    batch: list[_InputLine] = []
    byte_count = 0
    for line in lines:
        if batch and (len(batch) == MAX_BATCH_LINES or byte_count + line.byte_count > MAX_BATCH_BYTES):
            yield batch
            batch, byte_count = [], 0
        batch.append(line)
        byte_count += line.byte_count
    if batch:
        yield batch


def _send_batch(
    service: RemoteService, batch: list[_InputLine], totals: _Totals, print_notice: Callable[[str], None]
) -> None:
    requests = {line.number: line.request for line in batch if isinstance(line.request, dict)}

    def print_warning(warning: str) -> None:
        if warning not in totals.warnings and not service.as_json:
            print_notice(f"Warning: {one_line(warning)}")
        totals.warnings.add(warning)

    items = dict(zip(requests, _trigger_with_defaults(service, list(requests.values()), print_warning), strict=True))
    for line in batch:
        item = items.get(line.number) or {"outcome": "invalid", "problem": {"detail": str(line.request)}}
        totals.outcomes[item["outcome"]] += 1
        totals.byte_count += line.byte_count
        if item["outcome"] not in ("created", "exists"):
            problem = item["problem"] or {}
            detail = str(problem.get("detail") or problem.get("code"))
            totals.rejected.append({"line": line.number, "outcome": item["outcome"], "detail": detail})
            if len(totals.rejected) <= MAX_SHOWN_ERRORS and not service.as_json:
                print_notice(f"line {line.number}: {detail}")


def _trigger_with_defaults(
    service: RemoteService, requests: list[dict[str, Any]], on_warning: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Trigger many jobs. A line without queue or lock key uses the task's defaults, or those of the command line."""
    items = _trigger_many(service, requests, on_warning)
    incomplete = [n for n, item in enumerate(items) if _lacks_defaults(item, requests[n])]
    if incomplete:
        completed = [{"queue": DEFAULT_QUEUE, "lock_key": requests[n]["task"], **requests[n]} for n in incomplete]
        for n, item in zip(incomplete, _trigger_many(service, completed, on_warning), strict=True):
            items[n] = item
    return items


def _trigger_many(
    service: RemoteService, requests: list[dict[str, Any]], on_warning: Callable[[str], None]
) -> list[dict[str, Any]]:
    if not requests:
        return []
    payload = service.client.trigger_many(requests)
    for warning in payload.get("warnings") or ():
        on_warning(str(warning))
    items: list[dict[str, Any]] = payload["items"]
    return items


def _lacks_defaults(item: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    errors = (item["problem"] or {}).get("errors") or []
    missing = [error["field"] for error in errors if error["message"] == "is required"]
    return "task" in request and 0 < len(missing) == len(errors) and set(missing) <= {"queue", "lock_key"}


def _show_summary(service: RemoteService, totals: _Totals, prefix: str) -> None:
    payload = {
        "lines": sum(totals.outcomes.values()),
        **{name: totals.outcomes[name] for name in _OUTCOME_LABELS},
        "idempotency_key": prefix,
        "refused": totals.rejected,
        "warnings": sorted(totals.warnings),
    }
    hidden = len(totals.rejected) - MAX_SHOWN_ERRORS
    more = [f"{format_count(hidden, 'more refused line')} not shown."] if hidden > 0 else []
    service.print_payload(payload, f"{totals.summary()}.", *more)
    if totals.rejected:
        click.get_current_context().exit(ExitCode.REFUSED)
