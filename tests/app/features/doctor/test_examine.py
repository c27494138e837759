"""A healthy database has nothing wrong; each thing that is broken on purpose is found, and has its remedy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.acts.findings import Finding, Severity, worst
from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import SCHEMA_VERSION
from dataloader.app.features.doctor.__main__ import expected_schema_text
from dataloader.app.features.doctor.examine import Connections, run_checks
from dataloader.app.features.doctor.facts import DatabaseFacts, detect_pooler
from dataloader.app.features.registry import FEATURES
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support.databases import another_role, execute_sql
from tests.support.pgbouncer import running_pgbouncer
from tests.support.queue_fixture import QueueFixture

ROOT = Path(__file__).parents[4]
OF_TESTS = {"fsync", "full_page_writes", "synchronous_commit", "autovacuum"}  # off, so that tests are quick
Examined = Callable[..., list[Finding]]


@pytest.fixture
def examined(dsn: str) -> Iterator[Examined]:
    pools = []

    def look(way: str = dsn, **more: str | None) -> list[Finding]:
        pools.append(Pool(way, transactions_only=True, application_name="dataloader-doctor"))
        return run_checks(DatabaseFacts(pools[-1]), Connections(way, more.get("workers"), 5.0, 16), FEATURES)

    yield look
    for pool in pools:
        pool.close()


def wrong(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.severity >= Severity.WARNING and one.check not in OF_TESTS]


def test_nothing_is_wrong_with_a_healthy_database(examined, dsn):
    findings = examined()

    assert wrong(findings) == []
    assert {one.check for one in findings} >= OF_TESTS - {"full_page_writes"}
    assert {"server_version", "writable", "connections", "clock", "schema", "rights", "queue", "bloat", "transactions",
            "pooler", "wraparound", "notification_queue"} <= {one.check for one in findings}  # fmt: skip


def test_the_catalogue_is_what_the_schema_makes(dsn):
    text = (ROOT / "app/features/doctor/catalogue.json").read_text(encoding="utf-8")

    assert expected_schema_text(dsn) == text, "run `make generated`"


BROKEN = [
    ("DROP INDEX dl_jobs_blocked_idx", "the index dl_jobs_blocked_idx is missing", "dataloader migrate"),
    (
        "ALTER TABLE dl_jobs ALTER COLUMN priority TYPE bigint",
        "the column dl_jobs.priority is not",
        "TYPE integer USING",
    ),
    ("ALTER TABLE dl_jobs ALTER COLUMN queue DROP NOT NULL", "the column dl_jobs.queue is not", "SET NOT NULL"),
    (
        "DROP TRIGGER dl_jobs_before_upd ON dl_jobs",
        "the trigger dl_jobs.dl_jobs_before_upd is missing",
        "dataloader migrate",
    ),
    ("ALTER TABLE dl_jobs DISABLE TRIGGER dl_jobs_notify_upd", "dl_jobs_notify_upd is not enabled", "ENABLE TRIGGER"),
    ("DROP TABLE dl_statistics", "the table dl_statistics is missing", "dataloader migrate"),
    (
        "CREATE OR REPLACE FUNCTION dl_create_deliveries(job_ids uuid[]) RETURNS bigint"
        " LANGUAGE sql AS 'SELECT 0::bigint'",
        "the function dl_create_deliveries(job_ids uuid[]) is not the one of schema.sql",
        "dataloader migrate",
    ),
    (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'dl_jobs_created_idx'::regclass",
        "the index dl_jobs_created_idx is not valid",
        "REINDEX INDEX CONCURRENTLY dl_jobs_created_idx",
    ),
    ("ALTER TYPE dl_status ADD VALUE 'odd'", "the type dl_status is not", "no statement removes a value"),
]


@pytest.mark.superuser("an index is made invalid in the system catalog")
def test_what_was_changed_by_hand_is_found(own_queue_db, examined, superuser):
    dsn = own_queue_db.dsn
    for statement, _, _ in BROKEN:
        execute_sql(superuser(dsn) if "pg_index" in statement else dsn, statement)
    own_queue_db.sql("CREATE INDEX somebodys ON dl_jobs (producer)")

    found = [(one.message, one.remedy) for one in examined() if one.check == "schema"]

    for _, result, remedy in BROKEN:
        assert any(result in what and remedy in how for what, how in found), (result, found)
    assert any("the index somebodys is not of schema.sql" in what for what, _ in found)


@pytest.mark.parametrize(
    ("serves_from", "severity", "result"),
    [
        (SCHEMA_VERSION, Severity.INFO, "they are compatible with it"),
        (SCHEMA_VERSION + 1, Severity.ERROR, "not compatible with it"),
    ],
)
def test_what_a_newer_version_has_made_is_no_drift(own_queue_db, examined, serves_from, severity, result):
    later = SCHEMA_VERSION + 1
    own_queue_db.sql("INSERT INTO dl_schema VALUES (%s, 'of a later release', now(), %s)", later, serves_from)
    own_queue_db.sql("DROP INDEX dl_jobs_blocked_idx")

    (finding,) = [one for one in examined() if one.check == "schema"]

    assert (finding.severity, finding.facts["version"]) == (severity, later)
    assert result in finding.message


def test_missing_tables_are_one_finding_and_rest_is_checked(empty_dsn):
    pool = Pool(empty_dsn)
    findings = run_checks(DatabaseFacts(pool), Connections(empty_dsn, None, 5.0, 16))
    pool.close()

    schema = [one for one in findings if one.check == "schema"]
    assert [(one.message, one.remedy) for one in schema] == [("there are no tables", "dataloader migrate")]
    assert any(one.check == "queue" and "the check failed" in one.message for one in findings)
    assert any(one.check == "clock" for one in findings)
    assert worst(findings) is Severity.ERROR


def test_missing_rights_are_found_with_own_rights_only(own_queue_db, examined, dsn):
    with another_role(dsn) as role:
        own_queue_db.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
        own_queue_db.sql(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}")
        own_queue_db.sql(f"REVOKE UPDATE ON dl_jobs FROM {role}; REVOKE DELETE ON dl_webhooks, dl_bulk FROM {role}")
        findings = examined(make_dsn(dsn, user=role, password="x"))

    rights = {one.facts["on"]: one for one in findings if one.check == "rights"}
    assert rights["dl_jobs"].severity is Severity.ERROR
    assert rights["dl_jobs"].remedy == f"GRANT UPDATE ON dl_jobs TO {role}"
    assert rights["dl_bulk"].severity is Severity.WARNING
    assert any(one.check == "sees_others" for one in findings)


def test_transactions_that_are_in_the_way_are_named(own_queue_db, examined, monkeypatch):
    monkeypatch.setattr("dataloader.app.features.doctor.examine.LONG_TRANSACTION_SEC", 0.0)
    theirs = psycopg2.connect(make_dsn(own_queue_db.dsn, application_name="nightly-report"))
    ours = psycopg2.connect(make_dsn(own_queue_db.dsn, application_name="dataloader-listen"))
    for connection in (theirs, ours):
        connection.cursor().execute("LISTEN dl_jobs; SELECT 1")
    try:
        found = {one.facts["name"]: one for one in examined() if one.check == "transactions"}
    finally:
        theirs.close()
        ours.close()

    assert found["nightly-report"].severity is Severity.WARNING
    assert "idle in transaction" in found["nightly-report"].message
    assert found["dataloader-listen"].severity is Severity.ERROR
    assert "pg_terminate_backend" in found["dataloader-listen"].remedy


def test_what_waits_in_vain_is_found(own_queue_db: QueueFixture, examined):
    own_queue_db.sql(
        "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
        " VALUES (gen_random_uuid(), 'w', '0', '{q}', '{t}', 1, 3600)"
    )
    own_queue_db.enqueue("a", queue="nowhere")
    own_queue_db.enqueue("b", task="nobody.knows")
    expired, stuck, odd = (
        own_queue_db.enqueue_and_claim("c"),
        own_queue_db.enqueue_and_claim("d"),
        own_queue_db.enqueue_and_claim("e"),
    )
    own_queue_db.sql("UPDATE dl_jobs SET lease_expires_at = 'infinity' WHERE job_id = %s", str(odd.id))
    own_queue_db.sql("UPDATE dl_jobs SET lease_expires_at = now() - interval '1 h' WHERE job_id = %s", str(expired.id))
    own_queue_db.sql("UPDATE dl_jobs SET error = 'stop pending: …' WHERE job_id = %s", str(stuck.id))
    own_queue_db.insert("held", wait_state="blocked")
    own_queue_db.sql("SELECT pg_advisory_lock(hashtext('held'))")
    own_queue_db.sql("INSERT INTO dl_webhooks (url, secret, disabled_at) VALUES ('http://x.example', 's', now())")
    own_queue_db.sql("INSERT INTO dl_alerts (kind, name, subject, detail) VALUES ('stalled', 'n', 's', 'd')")

    found = {one.check: one for one in examined()}

    assert found["queues_without_worker"].facts["queues"] == ["nowhere"]
    assert "nobody.knows" in found["tasks_without_worker"].facts["tasks"]
    assert str(expired.id) in found["expired_leases"].message
    assert str(stuck.id) in found["stuck_jobs"].message
    assert f"{odd.id} of worker-1: lease until infinity" in found["odd_leases"].message
    assert "'held'" in found["foreign_keys"].message
    assert {"webhooks_disabled", "alerts"} <= set(found)
    assert "queue" not in found


def test_labels_that_no_worker_has_are_named(own_queue_db: QueueFixture, examined):
    own_queue_db.sql(
        "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec, unserved_tasks)"
        " VALUES (gen_random_uuid(), 'a:1', '0', '{q}', '{t}', 1, 3600, '{\"train\": {\"gpu\": true}}')"
    )
    own_queue_db.insert("k", queue="q", task="train")
    own_queue_db.promote()

    (found,) = [
        one for one in examined(own_queue_db.dsn) if one.check in ("labels_without_worker", "tasks_without_worker")
    ]

    assert found.check == "labels_without_worker"
    assert "no live worker of queue 'q' has gpu=true (task 'train' requires gpu=true)" in found.message
    assert found.remedy.startswith("dataloader worker --queue q:1 --label gpu=true")


def test_hosts_with_many_listeners_are_named(own_queue_db: QueueFixture, examined):
    def add_workers(count: int, host: str, state: str) -> None:
        own_queue_db.sql(
            "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec, listener)"
            " SELECT gen_random_uuid(), %s || ':' || n, '0', '{q}', '{t}', 1, 3600, %s FROM generate_series(1, %s) n",
            host, state, count,
        )  # fmt: skip

    add_workers(2, "a", "listening")
    add_workers(29, "b", "off")
    (found,) = [one for one in examined(own_queue_db.dsn) if one.check == "listeners"]
    assert (found.severity, found.facts) == (Severity.OK, {"listening": 2, "off": 29})
    assert "2 with a LISTEN connection, 29 without (DL_LISTEN=off)" in found.message

    add_workers(30, "c", "listening")
    (found,) = [one for one in examined(own_queue_db.dsn) if one.check == "listeners"]
    assert (found.severity, found.facts["host"]) == (Severity.INFO, "c")
    assert "more threads" in found.remedy


def test_a_pooler_in_transaction_mode_is_known_by_its_behaviour(examined, dsn, run_folder):
    assert not detect_pooler(dsn, timeout_sec=5).shared
    with running_pgbouncer(dsn, run_folder) as way:
        through = {one.check: one for one in examined(way)}
        apart = [one for one in examined(way, workers=dsn) if one.check == "pooler"]

    assert through["pooler"].severity is Severity.ERROR
    assert "DL_WORKER_DSN" in through["pooler"].remedy
    assert [one.severity for one in apart] == [Severity.OK, Severity.OK]


@pytest.mark.parametrize("query_wait_timeout", [120, 1])
def test_transactions_that_wait_for_each_other_show_a_pooler(dsn, run_folder, query_wait_timeout):
    with running_pgbouncer(dsn, run_folder, pool_size=1, query_wait_timeout=query_wait_timeout) as way:
        assert detect_pooler(way, timeout_sec=1.0 if query_wait_timeout > 1 else 10.0).shared


def test_a_pooler_that_keeps_sessions_apart_is_none(dsn, run_folder):
    with running_pgbouncer(dsn, run_folder, mode="session") as way:
        found = detect_pooler(way, timeout_sec=10)

    assert (found.shared, found.wandered, found.lost_state) == (False, False, False)


def test_writing_the_catalogue_needs_no_arguments():
    done = subprocess.run(
        [sys.executable, "-c", "import dataloader.app.features.doctor.__main__"], cwd=ROOT, check=False, timeout=60
    )

    assert done.returncode == 0


def test_finding_if_no_live_process_reaps(own_queue_db: QueueFixture, examined):
    def found() -> list[str]:
        return [one.remedy for one in examined(own_queue_db.dsn) if one.check == "no_reaper"]

    own_queue_db.sql("DELETE FROM dl_workers")
    without_workers = found()
    liveness = WorkerLiveness(own_queue_db.session)
    for n in range(2):
        info = WorkerInfo(uuid4(), f"host:{n}", "1", ("q",), ("t",), 1, reaps=False)
        liveness.send_heartbeat(info, heartbeat_sec=60)
    all_leave_them = found()
    liveness.send_heartbeat(WorkerInfo(uuid4(), "host:3", "1", ("q",), ("t",), 1), heartbeat_sec=60)

    assert without_workers == []
    assert len(all_leave_them) == 1
    assert "DL_REAPER=false" in all_leave_them[0]
    assert found() == []
