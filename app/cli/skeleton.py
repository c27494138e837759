"""new-pipeline: a pipeline that works as it is written, and a test of it that needs nothing but what is installed."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
from pathlib import Path

import click

import dataloader.app
from dataloader.app.cli.invocation import dataloader_command, python_command
from dataloader.app.cli.parsing import Parsed, option

_SHIPPED_FOLDER = "pipelines"  # of a checkout of dataloader itself
_SHIPPED_PACKAGE = "dataloader.pipelines"
_DEFAULT_PACKAGE = "my_pipelines"  # of any other project
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_TEMPLATES = Path(__file__).with_name("templates")


def parse_name(raw: str) -> str:
    if not _NAME.fullmatch(raw) or any(keyword.iskeyword(part) for part in raw.split(".")):
        raise ValueError(f"{raw!r} is no name for a task; one looks like load.orders")
    return raw


def parse_folder(raw: str) -> Path:
    folder = Path(raw)
    if folder.is_absolute() or not folder.parts or not all(part.isidentifier() for part in folder.parts):
        raise ValueError(f"{raw!r} is no package below this folder; one looks like {_DEFAULT_PACKAGE}, or acme/etl")
    hidden = _find_shadowing_module(folder.parts[0])
    if hidden is not None:
        raise ValueError(
            f"a folder {folder.parts[0]!r} here would hide the installed package of that name, in {str(hidden)!r}; "
            f"choose another name, such as {_DEFAULT_PACKAGE}"
        )
    return folder


@click.command("new-pipeline", short_help="Write the skeleton of a pipeline and of its test.")
@click.argument("name", type=Parsed("name", parse_name))
@option("--dir", "folder", type=Parsed("package", parse_folder),
        help="The package to put it in, below this folder.  "
        f"[default: {_DEFAULT_PACKAGE}; {_SHIPPED_FOLDER} in a checkout of dataloader]")  # fmt: skip
def new_pipeline(*, name: str, folder: Path | None) -> None:
    """Write a pipeline NAME that works, and a test of it that passes, to be changed into what you need.

    Nothing that is there is overwritten. The last lines are the commands that test it, run it and serve it.
    """
    folder = folder or Path(_SHIPPED_FOLDER if _is_checkout() else _DEFAULT_PACKAGE)
    is_shipped = _is_checkout() and folder.parts[0] == _SHIPPED_FOLDER
    package = ".".join(("dataloader", *folder.parts) if is_shipped else folder.parts)
    function = name.replace(".", "_")
    module, test = folder / f"{function}.py", Path("tests") / folder / f"test_{function}.py"
    if existing := [str(path) for path in (module, test) if os.path.exists(path)]:
        exist = "exist" if len(existing) > 1 else "exists"
        raise click.UsageError(f"{' and '.join(existing)} {exist} already; choose another name, or remove it first")
    case = "".join(part.title() for part in function.split("_")) + "Test"
    names = {"task": name, "function": function, "module": f"{package}.{function}", "path": test, "case": case}
    templates = {module: "pipeline.py.txt", test: "test_pipeline.py.txt"}
    contents = {
        path: (_TEMPLATES / file).read_text(encoding="utf-8").format(**names) for path, file in templates.items()
    }
    if not os.path.exists(folder / "__init__.py"):
        contents = {folder / "__init__.py": '"""Pipelines of our own."""\n', **contents}
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        click.echo(f"Wrote {path}")
    command = ("" if is_shipped else f"DL_PIPELINES={_SHIPPED_PACKAGE},{package} ") + dataloader_command()
    click.echo(f"  test it:   {python_command()} -m unittest {test}")
    click.echo(f"  run it:    {command} run {name} --arg 'days=[\"2030-01-31\"]' --local")
    click.echo(f"  serve it:  {command} serve")


def _is_checkout() -> bool:
    return Path(dataloader.app.__file__).resolve().parents[1] == Path.cwd().resolve()


def _find_shadowing_module(package: str) -> Path | None:
    """Return where an importable package of this name is that a folder here would hide. An old name of one of our
    packages may be hidden."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = [] if spec is None else [*(spec.submodule_search_locations or []), *([spec.origin] if spec.origin else [])]
    here, ours = Path.cwd().resolve(), Path(dataloader.__file__).resolve().with_name(package)
    paths = [(Path(place), Path(place).resolve()) for place in places]
    return next((path for path, resolved in paths if here not in resolved.parents and resolved != ours), None)


COMMANDS = {"Tasks, schedules and data": (new_pipeline,)}
