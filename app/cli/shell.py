"""completion, psql: for a person's shell."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHELLS = ("bash", "zsh", "fish")
_COMPLETION_VARIABLE = "_DATALOADER_COMPLETE"  # where click reads what is to be completed


@click.command(short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(*, shell: str) -> None:
    """Print the script that completes commands, options and their values in SHELL.

    \b
      eval "$(dataloader completion bash)"                      # in ~/.bashrc
      eval "$(dataloader completion zsh)"                       # in ~/.zshrc, after compinit
      dataloader completion fish > ~/.config/fish/completions/dataloader.fish
    """
    root = click.get_current_context().find_root()
    complete = get_completion_class(shell)
    if complete is None:  # no shell of ours: click knows them all
        raise click.UsageError(f"click completes nothing in {shell}")
    click.echo(complete(root.command, {}, "dataloader", _COMPLETION_VARIABLE).source())


@click.command(
    short_help="Open psql on the service's database.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", metavar="[PSQL_OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def psql(*, arguments: tuple[str, ...]) -> None:
    """Open psql on the database of the settings, or on the embedded one, with the queue's schema first in its path.

    \b
      dataloader psql
      dataloader psql --command 'SELECT status, count(*) FROM dl_jobs GROUP BY 1'

    The password goes to psql by its environment, never by the command line, which everybody on the machine can read.
    An embedded server that does not run is started, and stopped when psql ends. The exit code is that of psql.
    """
    from app.config import load_settings  # noqa: PLC0415 - likewise
    from app.runtime import commands  # noqa: PLC0415 - the driver is not for client commands

    with commands.psql_command(load_settings()) as (program, environment):
        code = _run_program([program, *arguments], environment)
    click.get_current_context().exit(code)


def _run_program(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Ctrl-C is psql's alone: it ends a statement, and not this process, which has a server to stop."""
    with subprocess.Popen(argv, env=environment) as process:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # only now: the child would inherit it
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
