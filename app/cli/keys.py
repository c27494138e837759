"""keys: made, shown and revoked straight in the database, so that the first one can be made by whoever may."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from app.cli import text
from app.cli.invocation import dataloader_command
from app.cli.service import json_option, show_table, usage
from app.errors import NoOperatorKey

if TYPE_CHECKING:
    from app.queue.keys import Key

SCOPES = ("read", "trigger", "operate", "admin")
_SPAN = re.compile(r"([1-9][0-9]{0,5}) ?(m|h|d|w)")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
COLUMNS = ("key", "name", "state", "scopes", "limits", "created", "by", "expires", "last used")


def parse_span(told: str) -> float:
    """12h, 90d"""
    match = _SPAN.fullmatch(told.strip())
    if match is None:
        raise ValueError(f"{told!r} is no time to live; one looks like 12h, 90d or 52w")
    return float(int(match[1]) * _SECONDS[match[2]])


@click.group(short_help="Make, show and revoke API keys.")
def keys() -> None:
    """Make, show and revoke the API keys of the service, straight in the database of the settings.

    As soon as there is one, every caller of the API needs a key.
    """


@keys.command(short_help="Make a key, and show it once.")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    required=True,
    help="What it may do; may be repeated.",
)
@click.option("--task", "tasks", multiple=True, metavar="TASK", help="It may trigger this task only; may be repeated.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only in this queue; may be repeated.")
@click.option(
    "--expires", "lives_sec", type=usage(parse_span), metavar="SPAN", help="How long it is valid: 12h, 90d.  [for ever]"
)
@click.option("--allow-lockout", is_flag=True, help="Make it even if no valid key has the scope operate or admin.")
@json_option
def create(
    *,
    name: str,
    scopes: Sequence[str],
    tasks: Sequence[str],
    queues: Sequence[str],
    lives_sec: float | None,
    allow_lockout: bool,
    as_json: bool,
) -> None:
    """Make a key for NAME, such as the team or the program that will use it, and show it: this once, and never again.

    The first key has to have the scope admin or operate: as soon as there is a key, every caller needs one.

    \b
      dataloader keys create admin --scope admin
      dataloader keys create dashboard --scope read
      dataloader keys create billing --scope trigger --task load.cbr.rates --expires 90d
      dataloader keys create on-call --scope operate

    On standard output there is the key alone, so that it can go straight into a file or a vault.
    """
    from app import wiring  # noqa: PLC0415 - the driver is not for client commands

    with wiring.keys("keys create") as (ring, who):
        new = wiring.NewKey(
            name=name,
            scopes=frozenset(wiring.Scope(scope) for scope in scopes),
            created_by=who,
            tasks=frozenset(tasks) or None,
            queues=frozenset(queues) or None,
            lives_sec=lives_sec,
        )
        try:
            made, token = ring.create(new, allow_lockout=allow_lockout)
        except NoOperatorKey as error:
            raise NoOperatorKey(_lockout(str(error), scopes)) from error
    if as_json:
        click.echo(text.json_text({"key": token, **_told(made)}))
        return
    until = f"until {text.local_time(made.expires_at)}" if made.expires_at else "until it is revoked"
    click.echo(
        f"Made the key {made.id} for {text.clean(made.name)}: {_limits(made) or 'without limits'}, {until}.\n"
        "Keep it now; it is kept nowhere, and cannot be shown again. From now on every caller needs a key.",
        err=True,
    )
    click.echo(token)


@keys.command("list", short_help="Show the keys.")
@json_option
def list_(*, as_json: bool) -> None:
    """Show every key there ever was: whose it is, what it may do, until when, and when it was used last.

    The last use is noted once a minute.
    """
    from app import wiring  # noqa: PLC0415 - as above

    with wiring.keys("keys list") as (ring, _):
        found = ring.all()
    if as_json:
        click.echo(text.json_text({"keys": [_told(key) for key in found]}))
    elif found:
        show_table(COLUMNS, [_row(key) for key in found], whole=("key", "name", "state", "scopes"))
    else:
        click.echo("There is no key: the service answers callers on its own machine, and no others.", err=True)


@keys.command(short_help="End a key.")
@click.argument("which", metavar="KEY")
@json_option
def revoke(*, which: str, as_json: bool) -> None:
    """End KEY, by its id or by its name. Every process refuses it, and ends its sessions, within five seconds."""
    from app import wiring  # noqa: PLC0415 - as above

    with wiring.keys("keys revoke") as (ring, _):
        ended = ring.revoke(which)
    if as_json:
        click.echo(text.json_text({"keys": [_told(key) for key in ended]}))
    else:
        click.echo("\n".join(f"Revoked the key {key.id} of {text.clean(key.name)}." for key in ended))


def _lockout(found: str, scopes: Sequence[str]) -> str:
    return (
        f"{found}, and this one would have {' and '.join(scopes)} alone. As soon as there is a key, every caller needs "
        "one; none could cancel or change a job then.\n"
        f"Make a key for yourself first:  {dataloader_command()} keys create admin --scope admin\n"
        "Or make this one all the same:  add --allow-lockout"
    )


def _told(key: Key) -> dict[str, object]:
    return {
        "key_id": key.id,
        "name": key.name,
        "state": key.state,
        "scopes": list(key.scopes),
        "tasks": None if key.tasks is None else list(key.tasks),
        "queues": None if key.queues is None else list(key.queues),
        "created_at": key.created_at.isoformat(),
        "created_by": key.created_by,
        "expires_at": key.expires_at and key.expires_at.isoformat(),
        "last_used_at": key.last_used_at and key.last_used_at.isoformat(),
        "revoked_at": key.revoked_at and key.revoked_at.isoformat(),
    }


def _row(key: Key) -> tuple[str, ...]:
    return (
        key.id,
        text.clean(key.name),
        key.state,
        ",".join(key.scopes),
        _limits(key),
        text.local_time(key.created_at),
        text.clean(key.created_by),
        text.local_time(key.expires_at),
        text.local_time(key.last_used_at),
    )


def _limits(key: Key) -> str:
    named = (("tasks", key.tasks), ("queues", key.queues))
    return "; ".join(f"{what} {text.clean(', '.join(which))}" for what, which in named if which is not None)
