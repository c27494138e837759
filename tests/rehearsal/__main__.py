"""`python -m tests.rehearsal`: upgrades while jobs run, in four orders, under the campaign's faults.

make rehearsal                                  each order, 120 s, a million jobs in the tables
python -m tests.rehearsal --only mixed --seconds 60 --past-jobs 20000 --without-faults
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.rehearsal.orders import ORDERS
from tests.rehearsal.rehearsal import Result, rehearse
from tests.rehearsal.releases import build_releases


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.rehearsal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[*ORDERS], default=[*ORDERS], help="the orders")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each order")
    parser.add_argument("--past-jobs", type=int, default=1_000_000, help="that the tables have at the beginning")
    parser.add_argument("--without-faults", action="store_true", help="then no attempt may be used up either")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dl-rehearsal-") as folder:
        _print("building the releases")
        releases = build_releases(Path(folder))
        results = [
            rehearse(
                name, releases, seed=options.seed, seconds=options.seconds, past_jobs=options.past_jobs,
                has_faults=not options.without_faults, log=_print,
            )
            for name in options.only
        ]  # fmt: skip
    for result in results:
        if not result.report.passed:
            _print(result.report.text())
    _print(_table(results))
    return 0 if all(result.passed for result in results) else 1


def _table(results: Sequence[Result]) -> str:
    columns = ("order", "jobs", "attempts", "lost", "doubled", "attempts reaped", "migrate, s",
               "longest wait for a lock, s", "result")  # fmt: skip
    lines = ["", f"| {' | '.join(columns)} |", "|---|---:|---:|---:|---:|---:|---|---:|---|"]
    for result in results:
        jobs, runs = result.report.jobs, result.report.runs
        migrations = ", ".join(f"{name} {seconds:.2f}" for name, seconds in result.migrations) or "–"
        outcome = "passed" if result.passed else "; ".join(result.problems) or "the campaign's rules"
        lines.append(
            f"| {result.order} | {jobs['in the table, follow-ups included']:,} | {runs['claimed']:,} | {jobs['lost']}"
            f" | {jobs['doubled']} | {result.reaped} | {migrations} | {result.longest_wait_sec:.2f} | {outcome} |"
        )
    return "\n".join(lines)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
