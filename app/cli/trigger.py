"""trigger: put a job into the queue, and watch it if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import IO, Any
from uuid import UUID, uuid4

import click

from app.cli.ask import follow
from app.cli.invocation import dataloader_command
from app.cli.many import QUEUE, trigger_lines
from app.cli.service import Service, asks_service, usage
from app.cli.text import clean
from app.cli.words import parse_moment, parse_object, parse_pair
from app.client import Client, FieldError, Refused, Request, Triggered


@click.command(short_help="Put a job, or many, into the queue.")
@click.argument("task", required=False)
@click.option(
    "--from",
    "lines",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="Many jobs: a file with a JSON object on each line, with the API's fields; - is standard input.",
)
@click.option("--queue", help=f"The queue to put it into.  [default: the task's own, else {QUEUE}]")
@click.option(
    "--lock-key", help="Jobs with one key never run at the same time.  [default: the task's own, else the task's name]"
)
@click.option(
    "--arg",
    "pairs",
    type=usage(parse_pair),
    multiple=True,
    metavar="NAME=VALUE",
    help="One argument; may be repeated. The value is read as JSON if it is JSON, else as text.",
)
@click.option("--args", "args_text", type=usage(parse_object), metavar="JSON", help="Arguments as a JSON object.")
@click.option(
    "--args-file",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="Arguments from a file with a JSON object; - is standard input. --args goes over it, --arg over both.",
)
@click.option("--priority", type=click.IntRange(min=0), help="Smaller runs first.  [default: 100]")
@click.option(
    "--available-at",
    type=usage(parse_moment),
    metavar="TIME",
    help='Not before this time: 2026-11-21T06:00:00+03:00, or "in 5m", "in 1h 30m".  [default: now]',
)
@click.option("--max-attempts", type=click.IntRange(min=1), help="How often it may be tried.  [default: 5]")
@click.option(
    "--lease-ttl",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="How long a worker may be silent before the job is taken from it.  [default: the service's]",
)
@click.option("--partition-key", help="Names the slice of work.")
@click.option("--producer", help="Who asks for the job.")
@click.option("--consumer-group", help="For whom the job is.")
@click.option(
    "--idempotency-key",
    help="A second trigger with this key makes no second job.  [default: a fresh one for each call]",
)
@click.option("--live-key", help="Unique among waiting and running jobs: while one has it, that one is the answer.")
@click.option(
    "--time-limit",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="How long a try may take.  [default: the task's]",
)
@click.option(
    "--retry",
    type=usage(parse_object),
    metavar="JSON",
    help='How long to wait between tries, such as {"kind": "fixed", "seconds": 60}.  [default: the task\'s]',
)
@click.option("--strict", is_flag=True, help="Put nothing into the queue that no live worker would run.")
@click.option("--watch", "watching", is_flag=True, help="Show every change until the job is final.")
@asks_service
def trigger(  # noqa: PLR0913 - one parameter for each option, all by name
    service: Service,
    *,
    task: str | None,
    lines: IO[str] | None,
    queue: str | None,
    lock_key: str | None,
    pairs: Sequence[tuple[str, Any]],
    args_text: dict[str, Any] | None,
    args_file: IO[str] | None,
    priority: int | None,
    available_at: datetime | None,
    max_attempts: int | None,
    lease_ttl: int | None,
    partition_key: str | None,
    producer: str | None,
    consumer_group: str | None,
    idempotency_key: str | None,
    live_key: str | None,
    time_limit: int | None,
    retry: dict[str, Any] | None,
    strict: bool,
    watching: bool,
) -> None:
    """Put a job of TASK into the queue.

    A request that gets no answer is sent again under the same idempotency key, so that it never makes two jobs.

    \b
      dataloader trigger noop --arg sleep1=1 --arg sleep2=2 --watch
      dataloader trigger load.cbr.rates --args '{"date": "2026-11-20", "currencies": ["USD"]}'
      dataloader trigger noop --available-at "in 5m" --priority 10

    If no live worker would run the job (a misspelt task or queue, say) a warning is printed to standard error; with
    --strict nothing is put into the queue then, and the exit code is 4.

    With --watch the exit code tells how the job ended: 0 if it succeeded, 1 if not.

    With --from many jobs are put into the queue, a line a job; TASK and the options stand for what a line does not say.
    A line without an idempotency key gets the one of --idempotency-key with its number, so the same command again goes
    on where an interrupted one ended. The exit code is 4 if some line was refused.

    \b
      dataloader trigger --from jobs.jsonl --idempotency-key load-2026-11
      make-requests | dataloader trigger load.cbr.rates --from -
    """
    if lines is not None:
        if watching:
            raise click.UsageError("--watch follows one job; with --from there are many")
        if strict:
            raise click.UsageError("--strict is for one job; with --from the warnings are printed")
        given = {
            "task": task, "queue": queue, "lock_key": lock_key,
            "args": {**from_file(args_file), **(args_text or {}), **dict(pairs)} or None,
            "partition_key": partition_key,
            "priority": priority, "available_at": available_at and available_at.isoformat(),
            "max_attempts": max_attempts, "lease_ttl_sec": lease_ttl, "producer": producer,
            "consumer_group": consumer_group, "live_key": live_key, "time_limit_sec": time_limit, "retry": retry,
        }  # fmt: skip
        known = {name: value for name, value in given.items() if value is not None}
        trigger_lines(service, lines, known, idempotency_key)
        return
    if task is None:
        raise click.UsageError("name a TASK, or a file of jobs with --from")
    key = f"cli-{uuid4()}" if idempotency_key is None else idempotency_key
    request = Request(
        queue=queue,
        task=task,
        lock_key=lock_key,
        args={**from_file(args_file), **(args_text or {}), **dict(pairs)},
        idempotency_key=key,
        partition_key=partition_key,
        priority=priority,
        available_at=available_at,
        max_attempts=max_attempts,
        lease_ttl_sec=lease_ttl,
        producer=producer,
        consumer_group=consumer_group,
        live_key=live_key,
        time_limit_sec=time_limit,
        retry=retry,
    )
    triggered = _trigger(service.client, request, strict=strict)
    for warning in triggered.warnings:
        click.echo(f"Warning: {clean(warning)}", err=True)
    if watching and not service.as_json:
        click.echo(f"Job {triggered.job_id} is {triggered.status}.")
    elif not watching:
        service.show(
            {**triggered.said, "idempotency_key": key}, _what_next(service, triggered.job_id, triggered.status)
        )
    if watching:
        follow(service, triggered.job_id, idempotency_key=key)


def _trigger(client: Client, request: Request, *, strict: bool) -> Triggered:
    """What is not said is the task's to say; of one that has no default, or that the API does not know, ours stands."""
    usual: dict[str, Any] = {"queue": QUEUE, "lock_key": request.task}
    try:
        return client.trigger(request, strict=strict)
    except Refused as refused:
        missing = {error.field for error in refused.errors if error == FieldError(error.field, "is required")}
        if not missing or not missing <= usual.keys() or any(getattr(request, name) is not None for name in missing):
            raise
        return client.trigger(replace(request, **{name: usual[name] for name in missing}), strict=strict)


def from_file(file: IO[str] | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return parse_object(file.read())
    except ValueError as error:
        raise click.BadParameter(f"{file.name}: {error}", param_hint="--args-file") from error


def _what_next(service: Service, job_id: UUID, status: str) -> list[str]:
    return [
        f"Job {job_id} is {status}.",
        f"  watch it:  {dataloader_command()} status {job_id} --watch{service.url_hint}",
    ]
