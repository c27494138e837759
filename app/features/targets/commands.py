"""Commands about targets, and SQL that programs write to a target with."""
# ruff: noqa: PLC0415 - settings and the driver are not for commands that send requests

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.output import Table
from dataloader.app.cli.parsing import option
from dataloader.app.cli.remote import ListGroup, RemoteCommand

if TYPE_CHECKING:
    from dataloader.pipelines.effects_script import ProgramRow


def _format_fenced(target: text.Payload) -> str:
    if target["queue_database"]:
        return "yes: it is the queue's own database"
    return {True: "yes", False: f"no: {target['problem']}", None: ""}[target["fenced"]]


def _format_reachable(target: text.Payload) -> str:
    return {True: "yes", False: f"no: {target['problem']}", None: ""}[target["reachable"]]


_TARGETS = Table(
    "targets",
    "target!, entry, reachable!, fenced!, tasks, rows",
    "DL_TARGETS of the service names no target, and no task does.",
    cells={"reachable": _format_reachable, "fenced": _format_fenced},
)


@click.group(cls=ListGroup, short_help="List targets, or print the table that fences them.")
def targets() -> None:
    """List the targets of the service's settings, or print the table that fences transactions in them."""


targets.add_command(
    RemoteCommand(
        "list",
        operation="list_targets",
        prints=_TARGETS,
        short_help="List the targets.",
        help="List the targets of the service's settings, and those that tasks name: whether each can be reached and "
        "is fenced, which tasks name it, and how many rows of jobs it has.",
    )
)


@targets.command(short_help="Print the SQL that creates the table dl_effects.")
@click.argument("name", required=False)
def schema(*, name: str | None) -> None:
    """Print the SQL that creates the table dl_effects in a target, by which transactions there are fenced.

    With the NAME of a target it grants the table to the role that the settings have for it. A target whose role may
    create tables needs none of this: the first attempt creates the table.

    \b
      dataloader targets schema warehouse | psql "$DSN_OF_ITS_OWNER"

    The table must be in a schema on the search path of that role.
    """
    from dataloader.pipelines.effects import CREATE_TABLE

    click.echo(f"{CREATE_TABLE};")
    if name is not None:
        click.echo(_grant(name))


def _grant(name: str) -> str:
    """The right of the target's role, or a comment that says why it is missing."""
    from dataloader.app.cli.service import load_settings
    from dataloader.app.config.dsn import parse_dsn

    dsns = load_settings().targets
    dsn = dsns.get(name) or dsns.get("default")
    role = None if dsn is None else parse_dsn(dsn.get_secret_value()).get("user")
    if role is not None:
        quoted_role = '"' + role.replace('"', '""') + '"'
        return f"GRANT SELECT, INSERT, UPDATE, DELETE ON dl_effects TO {quoted_role};"
    reason = f"DL_TARGETS has no entry {name!r}" if dsn is None else f"the entry {name!r} of DL_TARGETS names no user"
    click.echo(f"Note: {text.one_line(reason)}, so no role is granted the table.", err=True)
    return "-- GRANT SELECT, INSERT, UPDATE, DELETE ON dl_effects TO the_role;"


# ── for programs ────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _printing_refusal(command: str | None) -> Iterator[None]:
    """Print SQL that raises an error in place of what was asked for: a program executes the output, and would else
    execute what follows without a fence."""
    try:
        yield
    except click.ClickException as error:
        from dataloader.pipelines.effects_script import refusal_script

        click.echo(refusal_script(f"dataloader effects {command or ''}: {error.format_message()}"), nl=False)
        raise


class _ScriptCommand(click.Command):
    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _printing_refusal(self.name):
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _printing_refusal(self.name):
            return super().invoke(ctx)


class _ScriptGroup(click.Group):
    command_class = _ScriptCommand

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        with _printing_refusal(args[0]):
            return super().resolve_command(ctx, args)


class _NotFenced(click.ClickException):
    exit_code = ExitCode.REFUSED


_VARIABLES = {"job_id": "DL_JOB_ID", "run_id": "DL_RUN_ID", "fence": "DL_FENCE", "table": "DL_EFFECTS_TABLE"}


def _row_options(command: Any) -> Any:
    """Give a command the values of the environment that the worker starts a program with."""
    for name, variable in _VARIABLES.items():
        command = option(f"--{name.replace('_', '-')}", name, envvar=variable, hidden=True)(command)
    return command


@click.group(cls=_ScriptGroup, short_help="Print SQL with which a program writes to its target.")
def effects() -> None:
    """Print SQL with which a program, such as a command task, writes to a target behind the fence of its attempt.

    Its task names the target; the worker then starts it with DL_JOB_ID, DL_RUN_ID, DL_FENCE, DL_EFFECTS_TABLE,
    DL_TARGET and DL_POSITION (JSON: where to resume) in the environment.

    \b
      set -euo pipefail
      (
        dataloader effects begin
        cat load.sql
        dataloader effects end --position '"2026-01-31"'
      ) | psql -v ON_ERROR_STOP=1 "$WAREHOUSE"

    The rows and the position are committed together, or not at all; the load itself has no COMMIT. A command that fails
    prints SQL that makes psql stop: nothing is written without the fence.
    """


@effects.command(short_help="Print the SQL that begins a fenced transaction.")
@_row_options
def begin(**row: str | None) -> None:
    """Print the SQL that begins a transaction and locks the job's row in the target. It fails where another attempt has
    the job."""
    from dataloader.pipelines.effects_script import begin_script

    click.echo(begin_script(_parse_row(row)), nl=False)


@effects.command(short_help="Print the SQL that ends it: with the position, and its commit.")
@option("--position", metavar="JSON", help="Where the next attempt resumes: it is its DL_POSITION. At most 64 kB.")
@option("--final", is_flag=True, help="There is nothing left to do: no later attempt repeats the work.")
@option("--result", metavar="JSON", help="With --final: the result of the job, should this attempt die right after.")
@_row_options
def end(*, position: str | None, final: bool, result: str | None, **row: str | None) -> None:
    """Print the SQL that writes the position with the rows of the transaction, and commits both. It fails where another
    attempt has the job."""
    from dataloader.pipelines import effects_script

    if result is not None and not final:
        raise click.UsageError("--result belongs to --final: it is the result of the finished job")
    try:
        parsed_position = None if position is None else effects_script.parse_position(position)
        parsed_result = None if result is None else effects_script.parse_result(result)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    script = effects_script.end_script(_parse_row(row), position=parsed_position, is_final=final, result=parsed_result)
    click.echo(script, nl=False)


def _parse_row(values: dict[str, str | None]) -> ProgramRow:
    from dataloader.pipelines.effects_script import parse_row

    missing = [variable for name, variable in _VARIABLES.items() if not values[name]]
    if missing:
        raise _NotFenced(
            f"not fenced: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set. A worker sets them for "
            "a program whose task names a target that is fenced: `dataloader targets` says why one is not"
        )
    try:
        return parse_row(*(str(values[name]) for name in _VARIABLES))
    except ValueError as error:
        raise _NotFenced(f"not fenced: {error}") from error


COMMANDS = {"Tasks, schedules and data": (targets, effects)}
