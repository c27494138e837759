"""Command audit: who did what."""

from __future__ import annotations

from typing import Any

from dataloader.app.cli import text
from dataloader.app.cli.output import Table
from dataloader.app.cli.remote import RemoteCommand


def _format_changes(line: text.Payload) -> str:
    """`priority 100 → 5`; the fields alone of a resource that was created or deleted."""
    if line.get("count", 1) > 1:
        return f"{line['count']} triggers since {text.format_time(line['first_at'])}"
    before, after = (
        value if value is None or isinstance(value, dict) else {"value": value}
        for value in (line["before"], line["after"])
    )

    def shown(value: Any) -> str:
        return "null" if value is None else text.format_value(value)

    if before is None or after is None:
        return ", ".join(f"{name} {shown(value)}" for name, value in (after or before or {}).items())
    return ", ".join(f"{name} {shown(before.get(name))} → {shown(value)}" for name, value in after.items())


AUDIT_LOG = Table(
    "entries",
    "line=audit_id!, time=at!, actor, action, resource={subject} {subject_id}, changes, from={address} ({via}), "
    "request=request_id",
    "No actions match.",
    cells={"changes": _format_changes},
)
audit = RemoteCommand(
    "audit", operation="list_audit_entries", prints=AUDIT_LOG, omit="request_id",
    options={
        "subject": {"metavar": "KIND"},
        "since": {"names": "--created-from", "former": ("--since",), "help": "Only actions then or later."},
        "until": {"names": "--created-to", "former": ("--until",), "help": "Only actions before this time."},
        "before": {"metavar": "LINE", "help": "Only lines older than this one."},
    },
    short_help="List who did what.",
    help="List who did what, when and from where, and what it changed, newest first. It needs the scope `operate`.",
)  # fmt: skip

COMMANDS = {"Settings and access": (audit,)}
