"""Everything about the product that others rely on by name, as text that a test compares.

`python -m tests.support.public_names` writes the files of tests/public_names after an intended change.
The HTTP API is in docs/openapi.json.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

import dataloader.testing
from dataloader.app.cli.command import cli
from dataloader.app.config import load_settings
from dataloader.app.log import Alert

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "public_names"
_LOG_METHODS = frozenset({"debug", "info", "warning", "error", "critical", "exception", "metric", "audit"})
_EVENT = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_METRIC = re.compile(r"(dataloader_[a-z0-9_]+|(requests|responses|feedback)_total|request_duration_seconds)")


def commands() -> Iterator[str]:
    """Each command with its arguments and options."""
    yield from _command_lines(cli, "dataloader")


def settings() -> Iterator[str]:
    """Each variable with its default."""
    for setting in load_settings({}, dotenv=None).describe():
        yield f"{setting.variable}={setting.default}"


def database_objects() -> Iterator[str]:
    """Tables, columns, functions, triggers and types."""
    catalogue = json.loads((ROOT / "app/features/doctor/catalogue.json").read_text(encoding="utf-8"))
    for name, definition in catalogue.items():
        kind = name.partition(" ")[0]
        if kind in ("table", "function", "trigger", "type"):
            yield name
        elif kind == "column":
            yield f"{name} {definition}"


def log_events() -> Iterator[str]:
    """Names of log events, metric lines and audit lines."""
    yield from Alert
    for call in _calls():
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if call.args and (method in _LOG_METHODS or isinstance(call.func, ast.Name)):
            yield from (text for text in _strings(call.args[0]) if _EVENT.fullmatch(text))


def metrics() -> Iterator[str]:
    """Names of Prometheus metrics, as they are given to the library."""
    sources = (path.read_text(encoding="utf-8") for path in _product_files())
    for source in filter(_METRIC.search, sources):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _METRIC.fullmatch(node.value):
                yield node.value


def python_names() -> Iterator[str]:
    """What other projects import."""
    for module in (dataloader, dataloader.testing):
        yield from (f"{module.__name__}.{name}" for name in module.__all__)


SNAPSHOTS: dict[str, Callable[[], Iterable[str]]] = {
    "commands": commands,
    "settings": settings,
    "database_objects": database_objects,
    "log_events": log_events,
    "metrics": metrics,
    "python_names": python_names,
}


def current_text(name: str) -> str:
    """Return a snapshot as the code has it now: sorted lines, each once."""
    return "\n".join(sorted(set(SNAPSHOTS[name]()))) + "\n"


def saved_text(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def _command_lines(command: click.Command, path: str) -> Iterator[str]:
    parameters = [_parameter_text(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    yield " ".join([path, *sorted(parameters)])
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (child := command.get_command(context, name)) is not None:
                yield from _command_lines(child, f"{path} {name}")


def _parameter_text(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return f"<{parameter.name}>"
    return "/".join([*parameter.opts, *parameter.secondary_opts])


def _calls() -> Iterator[ast.Call]:
    for path in _product_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield node


def _strings(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _strings(node.body)
        yield from _strings(node.orelse)


def _product_files() -> Iterator[Path]:
    for folder in ("app", "workers", "pipelines", "dataloader"):
        yield from sorted((ROOT / folder).rglob("*.py"))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for snapshot in SNAPSHOTS:
        (FOLDER / f"{snapshot}.txt").write_text(current_text(snapshot), encoding="utf-8")
