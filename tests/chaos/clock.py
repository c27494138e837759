"""One clock for all processes of the campaign, and waiting by it."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds that never go back, the same in every process of this machine: orders what different processes saw."""
    return time.clock_gettime(_CLOCK)
