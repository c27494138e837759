"""The queue's tables belong to an account that owns them and has no other right: no superuser, no role, no database."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from dataloader.app.db.schema import migrate, schema_text
from dataloader.app.errors import RightsMissing
from tests.support.databases import allow_parameter, another_role, execute_sql, query_value
from tests.support.queue_fixture import QueueFixture

SCHEMA_0_2_0 = Path(__file__).parents[2] / "releases" / "schema-0.2.0.sql"
EVENT_OF_NO_JOB = "INSERT INTO dl_job_events (job_id, queue, kind) VALUES (gen_random_uuid(), 'q', 'noted')"
SETTINGS = (
    "SELECT concat_ws(',', nullif(current_setting('dl.events_checked', true), ''),"
    " nullif(current_setting('dl.function', true), ''), nullif(current_setting('dl.new_graph', true), ''))"
)
OLD_CONFIGURATION = {
    "dl_jobs_inserted": "dl.events_checked = 'yes'",
    "dl_enqueue_many": "dl.function = 'dl_enqueue'",
    "dl_enqueue_graph": "dl.new_graph = 'yes'",
}


@pytest.fixture
def schema_owner_dsn(empty_dsn: str) -> Iterator[str]:
    """The DSN of the owner of the schema `etl`, who may do nothing else in the database."""
    database = parse_dsn(empty_dsn)["dbname"]
    with another_role(empty_dsn) as role:
        dsn = make_dsn(empty_dsn, user=role, password="x")
        execute_sql(empty_dsn, f'GRANT CREATE ON DATABASE "{database}" TO {role}')
        execute_sql(dsn, "CREATE SCHEMA etl")
        execute_sql(
            empty_dsn,
            f'REVOKE CREATE ON DATABASE "{database}" FROM {role}',
            f'REVOKE TEMPORARY ON DATABASE "{database}" FROM PUBLIC',
        )
        yield dsn


def run_a_job(dsn: str, schema: str = "public") -> None:
    queue_db = QueueFixture(dsn, schema=schema)
    job_id = queue_db.enqueue()
    (run,) = queue_db.claim()
    assert queue_db.settle(run).outcome == "applied"
    assert queue_db.event_kinds(job_id) == ["queued", "picked", "done"]
    queue_db.close()


def test_the_owner_of_an_empty_database_can_install(empty_dsn):
    migration = migrate(empty_dsn)

    assert "created table dl_jobs" in migration.steps
    run_a_job(empty_dsn)


def test_the_owner_of_a_schema_can_install(schema_owner_dsn):
    migration = migrate(schema_owner_dsn, "etl")

    assert "created table dl_jobs" in migration.steps
    run_a_job(schema_owner_dsn, "etl")


def test_an_account_that_owns_nothing_changes_nothing(schema_owner_dsn):
    for schema in ("public", "mine"):
        with pytest.raises(RightsMissing, match=f"in schema '{schema}'; .*CREATE SCHEMA etl AUTHORIZATION"):
            migrate(schema_owner_dsn, schema)


def test_the_owner_upgrades_tables_of_release_0_2_0(empty_dsn):
    allow_parameter(empty_dsn, "dl.ours")
    execute_sql(empty_dsn, SCHEMA_0_2_0.read_text(encoding="utf-8"))

    migration = migrate(empty_dsn)

    assert migration.from_version == 2
    run_a_job(empty_dsn)


@pytest.mark.superuser("functions as they were, which only a superuser could declare")
def test_the_owner_replaces_functions_that_set_parameters(empty_dsn, superuser):
    execute_sql(empty_dsn, schema_text())
    for function, setting in OLD_CONFIGURATION.items():
        execute_sql(superuser(empty_dsn), f"ALTER FUNCTION {function} SET {setting}")
    execute_sql(empty_dsn, "UPDATE dl_schema SET fingerprint = 'of another file'")

    migrate(empty_dsn)

    with closing(psycopg2.connect(empty_dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT proname FROM pg_proc WHERE array_to_string(proconfig, ',') LIKE '%dl.%'")
        assert cursor.fetchall() == []
    run_a_job(empty_dsn)


# ── settings that functions make for their own statements ───────────────────────────────────────────────────────────

GRAPH = """{"jobs": [{"key": "a", "queue": "q", "task": "t", "lock_key": "a"},
                     {"key": "b", "queue": "q", "task": "t", "lock_key": "b", "after": [{"job": "a"}]}]}"""
ONE = '[{"queue": "q", "task": "t", "lock_key": "k"}]'
DEBOUNCED = '[{"queue": "q", "task": "t", "lock_key": "k", "debounce": {"key": "d", "wait_sec": 60}}]'
DECIDE = "SET CONSTRAINTS ALL IMMEDIATE"
MIXED = '[{"queue": "q", "task": "t", "lock_key": "k"}, {"queue": "q"}]'
AFTER = '[{"queue": "q", "task": "t", "lock_key": "k", "after": [{"job_id": "<running>"}]}]'
STATEMENTS = {
    "plain insert": "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')",
    "fast batch": f"SELECT * FROM dl_enqueue_many('{ONE}')",
    "keyed batch": f"""SELECT * FROM dl_enqueue_many('{ONE.replace('"k"', '"k", "idempotency_key": "i"')}')""",
    "repeated batch": f"SELECT * FROM dl_enqueue_many('{DEBOUNCED}'), dl_enqueue_many('{DEBOUNCED}') again",
    "undone batch": f"SELECT * FROM dl_enqueue_many('{MIXED}', true)",
    "first row of a batch": f"SELECT * FROM dl_enqueue_many('{MIXED}') LIMIT 1",
    "enqueue": "SELECT dl_enqueue('q', 't', 'k')",
    "graph": f"SELECT * FROM dl_enqueue_graph('{GRAPH}')",
    "child": f"SELECT * FROM dl_enqueue_many('{AFTER}')",
    "cancel of a queued job": "UPDATE dl_jobs SET cancel_requested = true WHERE job_id = '<queued>'",
    "cancel of a running job": "UPDATE dl_jobs SET cancel_requested = true WHERE job_id = '<running>'",
    "no attempts": "UPDATE dl_jobs SET max_attempts = 0 WHERE job_id = '<queued>'",
    "requeue": "UPDATE dl_jobs SET status = 'queued' WHERE job_id = '<running>'",
    "limit": "SELECT dl_apply_limits(ARRAY['<queued>'::uuid], '{}', true)",
    "wake-up of limited jobs": "SELECT dl_wake_limited('{one}')",
    "end of a parent": f"UPDATE dl_jobs SET status = 'succeeded' WHERE job_id = '<parent>'; {DECIDE}",
    "retry of a parent": f"UPDATE dl_jobs SET status = 'failed' WHERE job_id = '<parent>'; {DECIDE}"
    "; UPDATE dl_jobs SET status = 'queued' WHERE job_id = '<parent>'",
}


@pytest.fixture
def jobs_of_each_kind(dsn: str) -> dict[str, str]:
    """Jobs that the statements change, by what they are."""
    insert = (
        "INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, limits, lease_expires_at) VALUES ('q', 't',"
        " gen_random_uuid(), '{}', 1, '{{\"one\": 1}}', now() + interval '1 h') RETURNING job_id"
    )
    execute_sql(dsn, "INSERT INTO dl_limits (name, concurrency) VALUES ('one', 1), ('two', 9)")
    jobs = {name: query_value(dsn, insert.format(name)) for name in ("queued", "running")}
    query_value(
        dsn,
        "UPDATE dl_jobs SET wait_state = 'limited', waits_on = 'one' WHERE job_id ="
        f" '{query_value(dsn, insert.format('queued'))}'",
    )
    graph = f"SELECT job_id FROM dl_enqueue_graph('{GRAPH}') WHERE key = 'a'"
    return {**jobs, "parent": query_value(dsn, graph)}


def test_no_setting_is_left_to_the_callers_transaction(dsn, jobs_of_each_kind):
    left = {}
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        for name, statement in STATEMENTS.items():
            cursor.execute(re.sub("<(.+?)>", lambda kind: jobs_of_each_kind[kind[1]], statement))
            cursor.execute(SETTINGS)
            left[name] = cursor.fetchall()
            with pytest.raises(psycopg2.errors.ForeignKeyViolation):
                cursor.execute(EVENT_OF_NO_JOB)
            connection.rollback()

    assert left == {name: [("",)] for name in STATEMENTS}


def test_no_function_compiles_its_queries(dsn, jobs_of_each_kind):
    """PostgreSQL compiles queries above a cost, by default; one without a way but a sequential scan has such a cost."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.notices = deque[str]()  # type: ignore[assignment] # a list would keep the last fifty
        cursor.execute("SET jit = on; SET client_min_messages = debug1")
        connection.commit()
        for statement in STATEMENTS.values():
            cursor.execute(re.sub("<(.+?)>", lambda kind: jobs_of_each_kind[kind[1]], statement))
            connection.rollback()
        assert [notice for notice in connection.notices if "JIT" in notice] == []

        cursor.execute(
            "SELECT proname FROM pg_proc WHERE 'enable_seqscan=off' = ANY (proconfig) AND proname LIKE 'dl\\_%'"
        )
        planned = {name for (name,) in cursor}
        cursor.execute("SELECT proname FROM pg_proc WHERE 'jit=off' = ANY (proconfig)")
        assert planned
        assert planned - {name for (name,) in cursor} == set()


def test_settings_of_the_caller_outlive_functions_and_their_errors(dsn, jobs_of_each_kind):
    cancel = STATEMENTS["cancel of a queued job"].replace("<queued>", jobs_of_each_kind["queued"])
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SET dl.events_checked = 'yes'; SET dl.function = 'mine'; SAVEPOINT s")
        cursor.execute(STATEMENTS["enqueue"])
        cursor.execute(SETTINGS)
        assert cursor.fetchone() == ("yes,mine",)

        cursor.execute(
            "SET dl.events_checked = ''; ALTER TABLE dl_job_events ADD CHECK (kind <> 'canceled') NOT VALID;"
        )
        cursor.execute("SAVEPOINT s")
        with pytest.raises(psycopg2.errors.CheckViolation):
            cursor.execute(cancel)
        cursor.execute("ROLLBACK TO s")
        cursor.execute(SETTINGS)
        assert cursor.fetchone() == ("mine",)
