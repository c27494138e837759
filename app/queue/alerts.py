"""Alert rules, what they have fired, and the look that decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from app.errors import RuleExists, RuleNotFound
from app.queue.jobqueue import Source, as_uuid
from app.queue.values import checked_text


class RuleKind(StrEnum):
    FAILURE_RATE = "failure_rate"  # threshold: the share of a window's runs that may fail
    NO_SUCCESS = "no_success"  # threshold: for how many seconds a task may be without one
    QUEUE_AGE = "queue_age"  # threshold: for how many seconds a ready job may wait
    STALLED = "stalled"  # threshold: for how many seconds a running job's progress may stand still
    DEAD_WORKER = "dead_worker"  # threshold: for how many seconds a worker may be silent


@dataclass(frozen=True, kw_only=True)
class NewRule:
    name: str
    kind: RuleKind
    threshold: float
    queue: str | None = None
    task: str | None = None
    window_sec: float = 3600.0
    min_runs: int = 1


@dataclass(frozen=True)
class Rule:
    id: UUID
    name: str
    kind: RuleKind
    queue: str | None
    task: str | None
    threshold: float
    window_sec: float
    min_runs: int
    active: bool
    created_at: datetime


@dataclass(frozen=True)
class Firing:
    """An alert from its beginning to its end."""

    id: UUID
    rule_id: UUID | None
    kind: str
    name: str
    subject: str
    queue: str | None
    task: str | None
    value: float | None
    detail: str
    began_at: datetime
    seen_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True)
class Look:
    looked: bool  # False: another process has done it lately
    begun: int
    over: int


class Alerts:
    """The rules and alerts in one schema of one database."""

    def __init__(self, source: Source) -> None:
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask

    def add(self, new: NewRule) -> Rule:
        """Raises RuleExists if there is one of this name."""
        asked = vars(new) | {"kind": new.kind.value}
        for name in ("name", "queue", "task"):
            if asked[name] is not None:
                checked_text(name, asked[name])
        rows = self._ask("add_rule", asked)
        if not rows:
            raise RuleExists(new.name)
        return _rule(rows[0])

    def rules(self) -> list[Rule]:
        return [_rule(row) for row in self._ask("rules", {"rule_id": None})]

    def rule(self, rule_id: UUID) -> Rule:
        return _rule(_one(self._ask("rules", {"rule_id": str(rule_id)}), rule_id))

    def change(
        self,
        rule_id: UUID,
        *,
        threshold: float | None = None,
        window_sec: float | None = None,
        min_runs: int | None = None,
        active: bool | None = None,
    ) -> Rule:
        """What is None stays as it is."""
        asked = {"threshold": threshold, "window_sec": window_sec, "min_runs": min_runs, "active": active}
        return _rule(_one(self._ask("change_rule", asked | {"rule_id": str(rule_id)}), rule_id))

    def remove(self, rule_id: UUID) -> None:
        _one(self._ask("remove_rule", {"rule_id": str(rule_id)}), rule_id)

    def all(self, *, firing: bool = True, before: UUID | None = None, limit: int = 100) -> list[Firing]:
        """What fires, or has ever fired, the newest first; `before` is the last one of the page before."""
        asked = {"firing": firing, "before": None if before is None else str(before), "limit": limit}
        return [_firing(row) for row in self._ask("alerts", asked)]

    def counts(self) -> dict[str, int]:
        """How many alerts of each kind fire."""
        return {row[0]: row[1] for row in self._ask("count_alerts")}

    def look(self, *, every_sec: float) -> Look:
        """Look at all rules, unless some process has within the last `every_sec`."""
        return Look(*self._ask("look_at_rules", {"every_sec": every_sec})[0][:3])

    def prune(self, *, keep_sec: float) -> None:
        self._ask("prune_alerts", {"keep_sec": keep_sec})


def _one(rows: list[tuple[Any, ...]], rule_id: UUID) -> tuple[Any, ...]:
    if not rows:
        raise RuleNotFound(rule_id)
    return rows[0]


def _rule(row: tuple[Any, ...]) -> Rule:
    return Rule(as_uuid(row[0]), row[1], RuleKind(row[2]), *row[3:])


def _firing(row: tuple[Any, ...]) -> Firing:
    return Firing(as_uuid(row[0]), row[1] and as_uuid(row[1]), *row[2:])
