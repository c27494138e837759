"""The value that help shows for an option, by the option's name, so that it is the same in every command."""

from __future__ import annotations

from collections.abc import Iterator

import click

_METAVARS = {
    "ADDRESS": ("--host",),
    "COUNT": ("--limit", "--tail", "--max-attempts", "--min-runs", "--expected", "--concurrency", "--per-worker"),
    "EVENT[,EVENT…]": ("--kind",),
    "ID": ("--webhook", "--job", "--drain", "--undrain"),
    "JSON": ("--args",),
    "KEY": ("--lock-key", "--partition-key", "--idempotency-key", "--live-key"),
    "NAME": ("--actor", "--action", "--producer", "--consumer-group"),
    "NUMBER": ("--priority", "--attempt", "--threshold"),
    "PACKAGE": ("--dir",),
    "PORT": ("--port",),
    "QUEUE": ("--queue",),
    "SECONDS": ("--lease-ttl", "--time-limit", "--window"),
    "STATUS[,STATUS…]": ("--status",),
    "TASK": ("--task",),
    "TEXT": ("--text", "--note", "--description"),
    "TIME": (
        "--available-at",
        "--created-from",
        "--created-to",
        "--finished-from",
        "--finished-to",
        "--since",
        "--until",
    ),
}
_BY_OPTION = {option: metavar for metavar, options in _METAVARS.items() for option in options}


def iter_options(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Option]]:
    """Yield every option of a command and of its subcommands, with their path."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield path, parameter
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from iter_options(below, (*path, name))


def set_metavars(command: click.Command) -> None:
    """Set the metavar of each option that takes a value and has neither a metavar nor choices."""
    for _, option in iter_options(command):
        if option.metavar is None and not option.is_flag and not isinstance(option.type, click.Choice):
            option.metavar = next((_BY_OPTION[name] for name in option.opts if name in _BY_OPTION), None)
