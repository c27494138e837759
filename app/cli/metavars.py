"""What help shows as the value of an option, by the option's name: the same option reads the same in every command."""

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


def options_of(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Option]]:
    """Every option of a command and of the commands below it, with the words that lead there."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield path, parameter
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from options_of(below, (*path, name))


def name_values(command: click.Command) -> None:
    """Give each option that takes a value, and has neither a metavar nor choices of its own, that of its name."""
    for _, option in options_of(command):
        if option.metavar is None and not option.is_flag and not isinstance(option.type, click.Choice):
            option.metavar = next((_BY_OPTION[name] for name in option.opts if name in _BY_OPTION), None)
