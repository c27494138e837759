"""Command run: a task in this process, without a service."""

from __future__ import annotations

from typing import Any

import click

from app.cli import text
from app.cli.exit_codes import ExitCode
from app.cli.parsing import args_options


@click.command(short_help="Run a task here, in the foreground.")
@click.argument("task")
@args_options
@click.option("--lock-key", help="Wait for jobs with this key.  [default: the task's]")
@click.option("--local", is_flag=True, help="Run with a context in memory: no job, no queue, no lock.")
def run(*, task: str, args: dict[str, Any], lock_key: str | None, local: bool) -> None:
    """Run TASK in this process, with its progress and its log on the terminal, and its result on standard output.

    It is a real job with one attempt that only this process claims, in the settings' database or the embedded one.
    With --local there is no job: progress and log are only printed.

    \b
      dataloader run noop --arg sleep1=1
      dataloader run load.cbr.rates --args '{"date": "2026-11-20"}' --local

    Ctrl-C stops it at its next safe point; a second one ends the process at once.
    """
    from app.cli import run  # noqa: PLC0415 - the driver and the pipelines are not for client commands
    from app.config import load_settings  # noqa: PLC0415 - likewise

    outcome, is_interrupted = run.run_task_in_foreground(load_settings(), task, args, lock_key=lock_key, local=local)
    if outcome.traceback:
        click.echo(outcome.traceback, err=True, nl=False)
    click.echo(f"{outcome.status}{f': {outcome.error}' if outcome.error else ''}", err=True)
    if outcome.result is not None:
        click.echo(text.json_text(outcome.result))
    if outcome.status.name == "SUCCEEDED":
        click.get_current_context().exit(ExitCode.OK)
    click.get_current_context().exit(ExitCode.INTERRUPTED if is_interrupted else ExitCode.FAILURE)
