"""The commands, the values that their help shows, and how their errors are printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import get_completion_class

from dataloader.app.cli import admin, service, skeleton, text
from dataloader.app.cli.exit_codes import ErrorReport, ExitCode, error_report
from dataloader.app.cli.parsing import AS_JSON_META_KEY
from dataloader.app.cli.service_options import COMMAND_META_KEY, option_of_field
from dataloader.app.errors import DataloaderError
from dataloader.app.features.alerts import commands as alerts
from dataloader.app.features.backfills import commands as backfills
from dataloader.app.features.graphs import commands as graphs
from dataloader.app.features.jobs import commands as jobs
from dataloader.app.features.jobs import trigger_command as trigger
from dataloader.app.features.keys import commands as keys
from dataloader.app.features.limits import commands as limits
from dataloader.app.features.quality import commands as data_quality
from dataloader.app.features.schedules import commands as schedules
from dataloader.app.features.webhooks import commands as webhooks
from dataloader.app.runtime.startup import version
from dataloader.errors import ClientError

# The value that help shows for an option, by the option's name, so that it is the same in every command.
_METAVARS = {
    "ADDRESS": "--host",
    "COUNT": "--failures --limit --tail --max-attempts --min-runs --expected --concurrency --per-worker --burst "
    "--max-jobs",
    "EVENT[,EVENT…]": "--kind",
    "FILE": "--from --args-file --key-file --output",
    "FINGERPRINT": "--fingerprint",
    "ID": "--job-id --webhook --job --drain --undrain",
    "JSON": "--upstream --args --retry --limits --debounce --throttle --args-patch",
    "KEY": "--lock-key --partition-key --idempotency-key --live-key",
    "NAME=VALUE": "--arg",
    "NAME": "--name --actor --action --producer --consumer-group --fair-key",
    "NUMBER": "--per-minute --priority --attempt --threshold --share",
    "PACKAGE": "--dir",
    "PORT": "--port",
    "QUEUE": "--queue",
    "DURATION": "--expires --for --resume --lease-ttl --start-within --time-limit --window --timeout --retry-timeout "
    "--overlap --exit-when-idle --target-wait --jitter --notice-time --every",
    "STATUS[,STATUS…]": "--status",
    "TAG": "--tag",
    "TASK": "--task",
    "TEXT": "--text --note --description",
    "TIME": "--available-at --expires-at --created-from --created-to --finished-from --finished-to",
    "URL": "--url",
}
_METAVAR_BY_OPTION = {option: metavar for metavar, options in _METAVARS.items() for option in options.split()}


class RootGroup(click.Group):
    """Prints the errors of `dataloader.app.errors` and of the client, and exits with their codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (DataloaderError, ClientError) as error:
            report = error_report(error)
            _print_error(report, ctx.meta.get(COMMAND_META_KEY), as_json=ctx.meta.get(AS_JSON_META_KEY, False))
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


for _command in (
    *(
        service.serve,
        service.dev,
        service.worker,
        service.drain,
        service.migrate,
        service.prune,
        service.config,
        service.tasks,
        service.doctor,
    ),
    *(service.run, skeleton.new_pipeline, service.psql, completion, trigger.trigger),
    *(jobs.status, jobs.cancel, jobs.retry, jobs.jobs, jobs.failures, jobs.events, jobs.logs, jobs.show, jobs.why),
    *(jobs.edit, jobs.clone, jobs.delete),
    *(
        admin.watch,
        admin.bulk,
        admin.queues,
        admin.queue,
        limits.limits,
        limits.breakers,
        graphs.graphs,
        admin.workers,
        admin.scaling,
        admin.task_numbers,
    ),
    schedules.schedules,
    *(backfills.backfill, backfills.backfills, backfills.slices),
    *(data_quality.datasets, data_quality.checks),
    *(keys.keys, admin.audit, webhooks.webhooks, alerts.alerts),
):
    cli.add_command(_command)


def iter_options(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Option]]:
    """Yield every option of a command and of its subcommands, with their path."""
    yield from ((path, parameter) for parameter in command.params if isinstance(parameter, click.Option))
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from iter_options(below, (*path, name))


for _, _option in iter_options(cli):
    if _option.metavar is None and not _option.is_flag and not isinstance(_option.type, click.Choice):
        _option.metavar = next((_METAVAR_BY_OPTION[name] for name in _option.opts if name in _METAVAR_BY_OPTION), None)


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


def _print_error(report: ErrorReport, command: click.Command | None, *, as_json: bool) -> None:
    if as_json:
        fields = [{"field": error.field, "message": error.message} for error in report.errors]
        payload = {"code": report.code, "detail": report.detail, "errors": fields}
        click.echo(text.json_line(payload), err=True)
        return
    # A service, or what answers in its place, may send any text: it must not act on the terminal.
    first, *more = [text.printable(text.localize_times(line)) for line in report.detail.splitlines()] or [""]
    lines = []
    for error in report.errors:
        name = error.field if command is None else option_of_field(command, error.field)
        lines.append(f"{text.one_line(name)}: {text.format_message(error.message)}")
    if lines and report.detail == "; ".join(f"{error.field}: {error.message}" for error in report.errors):
        first, *lines = lines  # the detail has no more than they have
    more += [f"  {line}" for line in lines]
    click.echo("\n".join([f"Error: {first}", *more, *([report.remedy] if report.remedy else [])]), err=True)
