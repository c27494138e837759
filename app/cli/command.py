"""The commands, and how their errors are printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from app.cli import admin, alerts, audit, doctor, jobs, keys, local, service, shell, skeleton, text, trigger, webhooks
from app.cli.exit_codes import ErrorReport, ExitCode, error_report
from app.cli.metavars import set_metavars
from app.cli.service_options import AS_JSON_META_KEY
from app.errors import DataloaderError
from app.runtime.startup import version
from dataloader.errors import ClientError


class RootGroup(click.Group):
    """Prints the errors of `app.errors` and of the client, and exits with their codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (DataloaderError, ClientError) as error:
            report = error_report(error)
            _print_error(report, as_json=ctx.meta.get(AS_JSON_META_KEY, False))
            ctx.exit(report.exit_code)
        except KeyboardInterrupt:
            ctx.exit(ExitCode.INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of use, not of the alphabet."""
        return list(self.commands)


def _print_version(ctx: click.Context, _param: click.Parameter, requested: bool) -> None:
    if requested and not ctx.resilient_parsing:
        click.echo(f"dataloader {version()}")
        ctx.exit()


@click.group(
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings are environment variables, or lines of a file .env; `dataloader config` lists them.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Long ETL jobs in one PostgreSQL table: run the service, and trigger, watch and cancel jobs in it."""


for _command in (
    service.serve,
    service.worker,
    service.migrate,
    service.prune,
    service.config,
    service.tasks,
    doctor.doctor,
    local.run,
    skeleton.new_pipeline,
    shell.psql,
    shell.completion,
    trigger.trigger,
    jobs.status,
    jobs.cancel,
    jobs.retry,
    jobs.jobs,
    jobs.events,
    jobs.logs,
    jobs.show,
    jobs.why,
    jobs.edit,
    jobs.clone,
    jobs.delete,
    admin.watch,
    admin.bulk,
    admin.queues,
    admin.queue,
    admin.workers,
    admin.task_numbers,
    keys.keys,
    audit.audit,
    webhooks.webhooks,
    alerts.alerts,
):
    cli.add_command(_command)
set_metavars(cli)


def main(args: Sequence[str] | None = None) -> None:
    """The console script. Does not return."""
    try:
        cli.main(args=None if args is None else list(args), prog_name="dataloader")
    finally:
        _flush_quietly()


def _flush_quietly() -> None:
    """Flush the output now: Python would try again at exit, and a closed window would then change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError):  # there is none
            continue
        except OSError:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_error(report: ErrorReport, *, as_json: bool) -> None:
    if as_json:
        fields = [{"field": error.field, "message": error.message} for error in report.errors]
        payload = {"code": report.code, "detail": report.detail, "errors": fields}
        click.echo(text.json_line(payload), err=True)
        return
    # A service, or what answers in its place, may send any text: it must not act on the terminal.
    first, *more = [text.printable(line) for line in report.detail.splitlines()] or [""]
    more += [f"  {text.one_line(error.field)}: {text.one_line(error.message)}" for error in report.errors]
    click.echo("\n".join([f"Error: {first}", *more, *([report.remedy] if report.remedy else [])]), err=True)
