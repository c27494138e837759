"""The `dataloader` command; `python -m app` is the same.

It imports next to nothing itself: the imports of a service take a second, and a signal without a handler of ours would
kill the process then. An orchestrator that stops what it has just started would see a crash.
"""

import os
import signal
import sys
from types import FrameType

_SERVICES = ("serve", "worker")
_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)


def main() -> None:
    """The console script. Does not return."""
    if sys.argv[1:2] and sys.argv[1] in _SERVICES:
        exit_on(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    from dataloader.app.cli import main as run_command  # noqa: PLC0415 - after the handlers

    run_command()


def exit_on(*numbers: signal.Signals) -> None:
    """Leave with the code of a clean stop on these signals, until `serve`, `worker` or gunicorn replaces the handlers.

    Signals that are handled or ignored already stay so. Nothing is started yet that would have to be ended.
    """
    for number in numbers:
        if signal.getsignal(number) in _UNHANDLED:
            signal.signal(number, _exit)


def _exit(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # an exception would surface in the middle of an import, where some catch it


if __name__ == "__main__":
    main()
