"""audit: who did what, asked of a running service."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import click

from app.cli import text
from app.cli.service import Service, asks_service
from app.client import AuditLine

COLUMNS = ("line", "time", "who", "did", "to", "changed", "from", "request")
_MOMENT = click.DateTime(formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d"])


@click.command(short_help="Who did what.")
@click.option("--actor", help="Only what this key did, by its name.")
@click.option("--key-id", metavar="ID", help="Only what this key did, by its id.")
@click.option("--action", help="Only this action, such as cancel.")
@click.option("--subject", metavar="KIND", help="Only what was done to things of this kind: job, key, session.")
@click.option("--subject-id", metavar="ID", help="Only what was done to this one, such as a job's id.")
@click.option("--since", type=_MOMENT, help="Not before this time; local, unless it has a zone.")
@click.option("--until", type=_MOMENT, help="Before this time.")
@click.option("--before", type=click.IntRange(min=1), metavar="LINE", help="Only lines older than this one.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most this many.")
@asks_service
def audit(service: Service, *, since: datetime | None, until: datetime | None, **which: Any) -> None:
    """Who did what, when and from where, and what it changed, newest first. Takes a key with the scope `operate`."""
    page = service.client.audit(since=since and since.astimezone(), until=until and until.astimezone(), **which)
    service.table(page.said, COLUMNS, rows(page.lines), whole=("line", "time"), empty="Nobody did anything that fits.")


def rows(lines: Iterable[AuditLine]) -> list[tuple[str, ...]]:
    return [
        (
            str(line.audit_id),
            text.local_time(line.at),
            text.clean(line.actor),
            text.clean(line.action),
            text.clean(f"{line.subject} {line.subject_id or ''}"),
            text.clean(_changes(line.before, line.after)),
            text.clean(f"{line.address or ''} ({line.via})"),
            text.clean(line.request_id or ""),
        )
        for line in lines
    ]


def _changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """`priority 100 → 5`; of what is new, or gone, what there is."""
    if before is None or after is None:
        return ", ".join(f"{name} {_short(value)}" for name, value in (after or before or {}).items())
    return ", ".join(f"{name} {_short(before.get(name))} → {_short(value)}" for name, value in after.items())


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
