"""Commands about backfills and slices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.output import Table, is_json, print_payload
from dataloader.app.cli.parsing import args_options, option, without_none
from dataloader.app.cli.remote import RemoteCommand, RemoteGroup, RemoteService, remote_command
from dataloader.app.wording import format_duration

_WATCH_INTERVAL_SEC = 2.0
_STATES = ("queued", "running", "succeeded", "failed", "canceled", "lost")
_NOTE = {"note": {"help": "Why, shown with the backfill."}}
_WATCH = option("--watch", is_flag=True, help="Show the progress until it has ended.")


def _progress(backfill: text.Payload) -> str:
    states = backfill["by_state"]
    parts = [f"{states[state]:,} {state}" for state in _STATES if states.get(state)]
    left = backfill["total"] - backfill["made"] - backfill["skipped"]
    parts += [f"{left:,} to come"] if left > 0 and backfill["state"] in ("open", "paused") else []
    parts += [f"{backfill['skipped']:,} left out"] if backfill["skipped"] else []
    return ", ".join(parts) or "nothing yet"


def _state_line(backfill: text.Payload) -> str:
    reason = f" ({backfill['reason']})" if backfill["reason"] else ""
    return f"{backfill['task']} is {backfill['state']}{reason}: {_progress(backfill)}"


def _made_lines(made: text.Payload) -> Iterator[str]:
    plan = made["plan"]
    yield f"{plan['selected']:,} of {plan['total']:,} slices, {plan['first'][0]} to {plan['last'][-1]}"
    if plan["estimated_sec"] is not None:
        yield f"about {format_duration(plan['estimated_sec'])}, by the median run of the last week"
    yield from (f"the limit {name} lets only {count} run at a time" for name, count in plan["limits"].items())
    is_made = made["backfill"] is not None
    yield (
        f"backfill {made['backfill']['backfill_id']}"
        if is_made
        else f"args of the first: {text.json_line(plan['args'])}"
    )


_BACKFILLS = Table(
    "backfills",
    "backfill=backfill_id!, task, state!, progress, concurrency, created=created_at, by=created_by, note",
    "There are no backfills. `dataloader backfill TASK --from … --to …` makes one.",
    cells={"progress": _progress},
)
_SLICES = Table(
    "slices",
    "slice=partition_key!, state!, job=job_id!, runs, rows, succeeded=succeeded_at, changed=changed_at",
    "No slices match.",
)


@remote_command(
    operation="create_backfill", arguments=("task",), omit="slices max_attempts args",
    short_help="Load slices of a task again, or for the first time.",
    options={"stop_after_failures": "--stop-after", "lock_key": {"help": "May have placeholders, such as {partition}."},
             "queue": {"help": "The queue.  [default: the task's, else etl.default]"}, **_NOTE},
)  # fmt: skip
@option("--from", "first", metavar="SLICE", help="The first slice: 2026-01-01, 2026-01, 2026-W05 …")
@option("--to", "last", metavar="SLICE", help="The last slice, which is loaded too.")
@option("--partition-key", "keys", multiple=True, metavar="SLICE", help="One slice instead; may be repeated.")
@option("--unit", type=click.Choice(("hour", "day", "week", "month")), help="If the task declares none.")
@option("--zone", help="The IANA time zone of the slices, if the task declares none.")
@_WATCH
@args_options
def backfill(
    service: RemoteService, *, first: str | None, last: str | None, keys: tuple[str, ...], unit: str | None,
    zone: str | None, args: dict[str, Any] | None, watch: bool, **fields: Any,
) -> int | None:  # fmt: skip
    """Load slices of TASK for the first time or again, such as all days of January, a few at a time.

    \b
      dataloader backfill load.sales --from 2026-01-01 --to 2026-01-31 --watch
      dataloader backfill load.sales --from 2026-01 --to 2026-01 --unit day --arg 'day={partition}' --dry-run

    Without args they are those of the task's schedule. A slice that another job loads already is not loaded twice.
    """
    if keys and (first, last, unit, zone) != (None,) * 4:
        raise click.UsageError("--partition-key names the slices; --from, --to, --unit and --zone are for a range")
    slices = without_none({"from": first, "to": last, "unit": unit, "zone": zone, "list": list(keys) or None})
    made = service.send("create_backfill", slices=slices, args=args, **fields)
    is_watched = watch and not fields["dry_run"]
    if not (is_watched and is_json()):
        print_payload(made, *_made_lines(made))
    return _watch(service, made["backfill"]["backfill_id"], made) if is_watched else None


def _watch(service: RemoteService, backfill_id: str, made: text.Payload | None = None) -> int:
    """Print the progress whenever it has changed, until the backfill is paused or has ended; as JSON only what it is
    then, in the answer `made` if there is one."""
    shown = ""
    while True:
        found = service.send("get_backfill", backfill_id=backfill_id)
        line = f"{found['state']}: {_progress(found)}"
        if line != shown and not is_json():
            print_payload(found, line)
        shown = line
        if found["state"] != "open":
            break
        time.sleep(_WATCH_INTERVAL_SEC)
    if is_json():
        print_payload(found if made is None else {**made, "backfill": found})
    has_bad = any(found["by_state"].get(state) for state in ("failed", "lost", "canceled"))
    return ExitCode.FAILURE if found["state"] != "done" or has_bad else ExitCode.OK


backfills = RemoteGroup("backfills", help="Manage backfills.")
backfills.add("list", "list_backfills", _BACKFILLS)
backfills.add("pause", "pause_backfill", _state_line, repeatable=True)
backfills.add("resume", "resume_backfill", _state_line, repeatable=True)
backfills.add("edit", "change_backfill", _state_line, options=_NOTE)
backfills.add("cancel", "cancel_backfill", _state_line)
backfills.add("retry", "retry_backfill", _state_line)


@backfills.command("show", operation="get_backfill")
@_WATCH
def show_backfill(service: RemoteService, *, backfill_id: str, watch: bool) -> int | None:
    if watch:
        return _watch(service, backfill_id)
    service.perform("get_backfill", _state_line, backfill_id=backfill_id)
    return None


slices = RemoteCommand(
    "slices", operation="list_task_slices", prints=_SLICES, omit="from to", options={"after": {"metavar": "SLICE"}}
)

COMMANDS = {"Tasks, schedules and data": (backfill, backfills, slices)}
