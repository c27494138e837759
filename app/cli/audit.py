"""Command audit: who did what."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from app.cli import text
from app.cli.service_options import RemoteService, service_options

_DATETIME = click.DateTime(formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d"])


@click.command(short_help="List who did what.")
@click.option("--actor", help="Only actions with this key, by its name.")
@click.option("--key-id", metavar="ID", help="Only actions with this key, by its id.")
@click.option("--action", help="Only this action, such as cancel.")
@click.option("--subject", metavar="KIND", help="Only actions on this kind of resource: job, key, session.")
@click.option("--subject-id", metavar="ID", help="Only actions on this resource, such as a job's id.")
@click.option("--since", type=_DATETIME, help="Not before this time; local, unless it has a zone.")
@click.option("--until", type=_DATETIME, help="Before this time.")
@click.option("--before", type=click.IntRange(min=1), metavar="LINE", help="Only lines older than this one.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="List at most this many.")
@service_options
def audit(service: RemoteService, *, since: datetime | None, until: datetime | None, **options: Any) -> None:
    """List who did what, when and from where, and what it changed, newest first. Needs a key with the scope `operate`."""
    times = {"since": since and since.astimezone(), "until": until and until.astimezone()}
    page = service.get("/api/v1/audit", **times, **options)
    service.print_table(page, AUDIT_COLUMNS, page["entries"], uncut=("line", "time"), empty_message="No actions match.")


def format_changes(line: text.Payload) -> str:
    """`priority 100 → 5`; the fields alone of a resource that was created or deleted."""
    before, after = line["before"], line["after"]
    if before is None or after is None:
        return ", ".join(f"{name} {_format_value(value)}" for name, value in (after or before or {}).items())
    return ", ".join(
        f"{name} {_format_value(before.get(name))} → {_format_value(value)}" for name, value in after.items()
    )


def _format_value(value: Any) -> str:
    return "null" if value is None else text.format_value(value)


AUDIT_COLUMNS: text.Columns = {
    "line": "audit_id",
    "time": text.time_of("at"),
    "actor": "actor",
    "action": "action",
    "resource": lambda line: f"{line['subject']} {line['subject_id'] or ''}",
    "changes": format_changes,
    "from": lambda line: f"{line['address'] or ''} ({line['via']})",
    "request": "request_id",
}
