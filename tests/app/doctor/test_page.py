"""docs/doctor.md shows what doctor says: of a database in order, and of one to which the clinic has done its worst."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.doctor.examine import Ways, examine
from app.doctor.findings import Finding, Severity
from app.queue.examination import Examination
from app.queue.pool import Pool
from tests.support.clinic import HARMS, PAGE, broken, table
from tests.support.desk import Desk

TEXT = PAGE.read_text(encoding="utf-8")
OF_TESTS = {"fsync", "full_page_writes", "synchronous_commit", "autovacuum"}  # off, so that tests are quick


def examined(way: str) -> list[Finding]:
    pool = Pool(way, transactions_only=True, application_name="dataloader-doctor")
    try:
        return examine(Examination(pool), Ways(way, None, 10.0, 16))
    finally:
        pool.close()


def shown(part: str) -> str:
    return TEXT.partition(f"<!-- {part} -->")[2].partition(f"<!-- /{part} -->")[0]


def plain(text: str) -> str:
    """Without what differs from one day to the next: numbers and their units, ids and databases."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"ALTER DATABASE \S+", "ALTER DATABASE", text)
    return re.sub(r"# (min|h|s|ms)\b", "#", re.sub(r"[\d.,]*\d", "#", text))


def test_the_page_tells_what_is_wrong_with_the_broken_database_and_what_was_done(
    dsn: str, run_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.doctor.examine.LONG_SEC", 0.0)
    desk = Desk(dsn)
    desk.sql(
        "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
        " VALUES (gen_random_uuid(), 'w', '0', '{etl}', '{noop}', 2, 3600)"
    )
    desk.close()
    with broken(dsn, run_folder) as way:
        found = [one for one in examined(way) if one.severity > Severity.OK and one.check not in OF_TESTS]

    assert {(harm.check, harm.severity) for harm in HARMS} <= {(one.check, one.severity.word) for one in found}
    assert table() in shown("harms"), "run `python -m tests.support.clinic`"
    said = plain(shown("broken"))
    for one in found:
        if one.check == "transactions" and one.facts["name"] != "nightly-report":
            continue  # of other tests, on the same server
        assert plain(one.told) in said, one
        assert plain(one.remedy) in said, one


def test_the_page_names_every_finding_of_a_database_in_order(dsn: str):
    told = [one.told for one in examined(dsn) if one.severity is Severity.OK and one.check not in OF_TESTS]

    said = plain(shown("healthy"))
    assert len(told) > 12
    assert [one for one in told if plain(one)[:12] not in said and "transaction" not in one] == []
    assert not re.search(r"^(ERROR|warning)", shown("healthy"), re.MULTILINE)
