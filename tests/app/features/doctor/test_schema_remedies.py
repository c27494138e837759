"""Each difference from schema.sql is provoked, its remedy run as printed, and the difference is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import psycopg2
import pytest

from dataloader.app.acts.findings import Finding
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.db.schema import migrate
from tests.support import Databases
from tests.support.databases import execute_sql
from tests.support.remedies import find_finding, find_problems, invoke, run_in_process, run_remedy

AFTERMATH = 10  # findings that one harm may leave behind, at most


@dataclass(frozen=True)
class Case:
    finding: str  # severity and check
    words: str  # of the finding
    harm: str  # what was done to the database


SCHEMA = [
    Case("error schema", "index dl_jobs_blocked_idx is missing", "DROP INDEX dl_jobs_blocked_idx"),
    Case("error schema", "index dl_jobs_idempotency_key_key is missing",
         "ALTER TABLE dl_jobs DROP CONSTRAINT dl_jobs_idempotency_key_key"),
    Case("error schema", "constraint dl_jobs.dl_jobs_chk_positive is missing",
         "ALTER TABLE dl_jobs DROP CONSTRAINT dl_jobs_chk_positive"),
    Case("error schema", "constraint dl_webhooks.", "ALTER TABLE dl_webhooks DROP CONSTRAINT dl_webhooks_pkey CASCADE"),
    Case(
        "error schema",
        "trigger dl_jobs.dl_jobs_before_upd is missing",
        "DROP TRIGGER dl_jobs_before_upd ON dl_jobs",
    ),
    Case("error schema", "dl_jobs_notify_upd is not enabled", "ALTER TABLE dl_jobs DISABLE TRIGGER dl_jobs_notify_upd"),
    Case(
        "error schema",
        "trigger dl_jobs.dl_jobs_notify_ins is not the one",
        "CREATE OR REPLACE TRIGGER dl_jobs_notify_ins BEFORE UPDATE ON dl_jobs"
        " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ),
    Case("error schema", "table dl_statistics is missing", "DROP TABLE dl_statistics"),
    Case("error schema", "column dl_jobs.producer is missing", "ALTER TABLE dl_jobs DROP COLUMN producer CASCADE"),
    Case("error schema", "column dl_jobs.checkpoint is missing", "ALTER TABLE dl_jobs DROP COLUMN checkpoint CASCADE"),
    Case("error schema", "column dl_jobs.max_attempts is missing",
         "ALTER TABLE dl_jobs DROP COLUMN max_attempts CASCADE"),
    Case("error schema", "function dl_request_hash(", "DROP FUNCTION dl_request_hash CASCADE"),
    Case(
        "error schema",
        "function dl_create_deliveries(job_ids uuid[]) is not the one",
        "CREATE OR REPLACE FUNCTION dl_create_deliveries(job_ids uuid[]) RETURNS bigint"
        " LANGUAGE sql AS 'SELECT 0::bigint'",
    ),
    Case("error schema", "column dl_jobs.priority is not", "ALTER TABLE dl_jobs ALTER COLUMN priority TYPE bigint"),
    Case("error schema", "column dl_jobs.priority is not", "ALTER TABLE dl_jobs ALTER COLUMN priority SET DEFAULT 5"),
    Case("error schema", "column dl_jobs.queue is not", "ALTER TABLE dl_jobs ALTER COLUMN queue DROP NOT NULL"),
    Case("error schema", "column dl_jobs.producer is not", "ALTER TABLE dl_jobs ALTER COLUMN producer SET DEFAULT 'x'"),
    Case(
        "error schema",
        "constraint dl_jobs.dl_jobs_chk_positive is not",
        "ALTER TABLE dl_jobs DROP CONSTRAINT dl_jobs_chk_positive;"
        " ALTER TABLE dl_jobs ADD CONSTRAINT dl_jobs_chk_positive CHECK (priority >= 1)",
    ),
    Case(
        "error schema",
        "index dl_jobs_created_idx is not the one",
        "DROP INDEX dl_jobs_created_idx; CREATE INDEX dl_jobs_created_idx ON dl_jobs (created_at)",
    ),
    Case(
        "error schema",
        "index dl_jobs_created_idx is not valid",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'dl_jobs_created_idx'::regclass",
    ),
    Case("error schema", "type dl_enqueue_request is missing", "DROP TYPE dl_enqueue_request CASCADE"),
    Case("error schema", "type dl_enqueue_request is not the one",
         "ALTER TYPE dl_enqueue_request ADD ATTRIBUTE extra int"),
    Case("info schema", "index of_a_report is not of schema.sql", "CREATE INDEX of_a_report ON dl_jobs (producer)"),
    Case(
        "info schema",
        "trigger dl_jobs.of_a_report is not of schema.sql",
        "CREATE TRIGGER of_a_report BEFORE UPDATE ON dl_jobs"
        " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ),
]  # fmt: skip


def differences(dsn: str, schema: str = "public") -> list[Finding]:
    return [finding for finding in find_problems(dsn, schema=schema) if finding.check == "schema"]


@pytest.fixture(scope="module")
def whole(databases: Databases) -> Iterator[Callable[[], str]]:
    """A database without differences: the same for all cases, unless one has left some."""
    with ExitStack() as used:
        current: list[str] = []

        def given() -> str:
            if not current or differences(current[-1]):
                current.append(used.enter_context(databases.fresh()))
                migrate(current[-1])
            return current[-1]

        yield given


@pytest.mark.superuser("an index is made invalid in the system catalog")
@pytest.mark.parametrize("case", SCHEMA, ids=lambda case: case.words)
def test_remedy_mends_schema(whole, superuser, case):
    dsn = whole()
    execute_sql(superuser(dsn) if "pg_index" in case.harm else dsn, case.harm)
    finding = find_finding(differences(dsn), case.finding, case.words)

    run_remedy(dsn, finding.remedy)

    left = differences(dsn)
    assert not [one for one in left if case.words in one.message], finding
    for _ in range(AFTERMATH):  # what the harm has taken with it
        if left:
            run_remedy(dsn, left[0].remedy)
            left = differences(dsn)
    assert left == []


def test_remedies_name_schema_that_is_not_public(dsn):
    migrate(dsn, "other")
    execute_sql(
        dsn,
        "ALTER TABLE other.dl_jobs ALTER COLUMN priority SET DEFAULT 5",
        "ALTER TABLE other.dl_jobs DISABLE TRIGGER dl_jobs_before_upd",
        "CREATE INDEX extra ON other.dl_jobs (producer)",
        "DROP INDEX other.dl_jobs_blocked_idx",
    )
    found = differences(dsn, "other")
    assert len(found) == 4, [f.message for f in found]

    for finding in found:
        run_remedy(dsn, finding.remedy, schema="other")

    assert differences(dsn, "other") == []


def test_migrate_names_what_it_restored_and_then_nothing(dsn):
    migrate(dsn)
    execute_sql(dsn, "DROP INDEX dl_jobs_blocked_idx; DROP TRIGGER dl_jobs_before_upd ON dl_jobs")

    shown = run_in_process(dsn, "migrate")

    assert "restored index dl_jobs_blocked_idx" in shown
    assert "restored trigger dl_jobs.dl_jobs_before_upd" in shown
    assert "nothing to do" in run_in_process(dsn, "migrate")


def test_restored_function_is_not_executable_by_public(dsn):
    migrate(dsn)
    execute_sql(dsn, "DROP FUNCTION dl_enqueue_many CASCADE")

    run_in_process(dsn, "migrate")

    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT proacl::text FROM pg_proc WHERE proname = 'dl_enqueue_many'")
        ((acl,),) = cursor.fetchall()
    assert acl is not None
    assert "{=X" not in acl
    assert ",=X" not in acl


def test_migrate_makes_missing_tables(empty_dsn):
    run_remedy(empty_dsn, find_finding(differences(empty_dsn), "error schema").remedy, run=run_in_process)

    assert differences(empty_dsn) == []


# What forbids a repair, and how the error names it.
BLOCKED = [
    (
        "ALTER TABLE dl_deliveries DROP CONSTRAINT dl_deliveries_webhook_id_fkey;"
        " INSERT INTO dl_deliveries (webhook_id, target, event, body) VALUES (gen_random_uuid(), 't', 'e', 'b')",
        "restore constraint dl_deliveries.dl_deliveries_webhook_id_fkey: ",
        'is not present in table "dl_webhooks"',
    ),
    (
        "ALTER TABLE dl_jobs DROP CONSTRAINT dl_jobs_idempotency_key_key;"
        " INSERT INTO dl_jobs (queue, task, lock_key, idempotency_key) SELECT 'q', 't', 'k', 'i'"
        "  FROM generate_series(1, 2)",
        "restore constraint dl_jobs.dl_jobs_idempotency_key_key: ",
        "Key (idempotency_key)=(i) is duplicated",
    ),
    (
        "DROP TABLE dl_statistics; CREATE VIEW dl_statistics AS SELECT 1",
        "restore table dl_statistics: ",
        "dl_statistics",
    ),
]


@pytest.mark.parametrize(("harm", "what", "reason"), BLOCKED, ids=["foreign key", "duplicate", "view"])
def test_blocked_repair_names_object_and_reason(dsn, harm, what, reason):
    migrate(dsn)
    execute_sql(dsn, harm)
    before = differences(dsn)

    shown = invoke(dsn, "migrate")

    assert shown.exit_code == ExitCode.SCHEMA
    assert f"Error: cannot {what}" in shown.stderr
    assert reason in shown.stderr
    assert "Nothing was changed" in shown.stderr
    assert differences(dsn) == before
