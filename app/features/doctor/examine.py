"""Runs all checks. A check that fails is a finding too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dataloader.app.acts.feature import Feature
from dataloader.app.acts.findings import Finding, error, worst
from dataloader.app.errors import DataloaderError
from dataloader.app.features.doctor.engines import check_engines
from dataloader.app.features.doctor.facts import DatabaseFacts, detect_pooler
from dataloader.app.features.doctor.queue import (
    LONG_LOCK_SEC,
    LONG_TRANSACTION_SEC,
    check_listeners,
    check_lock_holders,
    check_queue,
    check_tables,
    check_transactions,
)
from dataloader.app.features.doctor.schema import check_rights, check_schema, expected_schema, required_rights
from dataloader.app.features.doctor.server import SETTINGS, ConnectionBudget, check_pooler, check_server

__all__ = ["Connections", "run_checks", "worst"]


@dataclass(frozen=True)
class Connections:
    """How the service connects. Without a DSN of their own workers use that of the API."""

    api_dsn: str
    worker_dsn: str | None
    timeout_sec: float
    api_connections: int
    engine_problems: Mapping[str, str] = field(default_factory=dict)  # of DL_EXECUTORS, by name
    features: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the options of features, by name


def run_checks(facts: DatabaseFacts, connections: Connections, features: Iterable[Feature] = ()) -> list[Finding]:
    """`features`: whose own checks follow. Raises DatabaseUnavailable if there is no connection at all."""
    server, clock_offset_sec = facts.server(SETTINGS)
    findings: list[Finding] = []
    live_workers = 0

    def run_check(check: str, find: Callable[[], Iterable[Finding]]) -> None:
        try:
            findings.extend(find())
        except DataloaderError as refusal:
            findings.append(error(check, f"the check failed: {refusal}", "repair the problems above first"))

    def check_live_queue() -> Iterable[Finding]:
        nonlocal live_workers
        queue = {**facts.queue(), "foreign_keys": facts.foreign_keys()}
        live_workers = int(queue["live"])
        return [*check_queue(queue), *check_listeners(queue["listeners"])]

    expected = expected_schema()
    run_check("schema", lambda: check_schema(facts.schema_objects(), expected, facts.schema_version, facts.schema))
    run_check("rights", lambda: check_rights(facts.missing_rights(required_rights()), server["user"], facts.schema))
    run_check("queue", check_live_queue)
    run_check("bloat", lambda: check_tables(facts.tables()))
    run_check("transactions", lambda: check_transactions(facts.transactions(older_sec=LONG_TRANSACTION_SEC)))
    run_check("locks", lambda: check_lock_holders(facts.lock_holders(older_sec=LONG_LOCK_SEC)))
    run_check("pooler", lambda: _check_poolers(connections))
    run_check("engine", lambda: check_engines(connections.engine_problems))
    for feature in features:
        if feature.checks is not None:
            options = connections.features.get(feature.name)
            run_check(feature.name, partial(feature.load(feature.checks), facts.executor, options))
    return [
        *check_server(server, clock_offset_sec, ConnectionBudget(live_workers, connections.api_connections)),
        *findings,
    ]


def _check_poolers(connections: Connections) -> Iterable[Finding]:
    clients = [("the service" if connections.worker_dsn is None else "the API", connections.api_dsn)]
    if connections.worker_dsn is not None:
        clients.append(("workers", connections.worker_dsn))
    for client, dsn in clients:
        yield check_pooler(
            detect_pooler(dsn, timeout_sec=connections.timeout_sec), client, needs_session=client != "the API"
        )
