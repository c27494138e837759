"""`python -m tests.chaos run|plan|mutants`: what `make chaos`, `make chaos-short` and `make chaos-mutants` call."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from pathlib import Path

from tests.chaos.campaign import run_campaign
from tests.chaos.environment import CampaignSize
from tests.chaos.schedule import plan_faults, unplanned_faults

FULL_SEC = 600.0
_OVERHEAD_SEC = 75.0  # of the whole time, for the beginning, the quiet and the judgement
_SHORT_OVERHEAD_SEC = 40.0
_LONG_RUN_SEC = 300.0  # from here on each kind of fault must have been met


def main(arguments: list[str]) -> int:
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminated campaign still cleans up
    began = time.monotonic()
    if asked.command == "mutants":
        from tests.chaos.mutants import search_mutants

        file = asked.report or Path(".chaos/mutants.json")
        return 0 if search_mutants(asked.only, log=_print_line, report=file, keep=asked.keep) else 1
    seconds = faults_for(asked.seconds)
    if asked.command == "plan":
        plan = plan_faults(asked.seed, seconds)
        _print_line("\n".join(map(str, plan)))
        _print_line(f"{len(plan)} faults; kinds not met: {', '.join(unplanned_faults(plan)) or 'none'}")
        return 0
    _print_line(
        f"chaos: SEED={asked.seed}, about {asked.seconds:.0f} s; `make chaos SEED={asked.seed}` does the same again"
    )
    shape = CampaignSize(per_sec=asked.per_sec, binaries=asked.postgres)
    report = run_campaign(
        asked.seed, seconds, shape, log=_print_line, keep=asked.keep, is_full_length=asked.seconds >= _LONG_RUN_SEC
    )
    file = asked.report or Path(f".chaos/seed-{asked.seed}.json")
    report.write(file)
    _print_line("")
    _print_line(report.text())
    _print_line(f"{time.monotonic() - began:.0f} s in all; as JSON in {file}")
    return 0 if report.passed else 1


def faults_for(seconds: float) -> float:
    """Of the whole time, that of load and faults."""
    return seconds - (_OVERHEAD_SEC if seconds >= _LONG_RUN_SEC else min(_SHORT_OVERHEAD_SEC, seconds / 2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "plan", "mutants"):
        command = commands.add_parser(name)
        command.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="drawn, if not given")
        command.add_argument("--seconds", type=float, default=FULL_SEC)
        command.add_argument("--per-sec", type=float, default=CampaignSize.per_sec, help="jobs that callers ask for")
        command.add_argument("--postgres", choices=("auto", "local", "wheel"), default="auto")
        command.add_argument("--report", type=Path, help="default: .chaos/…, as JSON and as text")
        command.add_argument("--keep", action="store_true", help="leave the folders and servers for a look")
        command.add_argument("--only", nargs="*", default=[], help="of the mutants, these")
    return parser


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
