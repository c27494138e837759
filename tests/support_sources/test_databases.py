"""The databases of tests: a test meets no rows of another, and a database with more than new rows is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn

from tests.support import Databases
from tests.support.databases import execute_sql, query_value

pytestmark = pytest.mark.superuser("makes databases as the fixtures of the suite do")
MORE_THAN_ROWS = {
    "table": "CREATE TABLE mine ()",
    "dropped partition": "DROP TABLE dl_workers CASCADE",
    "function": "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "right": "GRANT SELECT ON dl_jobs TO PUBLIC",
    "comment": "COMMENT ON TABLE dl_jobs IS 'mine'",
    "column's statistics": "ALTER TABLE dl_jobs ALTER task SET STATISTICS 10",
    "analyzed": "ANALYZE dl_schema",
    "vacuumed": "VACUUM dl_schema",
    "setting of the database": "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = ''1MB''',"
    " current_database()); END $$",
    "large object": "SELECT lo_create(0)",
    "temporary table": "CREATE TEMP TABLE mine ()",
}


@pytest.fixture(scope="module")
def own_databases(databases: Databases, server_dsn: str, run_folder: Path, worker_id: str) -> Iterator[Databases]:
    """Of this module alone, from the template of all."""
    own = Databases(server_dsn, run=run_folder.name.removeprefix("dl-test-"), worker=f"{worker_id}_own")
    yield own
    own.drop_emptied()
    own.close()


def _name(dsn: str) -> str:
    return str(parse_dsn(dsn)["dbname"])


def _oid(dsn: str) -> str:
    return query_value(dsn, "SELECT oid FROM pg_database WHERE datname = current_database()")


def test_database_with_rows_is_emptied_and_used_again(own_databases):
    with own_databases.fresh() as dsn:
        former = _oid(dsn)
        rows = query_value(dsn, "SELECT jsonb_agg(s) FROM dl_schema s")
        execute_sql(
            dsn,
            "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'k')",
            "UPDATE dl_schema SET applied_at = now() - interval '1 day'",
        )
        event_id = query_value(dsn, "SELECT event_id FROM dl_job_events")
    with own_databases.fresh() as dsn:
        assert _oid(dsn) == former
        for table in ("dl_jobs", "dl_job_events"):
            assert query_value(dsn, f"SELECT count(*) FROM {table}") == "0"
        assert query_value(dsn, "SELECT jsonb_agg(s) FROM dl_schema s") == rows
        assert query_value(dsn, "SELECT nextval(pg_get_serial_sequence('dl_job_events', 'event_id'))") == event_id


@pytest.mark.parametrize("statement", MORE_THAN_ROWS.values(), ids=MORE_THAN_ROWS)
def test_database_with_more_than_rows_is_dropped(own_databases, statement):
    with own_databases.fresh() as dsn:
        former = _oid(dsn)
        execute_sql(dsn, statement)
    with own_databases.fresh() as dsn:
        assert _oid(dsn) != former


def test_connection_of_former_test_meets_no_later_test(own_databases):
    with own_databases.fresh() as former_dsn:
        session = psycopg2.connect(former_dsn)
    with own_databases.fresh() as dsn:
        assert _name(dsn) != _name(former_dsn)
        with pytest.raises(psycopg2.Error):
            session.cursor().execute("SELECT 1")
        with pytest.raises(psycopg2.OperationalError, match="does not exist"):
            psycopg2.connect(former_dsn)
    session.close()
