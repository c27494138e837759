"""`python -m tests.model explore|mutants|story|rules`: explores the protocol's model; `make model` explores the large
configurations.

    python -m tests.model explore                    the small configurations, in seconds
    python -m tests.model explore --large            the large ones, in ten minutes on two cores
    python -m tests.model explore --only keys locks  some of them
    python -m tests.model mutants                    each rule of the protocol left out: what is found
    python -m tests.model story no-session-lock      how that is found, step by step
    python -m tests.model without key_lock repair --only locks   any rules left out
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import Pool

from tests.model.configurations import CONFIGURATIONS, FORGETTING, LARGE, SMALL, without_rules
from tests.model.explore import Result, explore
from tests.model.mutants import CAMPAIGN_MUTANTS, MORE_MUTANTS, ModelMutant
from tests.model.rules import rule_texts
from tests.model.state import Configuration

_LARGE_SEC = 560.0
_MUTANTS = {mutant.name: mutant for mutant in (*CAMPAIGN_MUTANTS, *MORE_MUTANTS)}


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    commands: dict[str, Callable[[argparse.Namespace], bool]] = {
        "explore": _explore, "mutants": _search_mutants, "story": _print_story, "without": _explore_without,
        "rules": _print_rules,
    }  # fmt: skip
    return 0 if commands[options.command](options) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("explore", help="explore configurations; fails if a promise is broken")
    command.add_argument("--large", action="store_true", help="the large ones, on two cores")
    command.add_argument("--seconds", type=float, default=_LARGE_SEC, help="for all large ones together")
    command.add_argument("--only", nargs="*", choices=[*CONFIGURATIONS], default=[], metavar="NAME")
    commands.add_parser("mutants", help="leave out rules: each must be missed")
    story = commands.add_parser("story", help="print how a mutant is found")
    story.add_argument("mutant", choices=[*_MUTANTS])
    without = commands.add_parser("without", help="explore with some rules left out")
    without.add_argument("rule", nargs="+", choices=[*rule_texts()])
    without.add_argument("--only", nargs="*", choices=[*CONFIGURATIONS], default=[], metavar="NAME")
    commands.add_parser("rules", help="list the rules of the protocol")
    return parser


def _explore(options: argparse.Namespace) -> bool:
    if options.only:
        return _report_all(_explore_for(CONFIGURATIONS[name], options.seconds) for name in options.only)
    if not options.large:
        return _report_all(explore(config) for config in SMALL)
    with Pool(2, maxtasksperchild=1) as pool:
        halves = pool.imap_unordered(_explore_in_turn, [(LARGE[:1], options.seconds), (LARGE[1:], options.seconds)])
        return _report_all(result for half in halves for result in half)


def _explore_in_turn(task: tuple[Sequence[Configuration], float]) -> list[Result]:
    """Each has its part of the time, and what those before it have left."""
    configs, seconds = task
    ends_at = time.monotonic() + seconds
    results = []
    for n, config in enumerate(configs):
        results.append(_explore_for(config, (ends_at - time.monotonic()) / (len(configs) - n)))
    return results


def _explore_for(config: Configuration, seconds: float) -> Result:
    return explore(config, max_sec=seconds, forgets=config.name in FORGETTING)


def _report_all(results: Iterable[Result]) -> bool:
    """Whether all promises hold."""
    is_good = True
    for result in results:
        _print_line(result.line())
        if result.story:
            _print_line(str(result.story))
            is_good = False
    return is_good


def search_mutant(mutant: ModelMutant) -> Result:
    return explore(without_rules(mutant.configuration, *mutant.rules))


def is_as_expected(mutant: ModelMutant, result: Result) -> bool:
    problem = result.story.problem if result.story else ""
    return mutant.promise in problem if mutant.promise else problem == ""


def _search_mutants(options: argparse.Namespace) -> bool:
    is_good = True
    for mutant in _MUTANTS.values():
        result = search_mutant(mutant)
        found = result.story.problem if result.story else "nothing is broken"
        is_good &= is_as_expected(mutant, result)
        _print_line(f"{'' if is_as_expected(mutant, result) else 'UNEXPECTED '}{mutant.name}: {found}")
    return is_good


def _print_story(options: argparse.Namespace) -> bool:
    result = search_mutant(_MUTANTS[options.mutant])
    _print_line(str(result.story or "nothing is broken"))
    return True


def _explore_without(options: argparse.Namespace) -> bool:
    names = options.only or [config.name for config in SMALL]
    return _report_all(explore(without_rules(name, *options.rule)) for name in names)


def _print_rules(options: argparse.Namespace) -> bool:
    for name, text in rule_texts().items():
        _print_line(f"{name:<20} {text}")
    return True


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
