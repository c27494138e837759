"""Lists as tables: for a person drawn by rich, for a pipe aligned text, for a program JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from dataloader.app.cli import text

Cells = Mapping[str, Callable[[Any], Any]]  # by the heading


class Table:
    """The columns of a list, as `heading` or `heading=field`, and what makes the cells that are no field's value.

    The columns in `uncut` are never shortened.
    """

    def __init__(self, columns: str, cells: Cells | None = None, *, uncut: str = "", empty_message: str = "") -> None:
        parts = (column.partition("=") for column in columns.split(", "))
        self._fields = {heading: field or heading for heading, _, field in parts}
        self._cells, self._uncut, self._empty_message = cells or {}, uncut.split(", "), empty_message

    def print(self, payload: text.Payload, field: str, *, as_json: bool) -> None:
        """Print the list in a field: a table for a person, aligned text for a pipe, the payload when asked for JSON."""
        items = payload[field]
        if as_json:
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
