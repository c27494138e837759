"""What a process prints on its terminal once it listens. Imports nothing of ours: the command line loads it always."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Startup:
    """How far a process has come: ready, or waiting for its database."""

    database: str  # where it is, without its password
    outage: str | None = None  # what it waits for; None: it is ready
    broken: Mapping[str, str] = field(default_factory=dict)  # module → its error, with the traceback


def last_error(trace: str) -> str:
    """The first line of the error that a traceback ends with."""
    lines = trace.rstrip().splitlines()
    ends = [n for n, line in enumerate(lines) if n and not line.startswith(" ") and lines[n - 1].startswith("  ")]
    return lines[ends[-1]] if ends else (lines[-1] if lines else "")
