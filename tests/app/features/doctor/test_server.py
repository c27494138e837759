"""What a server says of itself, judged."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.app.acts.findings import Severity
from dataloader.app.features.doctor.facts import Pooler, TableStats, Transaction
from dataloader.app.features.doctor.queue import check_tables, check_transactions
from dataloader.app.features.doctor.server import ConnectionBudget, check_pooler, check_server

FINE: dict[str, str] = {
    "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "autovacuum": "on", "track_counts": "on",
    "max_connections": "100", "superuser_reserved_connections": "3", "log_statement": "none",
    "log_min_duration_statement": "-1", "idle_in_transaction_session_timeout": "600000", "idle_session_timeout": "0",
    "statement_timeout": "0", "lock_timeout": "0", "default_transaction_read_only": "off",
    "transaction_read_only": "off",
}  # fmt: skip


def judged(
    ahead: float = 0.0, budget: ConnectionBudget | None = None, settings: Any = None, **result: Any
) -> dict[str, Severity]:
    server = {
        "version": 160000, "version_text": "16", "user": "dl", "database": "jobs", "superuser": False,
        "encoding": "UTF8",
        "sees_others": True, "ends_others": True, "temporary_tables": True, "in_recovery": False, "connections": 5,
        "role_limit": -1, "database_limit": -1, "waiting_commits": 0, "standby_names": "", "role_is_read_only": False,
        "frozen_age": 1000, "notification_queue_usage": 0.0, "settings": FINE | (settings or {}), **result,
    }  # fmt: skip
    return {one.check: one.severity for one in check_server(server, ahead, budget or ConnectionBudget(2, 16))}


def test_a_server_in_order_has_nothing_but_good_news():
    assert set(judged().values()) == {Severity.OK}


@pytest.mark.parametrize(
    ("change", "check", "severity"),
    [
        ({"version": 140005}, "server_version", Severity.ERROR),
        ({"settings": {"fsync": "off"}}, "fsync", Severity.ERROR),
        ({"settings": {"full_page_writes": "off"}}, "full_page_writes", Severity.ERROR),
        ({"settings": {"synchronous_commit": "off"}}, "synchronous_commit", Severity.WARNING),
        ({"settings": {"autovacuum": "off"}}, "autovacuum", Severity.ERROR),
        ({"settings": {"track_counts": "off"}}, "autovacuum", Severity.ERROR),
        ({"frozen_age": 1_200_000_000}, "wraparound", Severity.WARNING),
        ({"frozen_age": 1_900_000_000}, "wraparound", Severity.ERROR),
        ({"in_recovery": True}, "writable", Severity.ERROR),
        ({"encoding": "LATIN1"}, "encoding", Severity.ERROR),
        ({"settings": {"default_transaction_read_only": "on"}}, "writable", Severity.ERROR),
        ({"budget": ConnectionBudget(30, 16)}, "connections", Severity.WARNING),
        ({"role_limit": 10}, "connections", Severity.WARNING),
        ({"settings": {"reserved_connections": "90"}}, "connections", Severity.WARNING),
        ({"settings": {"log_statement": "mod"}}, "statement_logging", Severity.WARNING),
        ({"settings": {"log_min_duration_statement": "0"}}, "statement_logging", Severity.WARNING),
        ({"settings": {"log_min_duration_statement": "60000"}}, "statement_logging", Severity.OK),
        ({"settings": {"idle_session_timeout": "1000"}}, "idle_session_timeout", Severity.ERROR),
        ({"settings": {"transaction_timeout": "1000"}}, "transaction_timeout", Severity.WARNING),
        ({"settings": {"idle_in_transaction_session_timeout": "0"}}, "idle_in_transaction", Severity.INFO),
        ({"ahead": -5.0}, "clock", Severity.WARNING),
        ({"ahead": 90.0}, "clock", Severity.ERROR),
        ({"notification_queue_usage": 0.4}, "notification_queue", Severity.ERROR),
        ({"sees_others": False}, "sees_others", Severity.INFO),
        ({"ends_others": False}, "ends_others", Severity.INFO),
        ({"temporary_tables": False}, "temporary_tables", Severity.INFO),
    ],
)
def test_what_is_not_in_order_is_found(change, check, severity):
    assert judged(**change)[check] is severity


def test_bloat_is_reported_by_share():
    found = list(check_tables([TableStats("dl_jobs", 10, 90_000, None, 1), TableStats("dl_queues", 1, 40, 60.0, 1)]))

    assert [(one.check, one.facts["table"]) for one in found] == [("bloat", "dl_jobs")]
    assert "last vacuum: never" in found[0].message


def test_slots_and_prepared_transactions_have_own_remedies():
    found = list(
        check_transactions([
            Transaction("slot", "standby", "", "inactive", None, "", True),
            Transaction("prepared", "x1", "app", "prepared", 900.0, "", True),
            Transaction("77", "", "", "", 90_000.0, "", True),
            Transaction("78", "dump", "app", "active", 400.0, "COPY", False),
        ])
    )  # fmt: skip

    assert "pg_drop_replication_slot('standby')" in found[0].remedy
    assert "ROLLBACK PREPARED 'x1'" in found[1].remedy
    assert "another role) has had a transaction for 1 d 1 h" in found[2].message
    assert found[3].severity is Severity.INFO


def test_settings_lost_by_pooler_are_reported():
    result = check_pooler(Pooler(False, True, True, True), "workers", needs_session=True)

    assert result.severity is Severity.ERROR
    assert "settings and prepared statements" in result.message
