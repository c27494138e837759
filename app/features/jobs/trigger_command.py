"""Command trigger: put a job, or with --from a job for each line of a file, into the queue."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple
from uuid import uuid4

import click

from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.invocation import dataloader_command
from dataloader.app.cli.output import is_json, print_payload
from dataloader.app.cli.parsing import (
    DEFAULT_QUEUE,
    TEXT_FILE,
    args_options,
    option,
    parse_object,
    without_none,
)
from dataloader.app.cli.remote import RemoteService, remote_command
from dataloader.app.cli.text import one_line
from dataloader.app.cli.watch import watch_job
from dataloader.app.wording import format_count
from dataloader.errors import ClientError, Refused

MAX_BATCH_LINES = 1_000
MAX_BATCH_BYTES = 500_000
_MAX_SHOWN_ERRORS = 50
_OUTCOME_LABELS = {
    "created": "created",
    "exists": "there already",
    "debounced": "debounced",
    "conflict": "in conflict",
    "invalid": "invalid",
}


@remote_command(
    operation="trigger_job", omit="args after need webhook",
    options={
        "queue": {"help": f"The queue.  [default: the task's own, else {DEFAULT_QUEUE}]"},
        "lock_key": {"help": "Jobs with one key never run at once.  [default: the task's, else the task's name]"},
        "lease_ttl_sec": {
            "help": "How long its worker may be without a heartbeat.  [default: the service's]"
        },
        "idempotency_key": {"help": "A second trigger with this key makes no second job.  [default: a fresh one]"},
        "retry": {"help": 'Delays between attempts: {"kind": "fixed", "seconds": 60}.  [default: the task\'s]'},
        "limits": {"help": 'What it counts in limits: {"warehouse": 2}.  [default: the task\'s]'},
        "tags": {"names": "--tag", "help": "A word by which it is found, such as a team; may be repeated."},
        "debounce": {"help": 'Change the queued job with this key: {"key": "reload", "wait_sec": 60}.'},
        "throttle": {"help": 'One job a key and window: {"key": "reload", "per_sec": 3600}.'},
        "strict": {"help": "Refuse a job that no live worker would run."},
    },
    short_help="Put a job, or many, into the queue.",
)  # fmt: skip
@click.argument("task", required=False)
@option("--from", "lines", type=TEXT_FILE,
        help="Many jobs: a file with a JSON object on each line, with the API's fields; - is stdin.")  # fmt: skip
@option("--watch", "watching", is_flag=True, help="Show every change until the job is final.")
@args_options
def trigger(
    service: RemoteService,
    *,
    task: str | None,
    lines: IO[str] | None,
    strict: bool | None,
    watching: bool,
    **options: Any,
) -> int:
    """Put a job of TASK into the queue.

    A request that gets no answer is repeated with the same idempotency key, so that it never makes two jobs.

    \b
      dataloader trigger noop --arg sleep1=1 --arg sleep2=2 --watch
      dataloader trigger load.cbr.rates --args '{"date": "2026-11-20", "currencies": ["USD"]}'
      dataloader trigger noop --available-at "in 5m" --priority 10

    If no live worker would run the job (a misspelt task or queue, say) a warning is printed to standard error; with
    --strict nothing is put into the queue then, and the exit code is 4.

    With --watch the exit code is that of the job: 0 if it succeeded, 1 if not.

    With --from each line of a file is a job; TASK and the options are defaults of its fields. A line without an
    idempotency key gets the one of --idempotency-key with its number, so the same command again continues an
    interrupted one. The exit code is 4 if a line was rejected.

    \b
      dataloader trigger --from jobs.jsonl --idempotency-key load-2026-11
      make-requests | dataloader trigger load.cbr.rates --from -
    """
    options = without_none({**options, "tags": list(options["tags"]) or None})
    fresh_key = f"cli-{uuid4()}"
    if lines is not None:
        if watching or strict:
            raise click.UsageError("--watch and --strict are for one job; --from triggers many, and prints warnings")
        prefix = options.pop("idempotency_key", fresh_key)
        defaults = {name: value for name, value in {"task": task, **options}.items() if value not in (None, {})}
        return _trigger_lines(service, lines, defaults, prefix)
    if "debounce" not in options:
        options = {"idempotency_key": fresh_key, **options}
    if not task:
        raise click.UsageError("name a TASK, or a file of jobs with --from")
    try:
        job = service.client.trigger(task, strict=bool(strict), **options)
    except Refused as refused:
        errors = [(error.field, error.message) for error in refused.errors]
        if not (missing := _missing_defaults({"task": task, **options}, errors)):
            raise
        job = service.client.trigger(task, strict=bool(strict), **options, **missing)
    for warning in job.get("warnings") or ():
        click.echo(f"Warning: {one_line(str(warning))}", err=True)
    first_line, key = f"Job {job['job_id']} is {job['status']}.", options.get("idempotency_key")
    if watching:
        if not is_json():
            click.echo(first_line)
        return watch_job(service, job["job_id"], idempotency_key=key)
    next_line = f"  watch it:  {dataloader_command()} status {job['job_id']} --watch{service.url_hint}"
    print_payload({**job, "idempotency_key": key}, first_line, next_line)
    return ExitCode.OK


def _missing_defaults(request: Mapping[str, Any], errors: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the queue and lock key of a job whose task has none, if the service asks for them."""
    defaults = {"queue": DEFAULT_QUEUE, "lock_key": request["task"]} if request.get("task") else {}
    missing = {name for name, message in errors if message == "is required"} & (defaults.keys() - request.keys())
    return {name: defaults[name] for name in missing}


@dataclass
class _Totals:
    outcomes: Counter[str] = field(default_factory=Counter)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    byte_count: int = 0
    warnings: set[str] = field(default_factory=set)

    def summary(self) -> str:
        parts = [f"{self.outcomes[name]:,} {label}" for name, label in _OUTCOME_LABELS.items() if self.outcomes[name]]
        return ", ".join(parts) or "no jobs"


class _InputLine(NamedTuple):
    number: int
    byte_count: int
    request: dict[str, Any] | str  # text: why the line is invalid


def _trigger_lines(service: RemoteService, lines: IO[str], defaults: Mapping[str, Any], prefix: str) -> int:
    """Put a job for each line into the queue. Fields of a line override `defaults`."""
    from dataloader.app.cli import render  # noqa: PLC0415 - rich is loaded only where it draws

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
    payload = {
        "lines": sum(totals.outcomes.values()),
        **{name: totals.outcomes[name] for name in _OUTCOME_LABELS},
        "idempotency_key": prefix,
        "rejected": totals.rejected,
        "warnings": sorted(totals.warnings),
    }
    hidden = len(totals.rejected) - _MAX_SHOWN_ERRORS
    more = [f"{format_count(hidden, 'more rejected line')} not shown."] if hidden > 0 else []
    print_payload(payload, f"{totals.summary()}.", *more)
    return ExitCode.REFUSED if totals.rejected else ExitCode.OK


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
        fields = parse_object(text)
    except ValueError as error:
        return str(error)
    request = {**defaults, **fields}
    if request.get("debounce") is None:
        request = {"idempotency_key": key, **request}
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
    """Trigger the jobs of a batch; those whose task has no queue or lock key again, with the command line's."""

    def trigger(requests: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        if not requests:
            return {}
        payload = service.client.trigger_many(list(requests.values()))
        for warning in payload.get("warnings") or ():
            if warning not in totals.warnings and not is_json():
                print_notice(f"Warning: {one_line(str(warning))}")
            totals.warnings.add(str(warning))
        return dict(zip(requests, payload["items"], strict=True))

    requests = {line.number: line.request for line in batch if isinstance(line.request, dict)}
    items, incomplete = trigger(requests), {}
    for number, item in items.items():
        errors = [(error["field"], error["message"]) for error in (item["problem"] or {}).get("errors") or ()]
        if missing := _missing_defaults(requests[number], errors):
            incomplete[number] = {**requests[number], **missing}
    items |= trigger(incomplete)
    for line in batch:
        item = items.get(line.number) or _unreadable_item(str(line.request))
        totals.outcomes[item["outcome"]] += 1
        totals.byte_count += line.byte_count
        if problem := item["problem"]:
            shown = {name: problem[name] for name in ("code", "detail", "errors")}
            totals.rejected.append({"line": line.number, "outcome": item["outcome"], **shown})
            if len(totals.rejected) <= _MAX_SHOWN_ERRORS and not is_json():
                print_notice(f"line {line.number}: {problem['detail']}")


def _unreadable_item(detail: str) -> dict[str, Any]:
    return {"outcome": "invalid", "problem": {"code": "invalid_request", "detail": detail, "errors": []}}
