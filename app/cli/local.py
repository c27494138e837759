"""run: a pipeline in this process. No service is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import click

from app.cli import text
from app.cli.exits import Exit
from app.cli.service import usage
from app.cli.trigger import from_file
from app.cli.words import parse_object, parse_pair


@click.command(short_help="Run a pipeline here, in the foreground.")
@click.argument("task")
@click.option(
    "--arg", "pairs", type=usage(parse_pair), multiple=True, metavar="NAME=VALUE", help="One argument, as for trigger."
)
@click.option("--args", "args_text", type=usage(parse_object), metavar="JSON", help="Arguments as a JSON object.")
@click.option("--args-file", type=click.File("r", encoding="utf-8"), metavar="FILE", help="Arguments from a file.")
@click.option("--lock-key", help="Wait for jobs with this key.  [default: the task's]")
@click.option("--local", is_flag=True, help="With a context in memory: no job, no queue, no lock.")
def run(
    *,
    task: str,
    pairs: Sequence[tuple[str, Any]],
    args_text: dict[str, Any] | None,
    args_file: IO[str] | None,
    lock_key: str | None,
    local: bool,
) -> None:
    """Run TASK in this process, with its progress and its log on the terminal, and its result on standard output.

    It is a real job, tried once, that only this process runs: in the database of the settings, or in the embedded one.
    With --local there is no job: what the pipeline says is only shown.

    \b
      dataloader run noop --arg sleep1=1
      dataloader run load.cbr.rates --args '{"date": "2026-11-20"}' --local

    Ctrl-C asks it to stop at its next safe point; a second one leaves at once.
    """
    from app.cli import foreground  # noqa: PLC0415 - the driver and the pipelines are not for client commands
    from app.config import Settings  # noqa: PLC0415 - likewise

    args = {**from_file(args_file), **(args_text or {}), **dict(pairs)}
    show = foreground.Show()
    outcome = foreground.run(Settings.load(), task, args, lock_key=lock_key, local=local, show=show)
    if outcome.traceback:
        click.echo(outcome.traceback, err=True, nl=False)
    click.echo(f"{outcome.status}{f': {outcome.error}' if outcome.error else ''}", err=True)
    if outcome.result is not None:
        click.echo(text.json_text(outcome.result))
    if outcome.status.name == "SUCCEEDED":
        click.get_current_context().exit(Exit.OK)
    click.get_current_context().exit(Exit.INTERRUPTED if outcome.by_hand else Exit.NOT_DONE)
