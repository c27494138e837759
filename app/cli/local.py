"""run, new-pipeline: for whoever writes a pipeline. No service is needed."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click

from app.cli import text
from app.cli.exits import Exit
from app.cli.service import usage
from app.cli.trigger import from_file
from app.cli.words import parse_object, parse_pair

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")

_MODULE = '''"""{task}: say here what it loads, from where, and into what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.contract import Args, Context, Progress, register


@register("{task}")
def {function}(args: Args, ctx: Context) -> Iterator[Any]:
    days = args.get("days", [])
    for done, day in enumerate(days, 1):
        ctx.log.info("day loaded", day=day, rows=_load(day))
        yield Progress(done, len(days), "days")
    return {{"days": len(days)}}


def _load(day: str) -> int:
    """Load one day so that loading it twice changes nothing; returns how many rows there were."""
    return len(day)  # … yours …
'''

_TEST = """from __future__ import annotations

import pytest
from {module} import {function}

from pipelines.contract import Stop
from pipelines.testing import FakeContext, run

DAYS = {{"days": ["2030-01-30", "2030-01-31"]}}


def test_every_day_is_loaded_and_told():
    ctx = FakeContext()

    assert run({function}, DAYS, ctx) == {{"days": 2}}
    assert ctx.progresses[-1] == {{"processed": 2, "total": 2, "unit": "days"}}
    assert [told.fields["day"] for told in ctx.logs] == DAYS["days"]


def test_a_stop_ends_it_between_two_days():
    ctx = FakeContext(stop_after=0)

    with pytest.raises(Stop):
        run({function}, DAYS, ctx)
    assert len(ctx.logs) == 1
"""


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


def parse_name(told: str) -> str:
    if not _NAME.fullmatch(told) or any(keyword.iskeyword(part) for part in told.split(".")):
        raise ValueError(f"{told!r} is no name for a task; one looks like load.orders")
    return told


def parse_folder(told: str) -> Path:
    folder = Path(told)
    if folder.is_absolute() or not folder.parts or not all(part.isidentifier() for part in folder.parts):
        raise ValueError(f"{told!r} is no package below this folder; one looks like pipelines, or acme/etl")
    return folder


@click.command("new-pipeline", short_help="Write the skeleton of a pipeline and of its test.")
@click.argument("name", type=usage(parse_name))
@click.option(
    "--dir",
    "folder",
    type=usage(parse_folder),
    default="pipelines",
    show_default=True,
    help="The package to put it in.",
)
def new_pipeline(*, name: str, folder: Path) -> None:
    """Write a pipeline NAME that works, and a test of it that passes, to be changed into what you need.

    Nothing that is there is overwritten.
    """
    function = name.replace(".", "_")
    module, test = folder / f"{function}.py", Path("tests") / folder / f"test_{function}.py"
    there = [str(path) for path in (module, test) if path.exists()]
    if there:
        raise click.UsageError(f"{' and '.join(there)} exists already; choose another name, or remove it first")
    dotted = ".".join((*folder.parts, function))
    made = [_write(module, _MODULE.format(task=name, function=function))]
    made += [_write(test, _TEST.format(module=dotted, function=function))]
    if not (folder / "__init__.py").exists():
        made.insert(0, _write(folder / "__init__.py", '"""Pipelines of our own."""\n'))
    click.echo("\n".join(f"Wrote {path}" for path in made))
    package = folder.parts[0]
    loads = "" if package == "pipelines" else f"DL_PIPELINES=pipelines,{package} "
    click.echo(
        f"  test it:  python -m pytest {test}\n"
        f"  run it:   {loads}dataloader run {name} --arg 'days=[\"2030-01-31\"]' --local"
    )


def _write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path
