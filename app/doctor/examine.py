"""Asks everything, and collects what is found. What cannot be asked is a finding too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.doctor.findings import Finding, error, worst
from app.doctor.queue import LONG_SEC, judge_queue, judge_retention, judge_tables, judge_transactions
from app.doctor.schema import expected, judge_rights, judge_schema, wanted_rights
from app.doctor.server import SETTINGS, Budget, judge_pooler, judge_server
from app.errors import DataloaderError
from app.queue.examination import Examination, find_pooler

__all__ = ["Ways", "examine", "worst"]


@dataclass(frozen=True)
class Ways:
    """How the service reaches the database. Without a way of their own workers take that of the API."""

    api: str
    workers: str | None
    timeout_sec: float
    api_connections: int
    is_retention_decided: bool = False  # the settings say whether old jobs are deleted


def examine(ask: Examination, ways: Ways) -> list[Finding]:
    """Raises DatabaseUnavailable if the database does not answer at all."""
    told, ahead = ask.server(SETTINGS)
    findings: list[Finding] = []
    live = 0

    def look(check: str, judge: Callable[[], Iterable[Finding]]) -> None:
        try:
            findings.extend(judge())
        except DataloaderError as refusal:
            findings.append(error(check, f"could not be looked at: {refusal}", "mend what stands above first"))

    def queue() -> Iterable[Finding]:
        nonlocal live
        seen = ask.queue()
        live = int(seen["live"])
        return judge_queue(seen)

    made = expected()
    look("schema", lambda: judge_schema(ask.catalogue(), made, ask.stand, ask.schema))
    look("rights", lambda: judge_rights(ask.missing_rights(wanted_rights(made)), told["user"], ask.schema))
    look("queue", queue)
    look("bloat", lambda: judge_tables(ask.tables()))
    look("transactions", lambda: judge_transactions(ask.transactions(older_sec=LONG_SEC)))
    look("retention", lambda: judge_retention(ask.is_retention_held(), is_decided=ways.is_retention_decided))
    look("pooler", lambda: _poolers(ways))
    return [*judge_server(told, ahead, Budget(live, ways.api_connections)), *findings]


def _poolers(ways: Ways) -> Iterable[Finding]:
    alone = ways.workers is None
    who = "the service" if alone else "the API"
    yield judge_pooler(find_pooler(ways.api, timeout=ways.timeout_sec), who, matters=alone)
    if ways.workers is not None:
        yield judge_pooler(find_pooler(ways.workers, timeout=ways.timeout_sec), "workers", matters=True)
