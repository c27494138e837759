"""Starts a process under test as its own command would: `python -m tests.chaos.launch MUTANT gunicorn wsgi:app`.

With the name of a mutant the protocol is broken first, in this process alone; the product has no switch for it.
"""

from __future__ import annotations

import sys
from typing import Any


def main(mutant: str, program: str, *arguments: str) -> None:
    _make_backfills_in_small_steps()
    _poll_engines_often()
    if mutant:
        from tests.chaos.mutants import MUTANTS

        MUTANTS[mutant].apply()
    if program == "gunicorn":
        from gunicorn.app.wsgiapp import run  # type: ignore[import-untyped]

        sys.argv = [program, *arguments]
        run()
        return
    from dataloader.app.cli import main as dataloader

    sys.argv = [program, *arguments]
    dataloader()


def _make_backfills_in_small_steps() -> None:
    """So that jobs of a backfill are made during all of its life: the campaign has few slices, and little time."""
    from dataloader.app.features.backfills import duty as backfills

    backfills._STEP, backfills._MAX_AHEAD = 4, 8


def _poll_engines_often() -> None:
    """Also what a killed process had claimed in order to poll it: others wait a minute for that."""
    from dataloader.workers.offloads import engine_calls, poller
    from tests.chaos.mutant import StatementEdit, patch_statements

    rooms: tuple[Any, ...] = (poller, engine_calls)
    for room in rooms:
        room.MIN_POLL_SEC, room.MAX_POLL_SEC = 0.3, 2.0
    poller._MAX_BACKOFF_SEC, poller._REQUEST_INTERVAL_SEC, poller._CLAIM_INTERVAL_SEC = 2.0, 0.05, 0.5
    patch_statements([StatementEdit("claim_offload_polls", r"interval '1 minute'", "interval '5 seconds'")])


if __name__ == "__main__":
    main(*sys.argv[1:])
