"""What commands print: JSON for a program, a table drawn by rich for a person, aligned text for a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.parsing import AS_JSON_META_KEY

Cells = Mapping[str, Callable[[Any], Any]]  # by the heading


def is_json() -> bool:
    """Whether the command was asked for JSON."""
    return bool(click.get_current_context().meta.get(AS_JSON_META_KEY))


def print_payload(payload: object, *lines: str) -> None:
    """Print the payload as JSON if that was asked for, else the lines."""
    click.echo(text.json_text(payload) if is_json() else "\n".join(lines))


class Table:
    """The columns of the list in a field, as `heading` or `heading=field`, and cells that are no field's value.

    The columns in `uncut` are never shortened.
    """

    def __init__(
        self, list_field: str, columns: str, cells: Cells | None = None, *, uncut: str = "", empty_message: str = ""
    ) -> None:
        parts = (column.partition("=") for column in columns.split(", "))
        self._list_field, self._fields = list_field, {heading: field or heading for heading, _, field in parts}
        self._cells, self._uncut, self._empty_message = cells or {}, uncut.split(", "), empty_message

    def print(self, payload: text.Payload) -> None:
        items = payload[self._list_field]
        if is_json():
            click.echo(text.json_text(payload))
        elif not items:
            click.echo(self._empty_message, err=True, nl=bool(self._empty_message))
        elif sys.stdout.isatty():
            from dataloader.app.cli import render  # noqa: PLC0415 - rich is loaded only where it draws

            render.print_table(list(self._fields), self.rows(items), uncut=self._uncut)
        else:
            click.echo("\n".join(text.align_columns(list(self._fields), self.rows(items))))

    def rows(self, items: Sequence[text.Payload]) -> list[list[str]]:
        def cell(heading: str, field: str, item: text.Payload) -> str:
            make = self._cells.get(heading)
            return text.format_field(field, item[field] if make is None else make(item))

        return [[cell(heading, field, item) for heading, field in self._fields.items()] for item in items]
