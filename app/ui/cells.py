"""A row of small squares: what became of the last runs or firings, each with its symbol, its colour and a link."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from markupsafe import Markup, escape

from dataloader.app.ui.formatter import Formatter


class StateCell(NamedTuple):
    state: str  # names the symbol and the colour
    text: str  # for the tooltip and for screen readers
    job_id: UUID | None


class EndedRun(Protocol):
    @property
    def job_id(self) -> UUID: ...
    @property
    def outcome(self) -> str: ...
    @property
    def finished_at(self) -> datetime: ...
    @property
    def duration_sec(self) -> float | None: ...


def state_cells(label: str, cells: Iterable[StateCell]) -> Markup:
    """Made here and not by a template, which takes three times as long: a page has a thousand of them."""
    return Markup('<ul class="cells" aria-label="{}">{}</ul>').format(label, Markup("").join(map(_format_cell, cells)))


def run_cells(runs: Sequence[EndedRun], formatter: Formatter, rows: Mapping[UUID, int] | None = None) -> Markup:
    """The last runs of a task; `runs` has the newest first. `rows`: how many rows jobs loaded."""
    cells = (_run_cell(run, formatter, (rows or {}).get(run.job_id)) for run in reversed(runs))
    return state_cells("Last runs, oldest first", cells)


def _run_cell(run: EndedRun, formatter: Formatter, rows: int | None) -> StateCell:
    duration = "" if run.duration_sec is None else f", duration {formatter.duration(run.duration_sec)}"
    loaded = f", {formatter.counted(rows, 'row')}" if rows is not None and run.outcome == "succeeded" else ""
    return StateCell(run.outcome, f"{run.outcome}, {formatter.time(run.finished_at)}{duration}{loaded}", run.job_id)


def _format_cell(cell: StateCell) -> Markup:
    text, state = escape(cell.text), escape(cell.state)
    content = f'class="cell {state}" title="{text}"><span class="vh">{text}</span>'
    if cell.job_id is None:
        return Markup(f"<li><span {content}</span></li>")  # noqa: S704 - escaped above
    return Markup(f'<li><a href="/jobs/{cell.job_id}" {content}</a></li>')  # noqa: S704 - escaped above
