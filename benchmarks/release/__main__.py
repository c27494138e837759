"""Measures this checkout and the last release in turn, and prints the ratios.

Takes about 20 minutes; with --short about 1.

Both are installed as wheels into environments of their own, and used by their commands, over HTTP and by SQL, on the
same server. A ratio is the median of the rounds' ratios, so that a round on a busy machine counts once. Rates shall
be at least 1.0 × those of the release, costs at most. `--max-cost` makes the command fail if a cost in CPU time or
bytes is higher than so many times that of the release.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.place import benchmark_server, describe_environment
from benchmarks.release.measures import MEASURES, Figures, Place, Scale
from benchmarks.release.sides import both_sides
from benchmarks.rounds import format_ratio, format_table, make_parser, median
from tests.support.processes import ROOT

_SHORT = Scale(jobs=5_000, pick_ups=40, statements=200, http_sec=2.0, idle_sec=5.0)
_SHORT_MEASURES = ("drain1", "enqueue", "http")
_MARKS = ("<!-- compared with the last release -->\n", "<!-- end of the comparison -->")


@dataclass(frozen=True)
class Comparison:
    figure: str
    release: float
    checkout: float
    ratios: Sequence[float]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def is_rate(self) -> bool:
        return self.figure.endswith("/s") and "commits" not in self.figure

    @property
    def is_met(self) -> bool:
        return round(self.ratio, 2) >= 1.0 if self.is_rate else round(self.ratio, 2) <= 1.0

    @property
    def is_steady_cost(self) -> bool:
        """A cost that other load changes little."""
        return bool(re.search(r" µs |, server µs$|bytes|MiB|CPU", self.figure)) and not self.is_rate


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=5)
    parser.add_argument("--short", action="store_true", help="fewer jobs, and what is quick to measure")
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), help="measure these only")
    parser.add_argument("--max-cost", type=float, help="fail if a cost is higher than so many times the release's")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "release", help="where the wheels are installed"
    )
    parser.add_argument("--write", type=Path, help="replace the table in this page of the documentation")
    options = parser.parse_args(argv)
    scale = _SHORT if options.short else Scale()
    names = options.only or (_SHORT_MEASURES if options.short else list(MEASURES))
    with both_sides(options.folder) as sides, benchmark_server() as (dsn, server):
        assert server is not None, "this benchmark reads the server's CPU time: leave DL_BENCH_DSN out"
        environment = describe_environment(dsn)
        print(environment)
        place = Place(dsn, server)
        rounds: list[tuple[Figures, Figures]] = []
        for number in range(options.rounds):
            figures: tuple[Figures, Figures] = ({}, {})
            for name in names:
                turns = list(zip(sides, figures, strict=True))
                for side, taken in turns if number % 2 == 0 else reversed(turns):
                    taken.update(MEASURES[name](side, place, scale))
                print(f"  round {number + 1}, {name}", file=sys.stderr, flush=True)
            rounds.append(figures)
    comparisons = compare(rounds)
    table = format_comparisons(comparisons, [side.name for side in sides])
    found = f"{options.rounds} rounds in turn, medians; the ratio's range is over the rounds\n\n{table}"
    print(found)
    if options.write:
        write_table(options.write, f"{environment}\n\n{found}\n")
    missed = [c for c in comparisons if c.is_steady_cost and options.max_cost and c.ratio > options.max_cost]
    for comparison in missed:
        print(f"{comparison.figure}: {comparison.ratio:.2f} × the release's; at most {options.max_cost:g} is allowed")
    sys.exit(1 if missed else 0)


def compare(rounds: Sequence[tuple[Figures, Figures]]) -> list[Comparison]:
    return [
        Comparison(
            figure,
            median([release[figure] for release, _ in rounds]),
            median([checkout[figure] for _, checkout in rounds]),
            [checkout[figure] / (release[figure] or 1e-9) for release, checkout in rounds],
        )
        for figure in rounds[0][0]
    ]


def format_comparisons(comparisons: Sequence[Comparison], sides: Sequence[str]) -> str:
    rows = [
        [
            c.figure, c.release, c.checkout, format_ratio(c.ratio),
            f"{min(c.ratios):.2f}–{max(c.ratios):.2f}", ("≥" if c.is_rate else "≤") + " 1.0",
            "yes" if c.is_met else "no",
        ]
        for c in comparisons
    ]  # fmt: skip
    return format_table(["", *sides, "ratio", "range", "wanted", "met"], rows)


def write_table(page: Path, text: str) -> None:
    before, found, rest = page.read_text(encoding="utf-8").partition(_MARKS[0])
    assert found, f"{page} has no line {_MARKS[0].strip()}"
    page.write_text(before + found + text + _MARKS[1] + rest.partition(_MARKS[1])[2], encoding="utf-8")


if __name__ == "__main__":
    main()
