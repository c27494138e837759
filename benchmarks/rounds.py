"""What every benchmark has in common: its options, rounds in turn, and a table whose ratios are what counts."""

from __future__ import annotations

import argparse
import gc
import inspect
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
Cell = str | float | int | None


def options(module: str, *, rounds: int | None = None) -> argparse.ArgumentParser:
    """A parser that says what the module's docstring says, with `--rounds` for those that have some."""
    doc = inspect.cleandoc(sys.modules[module].__doc__ or "")
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, prog=f"python -m {_name_of(module)}"
    )
    if rounds is not None:
        parser.add_argument("--rounds", type=_positive, default=rounds, help=f"rounds in turn (default {rounds})")
    return parser


def in_turn(
    sides: Mapping[str, Callable[[], T]], rounds: int, *, warm_up: int = 0, tell: Callable[[str, T], str] | None = None
) -> dict[str, list[T]]:
    """What each side gave in each round. All sides go round after round, so that a busy machine slows them alike."""
    given: dict[str, list[T]] = {name: [] for name in sides}
    for turn in range(-warm_up, rounds):
        for name, side in sides.items():
            gc.collect()
            one = side()
            if turn >= 0:
                given[name].append(one)
                if tell is not None:
                    print(f"  round {turn + 1}, {name}: {tell(name, one)}", file=sys.stderr, flush=True)
    return given


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def quantile(values: Sequence[float], percent: int) -> float:
    """The value that `percent` of a hundred stay under."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], *, words: Sequence[int] = (0,)) -> str:
    """The rows as Markdown that is also good to read as it is. Columns of words stand left, those of figures right."""
    lines = [[str(heading) for heading in headings], *([_shown(cell) for cell in row] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(headings))]
    rule = ["-" * width if n in words else "-" * (width - 1) + ":" for n, width in enumerate(widths)]

    def joined(line: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if n in words else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return f"| {' | '.join(cells)} |"

    return "\n".join([joined(lines[0]), joined(rule), *map(joined, lines[1:])])


def times(ratio: float) -> str:
    """A ratio as the tables show it."""
    return f"{ratio:.2f} ×" if ratio < 10 else f"{ratio:,.0f} ×"


def _shown(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    size = abs(cell)
    return f"{cell:,.0f}" if size >= 100 else f"{cell:.1f}" if size >= 10 else f"{cell:.2f}"


def _positive(told: str) -> int:
    number = int(told)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{told} is too few; at least 1 is needed")
    return number


def _name_of(module: str) -> str:
    spec = sys.modules[module].__spec__
    return spec.name if spec is not None else module
