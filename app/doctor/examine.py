"""Asks everything, and collects what is found. What cannot be asked is a finding too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.doctor.facts import DatabaseFacts, detect_pooler
from app.doctor.findings import Finding, error, worst
from app.doctor.queue import LONG_TRANSACTION_SEC, check_queue, check_retention, check_tables, check_transactions
from app.doctor.schema import check_rights, check_schema, expected_schema, required_rights
from app.doctor.server import SETTINGS, ConnectionBudget, check_pooler, check_server
from app.errors import DataloaderError

__all__ = ["Connections", "run_checks", "worst"]


@dataclass(frozen=True)
class Connections:
    """How the service reaches the database. Without a way of their own workers take that of the API."""

    api_dsn: str
    worker_dsn: str | None
    timeout_sec: float
    api_connections: int
    is_retention_decided: bool = False  # the settings say whether old jobs are deleted


def run_checks(facts: DatabaseFacts, connections: Connections) -> list[Finding]:
    """Raises DatabaseUnavailable if the database does not answer at all."""
    told, ahead = facts.server(SETTINGS)
    findings: list[Finding] = []
    live = 0

    def run_check(check: str, find: Callable[[], Iterable[Finding]]) -> None:
        try:
            findings.extend(find())
        except DataloaderError as refusal:
            findings.append(error(check, f"could not be looked at: {refusal}", "mend what stands above first"))

    def check_live_queue() -> Iterable[Finding]:
        nonlocal live
        seen = facts.queue()
        live = int(seen["live"])
        return check_queue(seen)

    made = expected_schema()
    run_check("schema", lambda: check_schema(facts.schema_objects(), made, facts.schema_version, facts.schema))
    run_check("rights", lambda: check_rights(facts.missing_rights(required_rights(made)), told["user"], facts.schema))
    run_check("queue", check_live_queue)
    run_check("bloat", lambda: check_tables(facts.tables()))
    run_check("transactions", lambda: check_transactions(facts.transactions(older_sec=LONG_TRANSACTION_SEC)))
    run_check(
        "retention", lambda: check_retention(facts.is_retention_paused(), is_decided=connections.is_retention_decided)
    )
    run_check("pooler", lambda: _check_poolers(connections))
    return [*check_server(told, ahead, ConnectionBudget(live, connections.api_connections)), *findings]


def _check_poolers(connections: Connections) -> Iterable[Finding]:
    alone = connections.worker_dsn is None
    who = "the service" if alone else "the API"
    yield check_pooler(
        detect_pooler(connections.api_dsn, timeout_sec=connections.timeout_sec), who, needs_session=alone
    )
    if connections.worker_dsn is not None:
        yield check_pooler(
            detect_pooler(connections.worker_dsn, timeout_sec=connections.timeout_sec), "workers", needs_session=True
        )
