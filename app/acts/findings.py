"""A finding of doctor: its severity, what was found, and the remedy.

`checks` of a Feature names a function that yields them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

Subject = tuple[str, str]  # what it is, such as `task`, and its name
_MAX_NAMES_SHOWN = 5
UNREACHABLE = "database"  # the check whose error ends the examination


class Severity(IntEnum):
    OK = 0
    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Finding:
    check: str  # its stable name
    severity: Severity
    message: str
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    subjects: tuple[Subject, ...] = ()  # what it is about, where a page shows that


def ok(check: str, message: str, **facts: Any) -> Finding:
    return Finding(check, Severity.OK, message, "", facts)


def info(check: str, message: str, remedy: str, **facts: Any) -> Finding:
    return Finding(check, Severity.INFO, message, remedy, facts)


def warning(check: str, message: str, remedy: str, **facts: Any) -> Finding:
    return Finding(check, Severity.WARNING, message, remedy, facts)


def error(check: str, message: str, remedy: str, *subjects: Subject, **facts: Any) -> Finding:
    return Finding(check, Severity.ERROR, message, remedy, facts, subjects)


def worst(findings: Iterable[Finding]) -> Severity:
    return max((finding.severity for finding in findings), default=Severity.OK)


def join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + more
