"""Compares the services of DL_CELLS with one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.doctor.findings import Finding, error, info, ok, warning
from app.wording import format_count

_CLOCK_WARNING_SEC, _CLOCK_ERROR_SEC = 2.0, 30.0


@dataclass(frozen=True, kw_only=True)
class CellFacts:
    """The answer of a cell. `cells`: the names in its DL_CELLS. `clock_ahead_sec`: of the clock of this machine."""

    name: str
    url: str
    version: str
    schema_version: int
    cells: tuple[str, ...]
    clock_ahead_sec: float


@dataclass(frozen=True)
class UnavailableCell:
    name: str
    url: str
    reason: str


def check_cells(cells: Sequence[CellFacts | UnavailableCell]) -> list[Finding]:
    """Return a finding for each cell that does not answer, then what differs between the others."""
    if not cells:
        return [error("cells", "DL_CELLS names no cell", "set DL_CELLS as docs/scaling.md describes it")]
    available = [cell for cell in cells if isinstance(cell, CellFacts)]
    return [*_check_answers(cells), *(_check_differences(available, [c.name for c in cells]) if available else ())]


def _check_answers(cells: Sequence[CellFacts | UnavailableCell]) -> Iterator[Finding]:
    for cell in cells:
        if isinstance(cell, UnavailableCell):
            yield error(
                "cell_available",
                f"cell {cell.name} at {cell.url} is unavailable: {cell.reason}",
                "start its service, or correct its address or key in DL_CELLS; until then the jobs of its keys wait. "
                f"curl {cell.url}/health/ready shows whether it is up",
                cell=cell.name,
                url=cell.url,
                reason=cell.reason,
            )
        else:
            yield ok("cell_available", f"cell {cell.name} at {cell.url} answers", cell=cell.name, url=cell.url)


def _check_differences(cells: Sequence[CellFacts], own_map: Sequence[str]) -> Iterator[Finding]:
    yield from _check_maps(cells, own_map)
    yield _check_same(
        "cell_versions", "version", {cell.name: cell.version for cell in cells}, "upgrade the cells with the older one"
    )
    yield _check_same(
        "cell_schema_versions",
        "schema version",
        {cell.name: str(cell.schema_version) for cell in cells},
        "run `dataloader migrate` of the newer version in the cells with the older one",
    )
    yield _check_clocks(cells)


def _check_maps(cells: Sequence[CellFacts], own_map: Sequence[str]) -> Iterator[Finding]:
    maps = {"this configuration": ", ".join(sorted(own_map))}
    maps |= {cell.name: ", ".join(sorted(cell.cells)) for cell in cells if cell.cells}
    yield _check_same(
        "cell_maps",
        "map",
        maps,
        "set the same DL_CELLS everywhere, and compare the maps of all clients: two maps send a key to two cells",
    )
    without = [cell.name for cell in cells if not cell.cells]
    if without:
        yield info(
            "cell_maps",
            f"no DL_CELLS in {', '.join(without)}: the map there cannot be compared, and its page /cells is empty",
            "set the same DL_CELLS there",
            cells=without,
        )


def _check_same(check: str, subject: str, values: Mapping[str, str], remedy: str) -> Finding:
    by_value: dict[str, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(value, []).append(name)
    if len(by_value) == 1:
        (value,) = by_value
        return ok(check, f"one {subject}: {value}", values=dict(values))
    differing = "; ".join(f"{value} in {', '.join(names)}" for value, names in by_value.items())
    return warning(check, f"{format_count(len(by_value), subject)}: {differing}", remedy, values=dict(values))


def _check_clocks(cells: Sequence[CellFacts]) -> Finding:
    """The clocks are compared with one another: that of this machine may be the one that is wrong."""
    offsets = {cell.name: round(cell.clock_ahead_sec, 3) for cell in cells}
    first, last = min(offsets, key=offsets.__getitem__), max(offsets, key=offsets.__getitem__)
    difference_sec = offsets[last] - offsets[first]
    if difference_sec < _CLOCK_WARNING_SEC:
        return ok("cell_clocks", f"the clocks differ by {difference_sec:.2f} s at the largest", ahead_sec=offsets)
    report = error if difference_sec > _CLOCK_ERROR_SEC else warning
    message = f"the clock of {last} is {difference_sec:.2f} s ahead of that of {first}"
    return report(
        "cell_clocks", message, "set both by NTP: schedules fire by the clock of their cell", ahead_sec=offsets
    )
