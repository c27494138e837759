"""Shared by the benchmarks: option parser, interleaved rounds, medians and result tables."""

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


def make_parser(module: str, *, rounds: int | None = None) -> argparse.ArgumentParser:
    """Return a parser with the module's docstring as description, and with `--rounds` if it has a default."""
    doc = inspect.cleandoc(sys.modules[module].__doc__ or "")
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, prog=f"python -m {_command_name(module)}"
    )
    if rounds is not None:
        parser.add_argument("--rounds", type=_parse_positive, default=rounds, help=f"rounds (default {rounds})")
    return parser


def run_rounds(
    sides: Mapping[str, Callable[[], T]], rounds: int, *, warm_up: int = 0, log: Callable[[str, T], str] | None = None
) -> dict[str, list[T]]:
    """Return the results of each side by round; the sides take turns, so that a busy machine slows all of them."""
    results: dict[str, list[T]] = {name: [] for name in sides}
    gc.collect()
    gc.freeze()  # else each collection below would pass over all that exists already
    try:
        for turn in range(-warm_up, rounds):
            for name, side in sides.items():
                gc.collect()
                result = side()
                if turn >= 0:
                    results[name].append(result)
                    if log is not None:
                        print(f"  round {turn + 1}, {name}: {log(name, result)}", file=sys.stderr, flush=True)
    finally:
        gc.unfreeze()
    return results


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def quantile(values: Sequence[float], percent: int) -> float:
    """Return the percentile of the values."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def format_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], *, text_columns: Sequence[int] = (0,)) -> str:
    """Return an aligned Markdown table, with text columns to the left and numbers to the right."""
    lines = [[str(heading) for heading in headings], *([_format_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(headings))]
    rule = ["-" * width if n in text_columns else "-" * (width - 1) + ":" for n, width in enumerate(widths)]

    def joined(line: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if n in text_columns else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return f"| {' | '.join(cells)} |"

    return "\n".join([joined(lines[0]), joined(rule), *map(joined, lines[1:])])


def format_ratio(ratio: float) -> str:
    """Format a ratio for the tables."""
    return f"{ratio:.2f} ×" if ratio < 10 else f"{ratio:,.0f} ×"


def _format_cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    size = abs(cell)
    return f"{cell:,.0f}" if size >= 100 else f"{cell:.1f}" if size >= 10 else f"{cell:.2f}"


def _parse_positive(raw: str) -> int:
    number = int(raw)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{raw} is too small; the minimum is 1")
    return number


def _command_name(module: str) -> str:
    spec = sys.modules[module].__spec__
    return spec.name if spec is not None else module
