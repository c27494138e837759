"""What portable modules need. A module is portable if an interpreter of a task's own runs it too: it is written for
Python 3.8, and imports the standard library and other portable modules.

`workers/isolation/standalone_main.py` loads them. The first line of each says that it is portable, and
`tests/workers/isolation/test_standalone.py` compares that with what the oldest Python has loaded.
"""

from __future__ import annotations

import time
from enum import Enum

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class TextEnum(str, Enum):
    """As `enum.StrEnum`, which Python 3.8 lacks."""

    __str__ = str.__str__

    def __format__(self, format_spec: str) -> str:
        return str(self).__format__(format_spec)


def clock() -> float:
    """Return monotonic seconds that also count while the machine is suspended: leases are measured by them."""
    return time.clock_gettime(_CLOCK)
