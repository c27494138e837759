"""Starts a process under test as its own command would: `python -m tests.chaos.launch MUTANT gunicorn wsgi:app`.

With the name of a mutant the protocol is broken first, in this process alone; the product has no switch for it.
"""

from __future__ import annotations

import sys


def main(mutant: str, program: str, *arguments: str) -> None:
    _make_backfills_in_small_steps()
    if mutant:
        from tests.chaos.mutants import MUTANTS

        MUTANTS[mutant].apply()
    if program == "gunicorn":
        from gunicorn.app.wsgiapp import run  # type: ignore[import-untyped]

        sys.argv = [program, *arguments]
        run()
        return
    from app.cli import main as dataloader

    sys.argv = [program, *arguments]
    dataloader()


def _make_backfills_in_small_steps() -> None:
    """So that jobs of a backfill are made during all of its life: the campaign has few slices, and little time."""
    from workers import backfills

    backfills._STEP, backfills._MAX_AHEAD = 4, 8


if __name__ == "__main__":
    main(*sys.argv[1:])
