"""The command `dataloader`: its commands by group, each loaded on its first use, and how their errors are printed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from dataloader.app.cli import text
from dataloader.app.cli.exit_codes import ErrorReport, ExitCode, error_report
from dataloader.app.cli.parsing import AS_JSON_META_KEY
from dataloader.app.cli.remote import CONTEXT_META_KEY, message_of_error, option_of_field
from dataloader.app.errors import DataloaderError
from dataloader.errors import ClientError

GROUPS = ("Run the service", "Jobs", "Tasks, schedules and data", "Queues and workers", "Watch", "Settings and access")
INDEX_FILE = Path(__file__).parent / "commands.json"  # by `generate.py`: of each command the module and a line


class RootGroup(click.Group):
    """Loads a command's module on its first use, and prints the errors of `dataloader.app.errors` and of the client."""

    @cached_property
    def index(self) -> Mapping[str, Mapping[str, tuple[str, str]]]:
        """Module and line of help by the titles of groups and the names of commands."""
        index: Mapping[str, Mapping[str, tuple[str, str]]] = json.loads(INDEX_FILE.read_bytes())
        return index

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[AS_JSON_META_KEY] = "--json" in args  # until the command has read its own, which an error may prevent
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for commands in self.index.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for title, commands in self.index.items():
            if cmd_name in commands and cmd_name not in self.commands:
                for command in import_module(commands[cmd_name][0]).COMMANDS[title]:
                    self.add_command(command)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, commands in self.index.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", line) for name, (_, line) in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            ctx.exit(code if isinstance(code, int) else ExitCode.OK)
        except (DataloaderError, ClientError) as error:
            report = error_report(error)
            _print_error(report, ctx.meta.get(CONTEXT_META_KEY), as_json=ctx.meta.get(AS_JSON_META_KEY, False))
            ctx.exit(report.exit_code)
        except (click.UsageError, click.FileError) as error:
            if ctx.meta.get(AS_JSON_META_KEY):
                _print_error(ErrorReport(ExitCode.USAGE, "usage", error.format_message()), None, as_json=True)
            else:
                error.show()
            ctx.exit(ExitCode.USAGE)
        except KeyboardInterrupt:
            ctx.exit(ExitCode.INTERRUPTED)


def _print_version(ctx: click.Context, _param: click.Parameter, requested: bool) -> None:
    if requested and not ctx.resilient_parsing:
        from dataloader._distribution import version  # noqa: PLC0415 - only where it is asked for

        click.echo(f"dataloader {version()}")
        ctx.exit()


@click.group(
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings are environment variables, or lines of a file .env; `dataloader config` lists them.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
              help="Print the version and exit.")  # fmt: skip
def cli() -> None:
    """Long ETL jobs in one PostgreSQL table: run the service, and trigger, watch and cancel jobs in it."""


@click.command(short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(*, shell: str) -> None:
    """Print the script that completes commands, options and their values in SHELL.

    \b
      eval "$(dataloader completion bash)"                      # in ~/.bashrc
      eval "$(dataloader completion zsh)"                       # in ~/.zshrc, after compinit
      dataloader completion fish > ~/.config/fish/completions/dataloader.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None  # noqa: S101 - click knows these shells
    click.echo(complete(cli, {}, "dataloader", "_DATALOADER_COMPLETE").source())


COMMANDS = {"Settings and access": (completion,)}


def main(args: Sequence[str] | None = None) -> None:
    """The console script. Does not return."""
    try:
        cli.main(args=None if args is None else list(args), prog_name="dataloader")
    finally:
        # Python would flush the output again at exit, and a closed window would then change the exit code.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, ValueError):  # there is none
                continue
            except OSError:
                with suppress(OSError, ValueError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_error(report: ErrorReport, context: click.Context | None, *, as_json: bool) -> None:
    if as_json:
        fields = [{"field": error.field, "message": error.message} for error in report.errors]
        payload = {"code": report.code, "detail": report.detail, "errors": fields}
        click.echo(text.json_line(payload), err=True)
        return
    # A service, or what answers in its place, may send any text: it must not act on the terminal.
    first, *more = [text.printable(text.localize_times(line)) for line in report.detail.splitlines()] or [""]
    lines = []
    for error in report.errors:
        name = error.field if context is None else option_of_field(context, error.field)
        message = error.message if context is None else message_of_error(context, error)
        lines.append(f"{text.one_line(name)}: {text.format_message(message)}")
    if lines and report.detail == "; ".join(f"{error.field}: {error.message}" for error in report.errors):
        first, *lines = lines  # the detail has no more than they have
    more += [f"  {line}" for line in lines]
    click.echo("\n".join([f"Error: {first}", *more, *([report.remedy] if report.remedy else [])]), err=True)
