"""`dataloader migrate --uninstall`: shows what of the queue is in the schema, asks, and removes it."""

from __future__ import annotations

import click

from dataloader.app.cli.output import is_json, print_payload
from dataloader.app.config import Settings
from dataloader.app.runtime import commands
from dataloader.app.wording import format_count


def uninstall_queue(settings: Settings, *, yes: bool, force: bool) -> None:
    """Show what would be removed; remove it once that is confirmed."""
    found = commands.find_installation(settings)
    if not is_json():
        width = max(map(len, found.tables))
        click.echo(f"Schema {found.schema} has of the queue:")
        click.echo("\n".join(f"  {name:{width}}  {rows:>12,} rows" for name, rows in found.tables.items()))
        click.echo(f"  {format_count(len(found.functions), 'function')}, {format_count(len(found.types), 'type')}")
        others = format_count(found.other_tables, "other table or view", "other tables and views")
        click.echo(f"Not touched: the schema, its {others}, and the roles: {', '.join(found.roles) or 'none'}.")
    if not force:
        commands.require_unused(found)
    if not yes and is_json():
        raise click.UsageError("--json asks for no confirmation: it needs --yes")
    if not yes:
        click.confirm("Remove all of it, with every job? There is no undo.", abort=True)
    removed = commands.remove_installation(settings, force=force)
    print_payload(
        {
            "schema": removed.schema,
            "tables": removed.tables,
            "functions": [*removed.functions],
            "types": [*removed.types],
        },
        f"Removed {format_count(len(removed.tables), 'table')} with {sum(removed.tables.values()):,} rows.",
    )
