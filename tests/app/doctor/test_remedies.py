"""Each finding of doctor is provoked, its remedy run as printed, and the finding is gone."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import ISOLATION_LEVEL_AUTOCOMMIT, make_dsn

from app.doctor.examine import Ways, examine
from app.doctor.findings import Finding, Severity
from app.postgres import EmbeddedServer
from app.postgres.binaries import Choice
from app.queue.examination import Examination
from app.queue.pool import Pool
from app.queue.schema import migrate
from tests.support.pgbouncer import pooled
from tests.support.private_server import copy_of
from tests.support.processes import ROOT, Process, clean_environment
from tests.support.service import serving
from tests.support.waiting import eventually

SQL = ("ALTER ", "CREATE ", "DROP ", "GRANT ", "REINDEX ", "ROLLBACK ", "SELECT ", "SET ", "VACUUM ")


@dataclass(frozen=True)
class Case:
    check: str
    words: str  # of the finding
    harm: str  # what was done to the database


DROPPED = "dl_jobs_parked_idx"
SCHEMA = [
    Case("schema", "index dl_jobs_parked_idx is missing", "DROP INDEX dl_jobs_parked_idx"),
    Case("schema", "index dl_jobs_idempotency_key_key is missing",
         "ALTER TABLE dl_jobs DROP CONSTRAINT dl_jobs_idempotency_key_key"),
    Case("schema", "constraint dl_jobs.dl_jobs_chk_positive is missing",
         "ALTER TABLE dl_jobs DROP CONSTRAINT dl_jobs_chk_positive"),
    Case("schema", "constraint dl_webhooks.", "ALTER TABLE dl_webhooks DROP CONSTRAINT dl_webhooks_pkey CASCADE"),
    Case("schema", "trigger dl_jobs.dl_jobs_gate is missing", "DROP TRIGGER dl_jobs_gate ON dl_jobs"),
    Case("schema", "dl_jobs_notify_upd is not enabled", "ALTER TABLE dl_jobs DISABLE TRIGGER dl_jobs_notify_upd"),
    Case(
        "schema",
        "trigger dl_jobs.dl_jobs_notify_ins is not the one",
        "CREATE OR REPLACE TRIGGER dl_jobs_notify_ins BEFORE UPDATE ON dl_jobs"
        " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ),
    Case("schema", "table dl_rollups is missing", "DROP TABLE dl_rollups"),
    Case("schema", "column dl_jobs.producer is missing", "ALTER TABLE dl_jobs DROP COLUMN producer CASCADE"),
    Case("schema", "column dl_jobs.checkpoint is missing", "ALTER TABLE dl_jobs DROP COLUMN checkpoint CASCADE"),
    Case("schema", "column dl_jobs.max_attempts is missing", "ALTER TABLE dl_jobs DROP COLUMN max_attempts CASCADE"),
    Case("schema", "function dl_request_hash(", "DROP FUNCTION dl_request_hash CASCADE"),
    Case(
        "schema",
        "function dl_tell(moved uuid[]) is not the one",
        "CREATE OR REPLACE FUNCTION dl_tell(moved uuid[]) RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'",
    ),
    Case("schema", "column dl_jobs.priority is not", "ALTER TABLE dl_jobs ALTER COLUMN priority TYPE bigint"),
    Case("schema", "column dl_jobs.priority is not", "ALTER TABLE dl_jobs ALTER COLUMN priority SET DEFAULT 5"),
    Case("schema", "column dl_jobs.queue is not", "ALTER TABLE dl_jobs ALTER COLUMN queue DROP NOT NULL"),
    Case("schema", "column dl_jobs.producer is not", "ALTER TABLE dl_jobs ALTER COLUMN producer SET DEFAULT 'x'"),
    Case(
        "schema",
        "constraint dl_jobs.dl_jobs_chk_positive is not",
        "ALTER TABLE dl_jobs DROP CONSTRAINT dl_jobs_chk_positive;"
        " ALTER TABLE dl_jobs ADD CONSTRAINT dl_jobs_chk_positive CHECK (priority >= 1)",
    ),
    Case(
        "schema",
        "index dl_jobs_created_idx is not the one",
        "DROP INDEX dl_jobs_created_idx; CREATE INDEX dl_jobs_created_idx ON dl_jobs (created_at)",
    ),
    Case(
        "schema",
        "index dl_jobs_created_idx is not valid",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'dl_jobs_created_idx'::regclass",
    ),
    Case("schema", "index of_a_report is not ours", "CREATE INDEX of_a_report ON dl_jobs (producer)"),
    Case(
        "schema",
        "trigger dl_jobs.of_a_report is not ours",
        "CREATE TRIGGER of_a_report BEFORE UPDATE ON dl_jobs"
        " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ),
]  # fmt: skip
EVERYTHING = "DROP TABLE dl_jobs, dl_job_events, dl_job_logs, dl_workers, dl_queues, dl_webhooks, dl_schema CASCADE"
# Severity and check of what no test provokes or mends, and why.
NOT_RUN = {
    ("warning", "odd_leases"): "no case yet",
    ("warning", "shared_worker_names"): "no case yet",
    ("error", "server_version"): "needs PostgreSQL 14 or older, which has to be replaced",
    ("warning", "clock"): "a clock is set by NTP, for the whole machine",
    ("error", "clock"): "the same finding, further off",
    ("error", "notification_queue"): "the queue has 8 GB; its remedy is that of `transactions`",
    ("warning", "transaction_timeout"): "a setting of PostgreSQL 17; its remedy has the form of idle_session_timeout",
    ("warning", "stuck_jobs"): "its remedy ends a process by hand; tests/system/test_shutdown.py ends such processes",
    ("warning", "alerts"): "an alert ends with its cause, not by a statement",
    ("info", "retention"): "tests/system/test_held_retention.py does it",
    ("warning", "connections"): "run for roles and databases; max_connections takes effect at a restart",
    ("error", "wraparound"): "the same finding as the warning, later",
}
Look = Callable[..., list[Finding]]


def sql(dsn: str, *statements: str) -> None:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.set_isolation_level(ISOLATION_LEVEL_AUTOCOMMIT)
        for statement in statements:
            cursor.execute(statement)


def run_remedy(dsn: str, remedy: str, schema: str = "public") -> None:
    """As it is printed: statements up to the first piece that is prose, or a command."""
    if remedy.startswith("dataloader migrate"):
        command(dsn, "migrate", schema=schema)
        return
    statements = []
    for piece in remedy.split("; "):
        if not piece.startswith(SQL):
            break
        statements.append(piece)
    assert statements, f"no statement in {remedy!r}"
    sql(dsn, *statements)


def command(dsn: str, *words: str, schema: str = "public", **env: str) -> str:
    given = {**clean_environment(), "DL_DB_DSN": dsn, "PG_SCHEMA_QUEUE": schema, **env}
    argv = [sys.executable, "-m", "app", *words]
    done = subprocess.run(argv, cwd=ROOT, env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def look() -> Iterator[Look]:
    pools = []

    def findings(dsn: str, *, schema: str = "public", workers: str | None = None, api: int = 16) -> list[Finding]:
        pools.append(Pool(dsn, transactions_only=True, application_name="dataloader-doctor", schema=schema))
        found = examine(Examination(pools[-1]), Ways(dsn, workers, 5.0, api))
        pools[-1].close()
        return found

    yield findings
    for pool in pools:
        pool.close()


def pick(findings: list[Finding], check: str, words: str = "") -> Finding:
    fitting = [f for f in findings if f.check == check and words in f.told and f.severity is not Severity.OK]
    assert fitting, [(f.check, f.told) for f in findings]
    return fitting[0]


def gone(findings: list[Finding], check: str, words: str = "") -> bool:
    return not [f for f in findings if f.check == check and words in f.told and f.severity is not Severity.OK]


def mended(look: Look, dsn: str, check: str, words: str = "") -> bool:
    return gone(look(dsn), check, words)


def found_again(look: Look, dsn: str, check: str) -> bool:
    return not gone(look(dsn), check)


@pytest.mark.parametrize("case", SCHEMA, ids=lambda case: case.words)
def test_remedy_mends_schema(dsn, look, case):
    migrate(dsn)
    sql(dsn, case.harm)
    finding = pick(look(dsn), case.check, case.words)

    run_remedy(dsn, finding.remedy)

    assert gone(look(dsn), case.check, case.words), finding
    while (left := [f for f in look(dsn) if f.check == "schema" and f.severity is Severity.ERROR]) and left[
        0
    ] != finding:
        run_remedy(dsn, left[0].remedy)  # what the harm has taken with it
        finding = left[0]
    assert gone(look(dsn), "schema")


def test_remedies_name_schema_that_is_not_public(dsn, look):
    migrate(dsn, "other")
    sql(
        dsn,
        "ALTER TABLE other.dl_jobs ALTER COLUMN priority SET DEFAULT 5",
        "ALTER TABLE other.dl_jobs DISABLE TRIGGER dl_jobs_gate",
        "CREATE INDEX extra ON other.dl_jobs (producer)",
        "DROP INDEX other.dl_jobs_parked_idx",
    )
    found = [f for f in look(dsn, schema="other") if f.check == "schema"]
    assert len(found) == 4, [f.told for f in found]

    for finding in found:
        run_remedy(dsn, finding.remedy, schema="other")

    assert gone(look(dsn, schema="other"), "schema")


def test_migrate_names_what_it_restored_and_then_nothing(dsn):
    migrate(dsn)
    sql(dsn, "DROP INDEX dl_jobs_parked_idx; DROP TRIGGER dl_jobs_gate ON dl_jobs")

    shown = command(dsn, "migrate")

    assert "restored index dl_jobs_parked_idx" in shown
    assert "restored trigger dl_jobs.dl_jobs_gate" in shown
    assert "nothing to do" in command(dsn, "migrate")


def test_migrate_makes_missing_tables(empty_dsn, look):
    run_remedy(empty_dsn, pick(look(empty_dsn), "schema").remedy)

    assert gone(look(empty_dsn), "schema")


def test_remedies_of_rights_are_grants(dsn, look):
    role = f"doctor_{os.getpid()}"
    sql(dsn, f"CREATE ROLE {role} LOGIN")
    try:
        sql(
            dsn,
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
            f"REVOKE UPDATE ON dl_jobs FROM {role}; REVOKE DELETE ON dl_bulk FROM {role}",
        )
        theirs = make_dsn(dsn, user=role)
        for check in ("rights", "sees_others"):
            for _ in range(60):  # one right may hide the next
                findings = [f for f in look(theirs) if f.check == check and f.severity is not Severity.OK]
                findings = [f for f in findings if "could not be looked at" not in f.told]
                if not findings:
                    break
                for finding in findings:
                    run_remedy(dsn, finding.remedy)
            assert gone(look(theirs), check)
    finally:
        sql(dsn, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture(scope="module")
def bare_server(run_folder: Path, ready_made: Path, postgres_binaries: Choice) -> Iterator[str]:
    """A server of this module's own, whose command line leaves the settings to ALTER SYSTEM."""
    folder = copy_of(ready_made, Path(tempfile.mkdtemp(prefix="bare-", dir=run_folder)))
    settings = {"max_prepared_transactions": "2"}
    with EmbeddedServer(folder, binaries=postgres_binaries, settings=settings) as server:
        yield server.dsn
    shutil.rmtree(folder, ignore_errors=True)


ROLE_SETTINGS = [
    ("synchronous_commit", "ALTER ROLE {role} SET synchronous_commit = off"),
    ("writable", "ALTER DATABASE {database} SET default_transaction_read_only = on"),
    ("idle_session_timeout", "ALTER DATABASE {database} SET idle_session_timeout = 60000"),
    ("idle_in_transaction", "ALTER DATABASE {database} SET idle_in_transaction_session_timeout = 0"),
    ("statement_logging", "ALTER DATABASE {database} SET log_statement = 'all'"),
    ("statement_logging", "ALTER DATABASE {database} SET log_min_duration_statement = 0"),
    ("connections", "ALTER ROLE {role} CONNECTION LIMIT 15"),
    ("connections", "ALTER DATABASE {database} CONNECTION LIMIT 15"),
]


@pytest.mark.parametrize(("check", "harm"), ROLE_SETTINGS)
def test_remedy_mends_setting_of_role_or_database(dsn, look, check, harm):
    role = f"settings_{os.getpid()}"
    database = psycopg2.extensions.parse_dsn(dsn)["dbname"]
    sql(dsn, f"CREATE ROLE {role} LOGIN SUPERUSER")
    theirs = make_dsn(dsn, user=role)
    try:
        sql(dsn, f"ALTER DATABASE {database} SET idle_in_transaction_session_timeout = '10min'")
        if check != "synchronous_commit":
            sql(dsn, f"ALTER ROLE {role} SET synchronous_commit = on")
        sql(dsn, harm.format(role=role, database=database))
        finding = pick(look(theirs), check)

        # The database takes no writes of its own any more, and its session is that of the harm.
        run_remedy(make_dsn(dsn, dbname="postgres"), finding.remedy)

        assert gone(look(theirs), check), finding
    finally:
        sql(make_dsn(dsn, dbname="postgres"), f"DROP ROLE {role}")


def test_remedy_mends_settings_of_server(bare_server, look):
    for name in ("fsync", "full_page_writes", "autovacuum"):
        sql(bare_server, f"ALTER SYSTEM SET {name} = off", "SELECT pg_reload_conf()")
        eventually(partial(found_again, look, bare_server, name), message=name)
        finding = pick(look(bare_server), name)

        run_remedy(bare_server, finding.remedy)

        eventually(partial(mended, look, bare_server, name), message=finding.remedy)


def test_remedy_of_max_connections_is_a_statement(bare_server, look):
    finding = pick(look(bare_server, api=500), "connections")

    run_remedy(bare_server, finding.remedy)

    sql(bare_server, "ALTER SYSTEM RESET max_connections")


def test_remedy_of_wraparound_freezes(bare_server, look, monkeypatch):
    monkeypatch.setattr("app.doctor.server._BILLION", 500)
    sql(bare_server, *["SELECT pg_current_xact_id()"] * 600)
    finding = pick(look(bare_server), "wraparound")

    run_remedy(bare_server, finding.remedy)

    assert gone(look(bare_server), "wraparound")


def test_remedy_of_transactions_ends_them(bare_server, look, monkeypatch):
    monkeypatch.setattr("app.doctor.examine.LONG_SEC", 0.0)
    connections = [psycopg2.connect(make_dsn(bare_server, application_name=n)) for n in ("report", "dataloader-x")]
    try:
        for connection in connections:
            connection.cursor().execute("SELECT 1")
        with closing(psycopg2.connect(bare_server)) as other, other.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'")
        for name in ("report", "dataloader-x", "forgotten"):
            run_remedy(bare_server, pick(look(bare_server), "transactions", name).remedy)
            eventually(partial(mended, look, bare_server, "transactions", name))
    finally:
        for connection in connections:
            connection.close()


def test_remedy_of_bloat_vacuums(bare_server, look):
    sql(
        bare_server,
        "ALTER TABLE dl_queues SET (autovacuum_enabled = off)",
        "INSERT INTO dl_queues (queue) SELECT 'q' || n FROM generate_series(1, 60000) n",
        "DELETE FROM dl_queues",
    )
    eventually(lambda: not gone(look(bare_server), "bloat"), message="bloat")

    run_remedy(bare_server, pick(look(bare_server), "bloat").remedy)

    eventually(lambda: gone(look(bare_server), "bloat"))


@contextmanager
def working(dsn: str, folder: Path, remedy: str, **env: str) -> Iterator[Process]:
    """A worker as the remedy has it, started by its words."""
    words = remedy.removeprefix("dataloader ").split(";")[0].split()
    given = {"DL_DB_DSN": dsn, "DL_PIPELINES": "pipelines.noop", "DL_REAPER_PERIOD_SEC": "0.2", **env}
    with Process.dataloader(*words, output=folder / "worker.log", env=given) as process:
        process.wait_for("listener.listening")
        yield process


def test_remedies_of_waiting_jobs_start_workers(dsn, look, tmp_path):
    insert = "INSERT INTO dl_jobs (queue, task, lock_key, args, available_at) VALUES ('elt', '{}', '{}', '{{}}', now())"
    sql(dsn, insert.format("noop", "a"))
    remedy = pick(look(dsn), "queues_without_worker").remedy
    with working(dsn, tmp_path, remedy):
        eventually(lambda: gone(look(dsn), "queues_without_worker"))
        sql(dsn, insert.format("test.nap", "b"))
        missing = pick(look(dsn), "tasks_without_worker")
    assert "DL_PIPELINES" in missing.remedy
    with working(dsn, tmp_path, remedy, DL_PIPELINES="pipelines.noop,tests.support.etl"):
        eventually(lambda: gone(look(dsn), "tasks_without_worker"))


def test_remedy_of_expired_leases_is_a_worker(dsn, look, tmp_path):
    sql(
        dsn,
        "INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, worker, started_at, lease_expires_at)"
        " VALUES ('q', 'noop', 'k', 'running', 1, gen_random_uuid(), 'w', now(), now() - interval '1 h')",
    )
    with working(dsn, tmp_path, pick(look(dsn), "expired_leases").remedy, DL_HEARTBEAT_SEC="0.3"):
        eventually(lambda: gone(look(dsn), "expired_leases"))


def test_remedy_of_foreign_keys_ends_their_sessions(dsn, look):
    with closing(psycopg2.connect(make_dsn(dsn, application_name="elsewhere"))) as holder, holder.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(hashtext('held'))")
        holder.commit()
        sql(
            dsn,
            "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'held')",
            "UPDATE dl_jobs SET place = 'parked'",
        )
        run_remedy(dsn, pick(look(dsn), "foreign_keys").remedy)

        eventually(lambda: gone(look(dsn), "foreign_keys"))


def test_remedy_of_disabled_webhooks_switches_them_on(dsn, look):
    sql(dsn, "INSERT INTO dl_webhooks (url, secret, disabled_at) VALUES ('http://127.0.0.1/x', 's', now())")
    remedy = pick(look(dsn), "webhooks_disabled").remedy

    with serving(dsn) as url:
        for line in remedy.split("; "):
            command(dsn, *line.removeprefix("dataloader ").split(), DL_URL=url)

    assert gone(look(dsn), "webhooks_disabled")


def test_remedy_of_pooler_is_a_way_past_it(dsn, look, run_folder):
    with pooled(dsn, run_folder) as way:
        assert "DL_WORKER_DSN" in pick(look(way), "pooler").remedy

        assert gone(look(way, workers=dsn), "pooler")


def test_each_finding_has_a_case_or_a_reason():
    here = Path(__file__).read_text(encoding="utf-8")
    constructors = ("error", "warning", "info", "say")
    checks: set[tuple[str, str]] = set()
    for path in (ROOT / "app/doctor").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in constructors:
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    checks.add((node.func.id, first.value))
    assert len(checks) > 15

    reasons = {check for _, check in NOT_RUN}
    missing = {check for _, check in checks if check not in reasons and not re.search(rf'"{check}"', here)}
    assert missing == set()
