"""Signals that come while a process still imports its modules: it leaves at once, with the exit code of a clean stop.

Without a handler of ours such a signal kills the process, and an orchestrator that stops what it has just started sees
a crash. At this stage nothing is started that would have to be ended. `serve`, `worker` and gunicorn replace the
handlers by their own. This module imports next to nothing, so that the handlers are there as early as they can be.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)


def exit_on(*numbers: signal.Signals) -> None:
    """Leave the process on these signals, except those that are handled or ignored already."""
    for number in numbers:
        if signal.getsignal(number) in _UNHANDLED:
            signal.signal(number, _exit)


def _exit(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # an exception would surface in the middle of an import, where some catch it
