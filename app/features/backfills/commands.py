"""Commands about backfills and slices."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote
from uuid import UUID

import click

from dataloader.app.cli import text
from dataloader.app.cli.parsing import NOT_NEGATIVE, POSITIVE, args_options, limit_option, limit_option_to, without_none
from dataloader.app.cli.service_options import RemoteGroup, RemoteService, remote_command
from dataloader.app.cli.tables import Table
from dataloader.app.wording import format_duration

_PATH = "/api/v1/backfills"
_WATCH_INTERVAL_SEC = 2.0
_MODES = ("missing", "failed", "unfinished", "all")
_ENDED = ("succeeded", "failed", "canceled", "lost")
_STATES = ("queued", "running", *_ENDED)


def _progress(backfill: text.Payload) -> str:
    states = backfill["by_state"]
    parts = [f"{states[state]:,} {state}" for state in _STATES if states.get(state)]
    left = backfill["total"] - backfill["made"] - backfill["skipped"]
    parts += [f"{left:,} to come"] if left > 0 and backfill["state"] in ("open", "paused") else []
    parts += [f"{backfill['skipped']:,} left out"] if backfill["skipped"] else []
    return ", ".join(parts) or "nothing yet"


_BACKFILLS = Table(
    "backfill=backfill_id, task, state, progress=total, concurrency, created=created_at, by=created_by, note",
    {"progress": _progress},
    uncut="backfill, state",
    empty_message="There are no backfills. `dataloader backfill TASK --from … --to …` makes one.",
)
_SLICES = Table(
    "slice=partition_key, state, job=job_id, runs, rows, succeeded=succeeded_at, changed=changed_at",
    uncut="slice, state, job",
    empty_message="No slices match.",
)
backfills = RemoteGroup("backfills", help="Manage backfills.")
backfill_argument = click.argument("backfill_id", type=click.UUID)


@remote_command(short_help="Load slices of a task again, or for the first time.")
@click.argument("task")
@click.option("--from", "first", metavar="SLICE", help="The first slice: 2026-01-01, 2026-01, 2026-W05 …")
@click.option("--to", "last", metavar="SLICE", help="The last slice, which is loaded too.")
@click.option("--partition-key", "keys", multiple=True, metavar="SLICE", help="One slice instead; may be repeated.")
@click.option("--unit", type=click.Choice(("hour", "day", "week", "month")), help="If the task declares none.")
@click.option("--zone", metavar="ZONE", help="The IANA time zone of the slices, if the task declares none.")
@click.option("--mode", type=click.Choice(_MODES), default="unfinished", show_default=True,
              help="Never loaded with success, failed, both, or all.")  # fmt: skip
@click.option("--concurrency", type=POSITIVE, default=2, show_default=True, help="How many run at a time.")
@click.option("--newest-first", is_flag=True, help="Begin with the last slice.")
@click.option("--queue", help="The queue; by default the task's, else etl.default.")
@click.option("--lock-key", help="May have placeholders, such as {partition}.")
@click.option("--priority", type=NOT_NEGATIVE, default=200, show_default=True, help="Smaller runs first.")
@click.option("--stop-after", "stop_after_failures", type=POSITIVE, metavar="COUNT",
              help="Pause when so many slices in a row ended badly.")  # fmt: skip
@click.option("--note", help="Why, shown with the backfill.")
@click.option("--idempotency-key", help="Create no second backfill when the command is repeated.")
@click.option("--dry-run", is_flag=True, help="Show what would be loaded, and load nothing.")
@click.option("--watch", is_flag=True, help="Show the progress until it has ended.")
@args_options
def backfill(
    service: RemoteService,
    *,
    first: str | None,
    last: str | None,
    keys: tuple[str, ...],
    unit: str | None,
    zone: str | None,
    args: dict[str, Any],
    dry_run: bool,
    watch: bool,
    **options: Any,
) -> None:
    """Load slices of TASK, such as all days of January, a few at a time.

    \b
      dataloader backfill load.sales --from 2026-01-01 --to 2026-01-31 --watch
      dataloader backfill load.sales --from 2026-01 --to 2026-01 --unit day --arg 'day={partition}' --dry-run

    Without args they are those of the task's schedule. A slice that another job loads already is not loaded twice.
    """
    slices = without_none({"from": first, "to": last, "unit": unit, "zone": zone, "list": list(keys) or None})
    body = without_none({**options, "slices": slices, "args": args or None, "dry_run": dry_run})
    made = service.post(_PATH, body)
    plan = made["plan"]
    lines = [f"{plan['selected']:,} of {plan['total']:,} slices, {plan['first'][0]} to {plan['last'][-1]}"]
    if plan["estimated_sec"] is not None:
        lines.append(f"about {format_duration(plan['estimated_sec'])}, by the median run of the last week")
    lines += [f"the limit {name} lets only {count} run at a time" for name, count in plan["limits"].items()]
    if dry_run:
        lines.append(f"args of the first: {text.json_line(plan['args'])}")
        service.print_payload(made, *lines)
        return
    service.print_payload(made, *lines, f"backfill {made['backfill']['backfill_id']}")
    if watch:
        _watch(service, made["backfill"]["backfill_id"])


def _watch(service: RemoteService, backfill_id: str) -> None:
    """Print the progress whenever it has changed, until the backfill is paused or has ended."""
    shown = ""
    while True:
        found = service.get(f"{_PATH}/{backfill_id}")
        line = f"{found['state']}: {_progress(found)}"
        if line != shown:
            shown = line
            service.print_payload(found, line)
        if found["state"] != "open":
            break
        time.sleep(_WATCH_INTERVAL_SEC)
    if found["state"] != "done" or any(found["by_state"].get(state) for state in ("failed", "lost", "canceled")):
        raise click.exceptions.Exit(1)


@backfills.command("list", short_help="List the backfills.")
@click.option("--task", help="Only backfills of this task.")
@limit_option_to(200)
def backfills_list(service: RemoteService, *, task: str | None, limit: int) -> None:
    """List the backfills, newest first, with their slices by state."""
    service.print_list(service.get(_PATH, task=task, limit=limit), "backfills", _BACKFILLS)


@backfills.command("show", short_help="Show a backfill.")
@backfill_argument
@click.option("--watch", is_flag=True, help="Show the progress until it has ended.")
def backfills_show(service: RemoteService, *, backfill_id: UUID, watch: bool) -> None:
    """Show a backfill and its progress."""
    if watch:
        _watch(service, str(backfill_id))
        return
    _print(service, service.get(f"{_PATH}/{backfill_id}"))


def _print(service: RemoteService, found: text.Payload) -> None:
    reason = f" ({text.one_line(found['reason'])})" if found["reason"] else ""
    service.print_payload(found, f"{text.one_line(found['task'])} is {found['state']}{reason}: {_progress(found)}")


@backfills.command("pause", short_help="Pause a backfill.")
@backfill_argument
def backfills_pause(service: RemoteService, *, backfill_id: UUID) -> None:
    """Pause a backfill: none of its jobs starts. Running ones continue."""
    _print(service, service.post(f"{_PATH}/{backfill_id}/pause", repeatable=True))


@backfills.command("resume", short_help="Resume a backfill.")
@backfill_argument
def backfills_resume(service: RemoteService, *, backfill_id: UUID) -> None:
    """Resume a paused backfill: its jobs start again."""
    _print(service, service.post(f"{_PATH}/{backfill_id}/resume", repeatable=True))


@backfills.command("edit", short_help="Change the concurrency of a backfill.")
@backfill_argument
@click.option("--concurrency", type=POSITIVE, help="How many run at a time.")
@click.option("--note", help="Why, shown with the backfill.")
def backfills_edit(service: RemoteService, *, backfill_id: UUID, **changes: Any) -> None:
    """Change the concurrency, which holds at once, or the note."""
    _print(service, service.patch(f"{_PATH}/{backfill_id}", changes))


@backfills.command("cancel", short_help="End a backfill.")
@backfill_argument
@click.option("--running", is_flag=True, help="Cancel its running jobs too.")
def backfills_cancel(service: RemoteService, *, backfill_id: UUID, running: bool) -> None:
    """End a backfill: no further job is made, and its queued ones are canceled."""
    _print(service, service.post(f"{_PATH}/{backfill_id}/cancel{'?running=true' if running else ''}"))


@backfills.command("retry", short_help="Load again what ended badly.")
@backfill_argument
def backfills_retry(service: RemoteService, *, backfill_id: UUID) -> None:
    """Load again the slices of a backfill whose last job ended badly."""
    _print(service, service.post(f"{_PATH}/{backfill_id}/retry"))


@remote_command(short_help="List the slices of a task.")
@click.argument("task")
@click.option("--state", type=click.Choice(_STATES), help="Only slices whose last job is in this state.")
@click.option("--after", metavar="SLICE", help="Only slices after this one.")
@limit_option
def slices(service: RemoteService, *, task: str, **query: Any) -> None:
    """List the slices of TASK that have had a job: the state of the last one, and the last success."""
    service.print_list(service.get(f"/api/v1/tasks/{quote(task, safe='')}/slices", **query), "slices", _SLICES)
