"""Command bulk: change all jobs that match a filter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import click
from click.core import ParameterSource

from dataloader._job_filter import FILTER_FIELDS
from dataloader.app.cli import text
from dataloader.app.cli.operations import parameters
from dataloader.app.cli.output import Table, print_payload
from dataloader.app.cli.parsing import ID, option, without_none
from dataloader.app.cli.remote import RemoteService, remote_command
from dataloader.app.features.jobs.commands import FILTER_NAMES, FILTER_OPTIONS
from dataloader.app.wording import format_count

_WAIT_FOR_END_SEC = 3.0  # of a bulk cancel, which takes one as a rule
_POLL_INTERVAL_SEC = 0.1
_ACTIONS = ("cancel", "retry", "redrive", "delete", "reprioritise", "list", "stop")
_OPERATIONS = Table(
    "operations",
    "operation=bulk_id!, action!, state!, jobs={changed} of {expected}!, created=created_at!",
    "No bulk operations.",
)


@remote_command(
    operation="start_bulk_operation", omit="action filter only_error",
    options={"max": "--max-jobs", "expected": {"help": "About how many jobs match; counted if not given."}},
    params=[*parameters("list_jobs", only=FILTER_NAMES, options=FILTER_OPTIONS)],
    short_help="Change all jobs that match a filter.",
)  # fmt: skip
@click.argument("action", type=click.Choice(_ACTIONS))
@click.argument("bulk_id", type=ID, required=False)
@option("--all", "is_all", is_flag=True, help="All jobs, without a filter.")
@option("--dry-run", is_flag=True, help="Only count the jobs.")
@option("--yes", is_flag=True, help="Do not ask for confirmation.")
def bulk(service: RemoteService, *, action: str, bulk_id: UUID | None, **options: Any) -> None:
    """Cancel, retry, delete or reprioritise all jobs that match a filter. `bulk list` shows such operations and their
    progress, `bulk stop BULK_ID` ends one.

    `bulk redrive` retries at a rate, oldest first, and stops when the circuit breaker of a job's task is open.

    \b
      dataloader bulk redrive --per-minute 60 --status failed,lost --fingerprint 'KeyError sales.py:load'

    It needs a filter or --all. Without --expected the jobs are counted, and the command asks for confirmation, unless
    --yes is given. Nothing is done if by then more than twice as many and a hundred more match; of delete, if any more
    match.
    """
    if bulk_id is not None and action != "stop":
        raise click.UsageError(f"BULK_ID is for `bulk stop`; {action} takes a filter, such as --job-id")
    if action in ("list", "stop") and (given := [*_given_options()]):
        raise click.UsageError(f"`bulk {action}` takes no {given[0]}")
    if action == "list":
        service.perform("list_bulk_operations", _OPERATIONS)
    elif action == "stop":
        if bulk_id is None:
            raise click.UsageError("name the operation: dataloader bulk stop BULK_ID")
        service.perform("cancel_bulk_operation", _stopped_line, bulk_id=bulk_id, repeatable=True)
    else:
        _start(service, action, **options)


def _given_options() -> Iterator[str]:
    """The options of an operation that were given."""
    ctx = click.get_current_context()
    options = {param.name or "": param.opts[0] for param in ctx.command.params if isinstance(param, click.Option)}
    for name, shown in options.items():
        if name in ctx.params and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            yield shown


def _stopped_line(stopped: text.Payload) -> str:
    return f"{stopped['action']} is {stopped['state']}: {format_count(stopped['changed'], 'job')} changed."


def _start(
    service: RemoteService, action: str, *, is_all: bool, expected: int | None, dry_run: bool, yes: bool, **options: Any
) -> None:
    job_filter = without_none({name: options.pop(name) for name in FILTER_FIELDS})
    if action == "redrive" and options["per_minute"] is None and not dry_run:
        raise click.UsageError("redrive needs --per-minute")
    if is_all and job_filter:
        raise click.UsageError("give a filter or --all, not both")
    if not is_all and not job_filter:
        raise click.UsageError("give a filter, such as --task, or --all for all jobs")
    if dry_run or expected is None:
        count = service.send("count_bulk_jobs", action=action, filter=job_filter, repeatable=True)
        jobs = f"{'' if count['exact'] else 'about '}{format_count(count['jobs'], 'job')}"
        if dry_run:
            print_payload(count, f"{jobs} would be changed; none was.")
            return
        bound = "" if options["max"] is None else f"at most {options['max']} of "
        if not yes:
            click.confirm(f"{action} {bound}{jobs}?", abort=True, err=True)
        expected = count["jobs"]
    operation = service.send("start_bulk_operation", action=action, filter=job_filter, expected=expected, **options)
    deadline = time.monotonic() + (_WAIT_FOR_END_SEC if action == "cancel" else 0)
    while operation["finished_at"] is None and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_SEC)
        operation = service.send("get_bulk_operation", bulk_id=operation["bulk_id"])
    progress = "`dataloader bulk list` shows its progress."
    if operation["finished_at"] is not None:
        progress = f"{format_count(operation['matched'], 'job')} matched, {operation['changed']} changed."
    print_payload(operation, f"{operation['bulk_id']} is {operation['state']}; {progress}")


COMMANDS = {"Jobs": (bulk,)}
