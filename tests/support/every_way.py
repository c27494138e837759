"""Performs an act by each way, and compares what it did: the request, the form and the command.

By each way an act is performed in a database of the same rows. Compared are the rows that it changes, the changes in
the audit table, and the line in the audit file; of a request that is refused, that nothing changes and the message.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
import requests
from click.testing import CliRunner

from dataloader.app.cli.command import cli
from tests.support.databases import execute_sql
from tests.support.real_service import query_rows

DONE, REFUSED_BY_PAGE = (200, 303), (404, 409, 422)  # 200: a secret that is shown once
TABLES = (
    "dl_limits, dl_breakers, dl_workers, dl_queues, dl_jobs, dl_graphs, dl_schedules, dl_firings, dl_backfills,"
    " dl_slices, dl_webhooks, dl_deliveries, dl_delivery_attempts, dl_alerts, dl_alert_rules, dl_bulk, dl_api_keys,"
    " dl_audit"
)
# What differs each time.
TIMES_AND_ACTORS = (
    "changed_at", "opened_at", "failed_at", "created_at", "changed_by", "finished_at", "available_at", "started_at",
    "seen_at", "job_id", "schedule_id", "last_at", "next_at", "paused_at", "paused_by", "made_at", "backfill_id",
    "resumed_at", "ended_at", "run_id", "lease_expires_at", "heartbeat_at", "webhook_id", "delivery_id", "rule_id",
    "bulk_id", "key_id", "secret", "old_secret", "old_secret_until", "disabled_at", "due_at", "body", "muted_until",
    "acknowledged_at", "sent_at", "cursor_at", "cursor_id", "digest", "expires_at", "revoked_at",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """An act with values, by each way that it has."""

    act: str
    request: tuple[str, str, Mapping[str, Any] | None] | None  # method, path, body
    form: tuple[str, Mapping[str, str | list[str]]] | None
    command: Sequence[str] | None
    table: str
    before: str = ""  # SQL
    refused: str = ""  # the message; empty: it is done
    audit: Mapping[str, Any] | None = field(default_factory=dict)  # None: nothing is changed, so there is no line


def by_request(url: str, case: Case) -> tuple[bool, str]:
    assert case.request is not None
    method, path, body = case.request
    response = requests.request(method, f"{url}/api/v1{path}", json=body, timeout=30)
    return response.ok, str(response.json().get("detail", ""))


def by_form(url: str, case: Case) -> tuple[bool, str]:
    assert case.form is not None
    path, fields = case.form
    response = requests.post(url + path, data=fields, allow_redirects=False, timeout=30)
    assert response.status_code in (*DONE, *REFUSED_BY_PAGE), response.text
    text = html.unescape(re.sub(r"<[^>]+>", " ", response.text))
    return response.status_code in DONE, " ".join(text.split())


def by_command(url: str, case: Case) -> tuple[bool, str]:
    assert case.command is not None
    result = CliRunner().invoke(cli, [*case.command, "--url", url])
    return result.exit_code == 0, " ".join(result.output.split())


WAYS: Mapping[str, Callable[[str, Case], tuple[bool, str]]] = {
    "request": by_request, "form": by_form, "command": by_command,
}  # fmt: skip


def check_every_way(case: Case, url: str, dsn: str, captured: pytest.LogCaptureFixture) -> None:
    """Perform the act by each of its ways, and compare."""
    outcomes: dict[str, Any] = {}
    for way, perform in WAYS.items():
        if getattr(case, way) is None:
            continue
        execute_sql(dsn, f"TRUNCATE {TABLES} CASCADE; {case.before}")
        rows_before = rows_of(dsn, case)
        captured.clear()
        done, text = perform(url, case)
        lines = [
            (
                record.getMessage(),
                {name: comparable(vars(record).get("fields", {}).get(name)) for name in case.audit or ()},
            )
            for record in captured.records
            if record.name == "dataloader.audit" and record.getMessage() == case.act
        ]
        rows = rows_of(dsn, case)
        changes = query_rows(dsn, "SELECT subject, subject_id, before, after FROM dl_audit ORDER BY audit_id")
        outcomes[way] = (done, rows, lines, len(changes))
        assert done is not bool(case.refused), f"{way}: {text}"
        if case.refused:
            assert case.refused in text, way
            assert (rows, changes) == (rows_before, []), way

    expected_lines = [] if case.refused or case.audit is None else [(case.act, dict(case.audit))]
    first = next(iter(outcomes.values()))
    assert first[2] == expected_lines
    assert outcomes == dict.fromkeys(outcomes, first)


def comparable(value: Any) -> Any:
    """Ids as texts."""
    return str(value) if isinstance(value, UUID) else value


def rows_of(dsn: str, case: Case) -> list[Any]:
    return query_rows(dsn, f"SELECT to_jsonb(t) - %s::text[] FROM {case.table} t", [*TIMES_AND_ACTORS])
