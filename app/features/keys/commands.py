"""Commands keys: create, list, rotate and revoke API keys in the database of the settings, with no service running."""
# ruff: noqa: PLC0415 - the driver is not for commands that send requests

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.invocation import dataloader_command
from dataloader.app.cli.output import Table, is_json, print_payload
from dataloader.app.cli.parsing import DURATION, SECONDS, json_option, option
from dataloader.app.cli.remote import ListGroup
from dataloader.app.errors import NoOperatorKey

if TYPE_CHECKING:
    from dataloader.app.http.auth.api_keys import ApiKey

SCOPES = ("read", "trigger", "operate", "admin")


def format_limits(key: text.Payload) -> str:
    limits = {name: key[name] for name in ("tasks", "queues") if key[name] is not None}
    return "; ".join(f"{name} {', '.join(values)}" for name, values in limits.items())


_KEYS = Table(
    "keys",
    "key=key_id!, name!, state!, scopes!, limits, created=created_at, by=created_by, expires=expires_at, "
    "last used=last_used_at",
    "No keys: the service answers callers on its own machine, and no others.",
    cells={"scopes": lambda key: ",".join(key["scopes"]), "limits": format_limits},
)


@click.group(cls=ListGroup, short_help="Manage API keys.")
def keys() -> None:
    """Manage the API keys of the service, in the database of the settings.

    As soon as there is a key, every caller of the API needs one.
    """


@keys.command(short_help="Create a key, and show it once.")
@click.argument("name")
@option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, required=True,
        help="What the key allows; may be repeated.")  # fmt: skip
@option("--task", "tasks", multiple=True, help="Allow triggering this task only; may be repeated.")
@option("--queue", "queues", multiple=True, help="Allow this queue only; may be repeated.")
@option("--expires", "lifetime_sec", type=DURATION,
        help="How long it is valid: 12h, 90d.  [no end]")  # fmt: skip
@option("--allow-lockout", is_flag=True, help="Create it even if no valid key has the scope operate or admin.")
@json_option
def create(*, name: str, scopes: Sequence[str], lifetime_sec: float | None, allow_lockout: bool, **limits: Any) -> None:
    """Create a key for NAME, such as the team or the program that will use it, and show it only now.

    The first key must have the scope admin or operate: as soon as there is a key, every caller needs one.

    \b
      dataloader keys create admin --scope admin
      dataloader keys create dashboard --scope read
      dataloader keys create billing --scope trigger --task load.cbr.rates --expires 90d
      dataloader keys create on-call --scope operate

    Standard output has the key alone, so that it can be sent straight into a file or a secret store.
    """
    from dataloader.app.runtime import commands

    with commands.audited_api_keys("keys create") as (api_keys, actor):
        new = commands.NewApiKey(
            name=name,
            scopes=frozenset(commands.Scope(scope) for scope in scopes),
            created_by=actor,
            tasks=frozenset(limits["tasks"]) or None,
            queues=frozenset(limits["queues"]) or None,
            ttl_sec=lifetime_sec,
        )
        try:
            created, token = api_keys.create(new, allow_lockout=allow_lockout)
        except NoOperatorKey as error:
            raise NoOperatorKey(
                f"{error}, and this one would have only {' and '.join(scopes)}. As soon as there is a key, every "
                "caller needs one; none could cancel or change a job then.\n"
                f"Create a key for yourself first:  {dataloader_command()} keys create admin --scope admin\n"
                "Or create this one all the same:  add --allow-lockout"
            ) from error
    key = _to_dict(created)
    until = f"until {text.format_time(created.expires_at)}" if created.expires_at else "until it is revoked"
    if not is_json():
        allowed = format_limits(key) or "without limits"
        click.echo(
            f"Created the key {created.id} for {text.one_line(name)}: {allowed}, {until}.\n"
            "Store it now: it is not stored here and cannot be shown again. From now on every caller needs a key.",
            err=True,
        )
    print_payload({"key": token, **key}, token)


@keys.command("list", short_help="List the keys.")
@json_option
def list_() -> None:
    """List all keys, also revoked and expired ones: name, scopes, limits, expiry and last use.

    The last use is saved once a minute.
    """
    from dataloader.app.runtime import commands

    with commands.audited_api_keys("keys list") as (api_keys, _):
        items = [_to_dict(key) for key in api_keys.all()]
    _KEYS.print({"keys": items})


@keys.command(short_help="Replace a key by a new one.")
@click.argument("key")
@option("--overlap", "overlap_sec", type=SECONDS, default="1d", show_default=True,
        help="How long the old key stays valid; 0: it is revoked at once.")  # fmt: skip
@json_option
def rotate(*, key: str, overlap_sec: float) -> None:
    """Replace KEY, by its id or its name, by a key with the same name, scopes and limits, and show it only now.

    The old key stays valid for --overlap, so that its callers can change to the new one.
    """
    from dataloader.app.runtime import commands

    with commands.audited_api_keys("keys rotate") as (api_keys, actor):
        new, token, old_expires_at = api_keys.rotate(key, created_by=actor, overlap_sec=overlap_sec)
    if not is_json():
        until = text.format_time(old_expires_at)
        click.echo(f"Created the key {new.id} for {text.one_line(new.name)}; the old one ends {until}.", err=True)
    print_payload({"key": token, **_to_dict(new), "old_expires_at": old_expires_at.isoformat()}, token)


@keys.command(short_help="Revoke a key.")
@click.argument("key")
@json_option
def revoke(*, key: str) -> None:
    """Revoke KEY, by its id or its name. Every process rejects it, and ends its sessions, within five seconds."""
    from dataloader.app.runtime import commands

    with commands.audited_api_keys("keys revoke") as (api_keys, _):
        revoked = api_keys.revoke(key)
    lines = [f"Revoked the key {key.id} of {key.name}." for key in revoked]
    print_payload({"keys": [_to_dict(key) for key in revoked]}, *lines)


def _to_dict(key: ApiKey) -> dict[str, object]:
    fields = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in vars(key).items()}
    return {"key_id": fields.pop("id"), **fields}


COMMANDS = {"Settings and access": (keys,)}
