"""What the banner of a started process shows. Imports nothing of ours: every command loads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Startup:
    """How far a process has come: ready, or waiting for its database."""

    database: str  # where it is, without its password
    outage: str | None = None  # what it waits for; None: it is ready
    failures: Mapping[str, str] = field(default_factory=dict)  # module → its error, with the traceback
    tasks: frozenset[str] = frozenset()  # the names of those that are registered


def last_error(traceback: str) -> str:
    """The first line of the error that a traceback ends with."""
    lines = traceback.rstrip().splitlines()
    ends = [n for n, line in enumerate(lines) if n and not line.startswith(" ") and lines[n - 1].startswith("  ")]
    return lines[ends[-1]] if ends else (lines[-1] if lines else "")
