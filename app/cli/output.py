"""What commands print: JSON for a program, a table drawn by rich for a person, aligned text for a pipe.

Text of others may be in any line: nothing that is printed can act on the terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.parsing import AS_JSON_META_KEY
from dataloader.app.queue.labels import format_labels
from dataloader.app.wording import format_duration

_FIELD_PATTERN = re.compile(r"{(\w+)}")
# How a cell shows a value, by the end of its field's name.
_CELL_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "_sec": format_duration,
    "p50": format_duration,
    "p95": format_duration,
    "_rate": "{:.1%}".format,
    "_bytes": lambda size: f"{size / 2**20:.0f} MB",
    "detail": text.format_message,
    "error": text.format_error,
    "labels": format_labels,
    "progress": text.format_progress,
    "requires": format_labels,
}


def is_json() -> bool:
    """Whether the command was asked for JSON."""
    return bool(click.get_current_context().meta.get(AS_JSON_META_KEY))


def print_payload(payload: object, *lines: str) -> None:
    """Print the payload as JSON if that was asked for, else the lines, with their times in the terminal's zone."""
    if is_json():
        click.echo(text.json_text(payload))
    elif lines:
        click.echo("\n".join(text.printable(text.localize_times(line)) for line in lines))


class Table:
    """The columns of the list in a field of an answer.

    A column is `heading`, `heading=field` or `heading={field}/{field}`, with a ! if it is never shortened. A field of
    an object is `object.field`. `cells` makes, by the heading, what is not the value of a field.
    """

    def __init__(
        self,
        list_field: str,
        columns: str,
        empty_message: str = "",
        cells: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        parts = [column.partition("=") for column in columns.split(", ")]
        self._list_field, self._empty_message, self._cells = list_field, empty_message, cells or {}
        self._columns = {name.rstrip("!"): (field or name).rstrip("!") for name, _, field in parts}
        self._uncut = [name.rstrip("!") for name, _, field in parts if (field or name).endswith("!")]

    def print(self, payload: text.Payload) -> None:
        items = payload[self._list_field]
        if is_json():
            click.echo(text.json_text(payload))
        elif not items:
            click.echo(self._empty_message, err=True, nl=bool(self._empty_message))
        elif sys.stdout.isatty():
            from dataloader.app.cli import render  # noqa: PLC0415 - rich is loaded only where it draws

            render.print_table([*self._columns], self.rows(items), uncut=self._uncut)
        else:
            click.echo("\n".join(text.align_columns([*self._columns], self.rows(items))))

    def rows(self, items: Sequence[text.Payload]) -> list[list[str]]:
        return [[self._cell(heading, field, item) for heading, field in self._columns.items()] for item in items]

    def _cell(self, heading: str, field: str, item: text.Payload) -> str:
        if heading in self._cells:
            return text.format_field(field, self._cells[heading](item))
        if "{" in field:
            return text.one_line(_FIELD_PATTERN.sub(lambda match: text.format_value(item[match[1]]), field))
        *parents, name = field.split(".")
        for parent in parents:
            item = item[parent]
        return _format_cell(name, item[name]) + ("+" if item.get(f"{name}_exact") is False else "")


def _format_cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    for ending, format_one in _CELL_FORMATS.items():
        if name.endswith(ending):
            return format_one(value)
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return format(value, ".15g") if isinstance(value, float) else text.format_field(name, value)
