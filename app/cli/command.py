"""The tree of commands, and how an error leaves it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from app.cli import ask, audit, doctor, host, keys, local, operate, shell, skeleton, text, told, trigger
from app.cli.exits import Exit, Told
from app.cli.exits import told as told_of
from app.cli.metavars import name_values
from app.cli.service import AS_JSON
from app.errors import DataloaderError


class Door(click.Group):
    """A group whose commands may raise the errors of `app.errors` and be interrupted."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DataloaderError as error:
            why = told_of(error)
            _say(why, as_json=ctx.meta.get(AS_JSON, False))
            ctx.exit(why.exit)
        except KeyboardInterrupt:
            ctx.exit(Exit.INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of a newcomer's day, not of the alphabet."""
        return list(self.commands)


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"dataloader {host.version()}")
        ctx.exit()


@click.group(
    cls=Door,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings are environment variables, or lines of a file .env; `dataloader config` lists them.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version and exit."
)
def cli() -> None:
    """Long ETL jobs in one PostgreSQL table: run the service, and trigger, watch and cancel jobs in it."""


for _command in (
    host.serve,
    host.worker,
    host.migrate,
    host.prune,
    host.config,
    host.tasks,
    doctor.doctor,
    local.run,
    skeleton.new_pipeline,
    shell.psql,
    shell.completion,
    trigger.trigger,
    ask.status,
    ask.cancel,
    ask.retry,
    ask.jobs,
    ask.events,
    ask.logs,
    operate.show,
    operate.why,
    operate.edit,
    operate.clone,
    operate.delete,
    operate.watch,
    operate.bulk,
    operate.queues,
    operate.queue,
    operate.workers,
    operate.task_numbers,
    keys.keys,
    audit.audit,
    told.webhooks,
    told.alerts,
):
    cli.add_command(_command)
name_values(cli)


def main(args: Sequence[str] | None = None) -> None:
    """The console script. Does not return."""
    try:
        cli.main(args=None if args is None else list(args), prog_name="dataloader")
    finally:
        _forget_what_nobody_reads()


def _forget_what_nobody_reads() -> None:
    """Words for a window that was closed would be tried once more when Python ends, and make an exit code of their own
    of what went well."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError):  # there is none
            continue
        except OSError:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(why: Told, *, as_json: bool) -> None:
    if as_json:
        fields = [{"field": error.field, "message": error.message} for error in why.errors]
        said = {"code": why.code, "detail": why.detail, "errors": fields}
        click.echo(text.json_line(said), err=True)
        return
    # A service, or what answers in its place, may say anything: its words must not act on the terminal.
    first, *more = [text.plain(line) for line in why.detail.splitlines()] or [""]
    more += [f"  {text.clean(error.field)}: {text.clean(error.message)}" for error in why.errors]
    click.echo("\n".join([f"Error: {first}", *more, *([why.remedy] if why.remedy else [])]), err=True)
