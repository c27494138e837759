"""Command trigger: put a job, or many, into the queue."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

import click

from app.cli.batch import DEFAULT_QUEUE, trigger_lines
from app.cli.invocation import dataloader_command
from app.cli.jobs import watch_and_exit
from app.cli.parsing import args_options, parse_object, parse_time
from app.cli.service_options import RemoteService, option_type, service_options
from app.cli.text import one_line
from dataloader.errors import Refused

if TYPE_CHECKING:
    from dataloader import Client


@click.command(short_help="Put a job, or many, into the queue.")
@click.argument("task", required=False)
@click.option("--from", "lines", type=click.File("r", encoding="utf-8"), metavar="FILE",
              help="Many jobs: a file with a JSON object on each line, with the API's fields; - is standard input.")  # fmt: skip
@click.option("--queue", help=f"The queue.  [default: the task's own, else {DEFAULT_QUEUE}]")
@click.option("--lock-key",
              help="Jobs with one key never run at the same time.  [default: the task's own, else the task's name]")  # fmt: skip
@args_options
@click.option("--priority", type=click.IntRange(min=0), help="The priority; smaller numbers run first.  [default: 100]")
@click.option("--available-at", type=option_type(parse_time),
              help='Run it not before this time: 2026-11-21T06:00:00+03:00, or "in 5m", "in 1h 30m".  [default: now]')  # fmt: skip
@click.option("--max-attempts", type=click.IntRange(min=1), help="How many attempts it has.  [default: 5]")
@click.option("--lease-ttl", "lease_ttl_sec", type=click.IntRange(min=1),
              help="After how many seconds without a heartbeat its worker loses it.  [default: the service's]")  # fmt: skip
@click.option("--partition-key", help="The slice of work that the job is about.")
@click.option("--producer", help="Who requests the job.")
@click.option("--consumer-group", help="Who uses the job's output.")
@click.option("--idempotency-key",
              help="A second trigger with this key makes no second job.  [default: a fresh one for each call]")  # fmt: skip
@click.option("--live-key", help="Unique among waiting and running jobs: while a job has it, that job is the answer.")
@click.option("--time-limit", "time_limit_sec", type=click.IntRange(min=1),
              help="How many seconds an attempt may take.  [default: the task's]")  # fmt: skip
@click.option("--retry", type=option_type(parse_object), metavar="JSON",
              help='The delays between attempts, such as {"kind": "fixed", "seconds": 60}.  [default: the task\'s]')  # fmt: skip
@click.option("--strict", is_flag=True, help="Refuse a job that no live worker would run.")
@click.option("--watch", "watching", is_flag=True, help="Show every change until the job is final.")
@service_options
def trigger(
    service: RemoteService,
    *,
    task: str | None,
    lines: IO[str] | None,
    idempotency_key: str | None,
    strict: bool,
    watching: bool,
    **options: Any,
) -> None:
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
    interrupted one. The exit code is 4 if a line was refused.

    \b
      dataloader trigger --from jobs.jsonl --idempotency-key load-2026-11
      make-requests | dataloader trigger load.cbr.rates --from -
    """
    options = {name: value for name, value in options.items() if value is not None}
    if lines is not None:
        if watching:
            raise click.UsageError("--watch follows one job; --from triggers many")
        if strict:
            raise click.UsageError("--strict is for one job; --from prints the warnings")
        _trigger_from(service, lines, {"task": task, **options}, idempotency_key)
        return
    if task is None:
        raise click.UsageError("name a TASK, or a file of jobs with --from")
    key = f"cli-{uuid4()}" if idempotency_key is None else idempotency_key
    job = _trigger_with_defaults(service.client, task, {**options, "idempotency_key": key}, strict=strict)
    for warning in job.get("warnings") or ():
        click.echo(f"Warning: {one_line(str(warning))}", err=True)
    first_line = f"Job {job['job_id']} is {job['status']}."
    if watching:
        if not service.as_json:
            click.echo(first_line)
        watch_and_exit(service, job["job_id"], idempotency_key=key)
    next_line = f"  watch it:  {dataloader_command()} status {job['job_id']} --watch{service.url_hint}"
    service.print_payload({**job, "idempotency_key": key}, first_line, next_line)


def _trigger_from(service: RemoteService, lines: IO[str], fields: dict[str, Any], prefix: str | None) -> None:
    defaults = {name: value for name, value in fields.items() if value not in (None, {})}
    if "available_at" in defaults:
        defaults["available_at"] = defaults["available_at"].isoformat()
    trigger_lines(service, lines, defaults, prefix)


def _trigger_with_defaults(client: Client, task: str, options: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    """Trigger a job with the task's queue and lock key, or, where it has none, with those of the command line."""
    defaults: dict[str, Any] = {"queue": DEFAULT_QUEUE, "lock_key": task}
    try:
        return client.trigger(task, strict=strict, **options)
    except Refused as refused:
        missing = {error.field for error in refused.errors if error.message == "is required"}
        if not missing or not missing <= defaults.keys() or missing & options.keys():
            raise
        return client.trigger(task, strict=strict, **options, **{name: defaults[name] for name in missing})
