"""docs/doctor.md shows what doctor says: of a database in order, and of one to which the clinic has done its worst."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dataloader.app.acts.findings import Finding, Severity
from dataloader.app.db.pool import Pool
from dataloader.app.features.doctor.examine import Connections, run_checks
from dataloader.app.features.doctor.facts import DatabaseFacts
from dataloader.app.features.registry import FEATURES
from tests.support.doctor_fixture import DEFECTS, PAGE, broken_database, defect_table
from tests.support.queue_fixture import QueueFixture

TEXT = PAGE.read_text(encoding="utf-8")
OF_TESTS = {"fsync", "full_page_writes", "synchronous_commit", "autovacuum"}  # off, so that tests are quick


def examined(way: str) -> list[Finding]:
    pool = Pool(way, transactions_only=True, application_name="dataloader-doctor")
    try:
        return run_checks(DatabaseFacts(pool), Connections(way, None, 10.0, 16), FEATURES)
    finally:
        pool.close()


def shown(part: str) -> str:
    return TEXT.partition(f"<!-- {part} -->")[2].partition(f"<!-- /{part} -->")[0]


def plain(text: str) -> str:
    """Without what differs from one day to the next: numbers and their units, ids and databases."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"\bdl_test_\w+_owner\b", "dataloader", text)
    text = re.sub(r"ALTER DATABASE \S+", "ALTER DATABASE", text)
    return re.sub(r"# (min|h|s|ms)\b", "#", re.sub(r"[\d.,]*\d", "#", text))


def test_page_shows_database_errors_and_repairs(dsn: str, run_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dataloader.app.features.doctor.examine.LONG_TRANSACTION_SEC", 0.0)
    queue_db = QueueFixture(dsn)
    queue_db.sql(
        "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
        " VALUES (gen_random_uuid(), 'w', '0', '{etl}', '{noop}', 2, 3600)"
    )
    queue_db.close()
    with broken_database(dsn, run_folder) as way:
        found = [one for one in examined(way) if one.severity > Severity.OK and one.check not in OF_TESTS]

    assert {(harm.check, harm.severity) for harm in DEFECTS} <= {(one.check, one.severity.word) for one in found}
    assert defect_table() in shown("harms"), "run `python -m tests.support.doctor_fixture`"
    output = plain(shown("broken"))
    for one in found:
        if one.check == "transactions" and one.facts["name"] != "nightly-report":
            continue  # of other tests, on the same server
        assert plain(one.message) in output, one
        assert plain(one.remedy) in output, one


def test_the_page_names_every_finding_of_a_database_in_order(dsn: str):
    result = [one.message for one in examined(dsn) if one.severity is Severity.OK and one.check not in OF_TESTS]

    output = plain(shown("healthy"))
    assert len(result) > 12
    assert [one for one in result if plain(one)[:12] not in output and "transaction" not in one] == []
    assert not re.search(r"^(ERROR|warning)", shown("healthy"), re.MULTILINE)
