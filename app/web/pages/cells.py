"""The page over several services, the cells: the figures of each, and which do not answer. It changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from flask import Response
from pydantic import TypeAdapter, ValidationError

from app.web.api.overview import Overview
from app.web.caches import RefreshingValue
from app.web.options import RemoteCell, WebOptions
from app.web.pages.base import PageRenderer
from app.web.routing import ApiBlueprint

_TIMEOUT_SEC = 1.0  # of the whole page, whatever the number of cells
_REFRESH_AFTER_SEC = 1.0
_MAX_AGE_SEC = 5.0  # older figures count as none
_MAX_CLOCK_DIFFERENCE_SEC = 2.0


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """A cell as the page shows it. `figures`: None when it is unavailable."""

    name: str
    url: str
    figures: Overview | None
    clock_difference_sec: float = 0.0
    reason: str = ""  # why it is unavailable
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Answer:
    figures: Overview
    clock_difference_sec: float


class CellReader:
    """Asks all cells at the same time, each in a thread of its own."""

    def __init__(self, cells: Mapping[str, RemoteCell], own_version: str, *, timeout_sec: float = _TIMEOUT_SEC) -> None:
        self._cells, self._own_version, self._timeout_sec = cells, own_version, timeout_sec
        self._answers = {
            name: RefreshingValue(partial(_ask, cell), name=f"read-cell-{name}", timeout_sec=timeout_sec)
            for name, cell in cells.items()
        }

    def read(self) -> list[CellRow]:
        """Return a row for each cell, the worst first, within the timeout."""
        deadline = time.monotonic() + self._timeout_sec
        old = [answer for answer in self._answers.values() if answer.age_sec > _REFRESH_AFTER_SEC]
        for answer, fetch in [(answer, answer.start()) for answer in old]:
            answer.wait_for(fetch, max(0.0, deadline - time.monotonic()))
        return sorted((self._row(name) for name in self._cells), key=_worst_first)

    def _row(self, name: str) -> CellRow:
        answer, url = self._answers[name], self._cells[name].url
        if answer.error is not None:
            return CellRow(name=name, url=url, figures=None, reason=str(answer.error))
        if answer.value is None or answer.age_sec > _MAX_AGE_SEC:
            return CellRow(name=name, url=url, figures=None, reason=f"no answer within {self._timeout_sec:g} s")
        return CellRow(
            name=name,
            url=url,
            figures=answer.value.figures,
            clock_difference_sec=answer.value.clock_difference_sec,
            warnings=tuple(_find_warnings(answer.value, self._own_version, self._cells)),
        )


def _worst_first(row: CellRow) -> tuple[bool, bool]:
    """Cells that do not answer, then those with a warning; otherwise in the order of DL_CELLS."""
    return row.figures is not None, not row.warnings


def _ask(cell: RemoteCell) -> _Answer:
    """The cell's clock is compared with that of the middle of the request."""
    started_at, started = time.time(), time.monotonic()
    response = cell.read_overview()
    middle = started_at + (time.monotonic() - started) / 2
    try:
        figures = TypeAdapter(Overview).validate_python(response)
    except ValidationError as error:
        raise ValueError("its answer is not that of a cell, or of another version") from error
    return _Answer(figures, figures.at.timestamp() - middle)


def _find_warnings(answer: _Answer, own_version: str, cells: Mapping[str, RemoteCell]) -> Iterator[str]:
    """What is wrong with a cell that answers, or differs from this service."""
    figures = answer.figures
    if not figures.workers:
        yield "no live worker: its jobs wait"
    if figures.version != own_version:
        yield f"version {figures.version}, here {own_version}"
    if figures.cells and {*figures.cells} != {*cells}:
        yield f"other DL_CELLS: {', '.join(figures.cells)}"
    if abs(answer.clock_difference_sec) > _MAX_CLOCK_DIFFERENCE_SEC:
        direction = "ahead" if answer.clock_difference_sec > 0 else "behind"
        yield f"its clock is {timedelta(seconds=round(abs(answer.clock_difference_sec)))} {direction}"


def create_cells_page(options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("cells_page", options)
    reader = CellReader(options.cells, options.version)

    @pages.page("/cells", standby=False)
    def show_cells() -> Response:
        """Show the figures of all cells, the services in DL_CELLS; one that does not answer is a row too."""
        rows = reader.read()
        return pages.render("cells.html", rows=rows, total=_total(rows))

    return pages.blueprint


def _total(rows: Sequence[CellRow]) -> dict[str, int]:
    """The sums of the cells that answer."""
    names = ("running", "ready", "succeeded", "failed", "problems")
    return {name: sum(getattr(row.figures, name) or 0 for row in rows if row.figures) for name in names}
