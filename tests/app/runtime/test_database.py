from __future__ import annotations

from pathlib import Path

import psycopg2
import pytest

from dataloader.app.config import load_settings
from dataloader.app.db import schema
from dataloader.app.errors import DatabaseUnavailable, SchemaOutdated, SchemaTooNew
from dataloader.app.runtime.database import Database
from tests.support.databases import query_value


def database(**given: str) -> Database:
    return Database(load_settings(given, dotenv=None))


def test_a_named_database_is_given_its_tables_once(empty_dsn: str):
    named = database(DL_DB_DSN=empty_dsn)

    named.prepare()
    named.prepare()

    assert query_value(empty_dsn, "SELECT version FROM dl_schema") == str(schema.SCHEMA_VERSION)
    assert not named.is_embedded


def test_a_shared_database_with_other_tables_is_left_alone(dsn: str):
    schema.migrate(dsn)
    named = database(DL_DB_DSN=dsn)

    newer = schema.SCHEMA_VERSION + 1
    query_value(dsn, f"UPDATE dl_schema SET version = {newer}, serves_from = {newer}")
    with pytest.raises(SchemaTooNew):
        named.prepare()
    query_value(dsn, "DELETE FROM dl_schema")
    with pytest.raises(SchemaOutdated):
        named.prepare()

    assert query_value(dsn, "SELECT count(*) FROM dl_schema") == "0"


def test_without_dsn_embedded_server_starts_and_stops(run_folder: Path):
    home = run_folder / "database-home"
    own = database(DL_DATA_DIR=str(home))
    try:
        own.prepare()

        assert own.is_embedded
        assert query_value(own.dsn(), "SELECT count(*) FROM dl_jobs") == "0"
        assert str(home) in own.describe()
        dsn = own.dsn()
    finally:
        own.close()
    with pytest.raises(psycopg2.OperationalError):
        psycopg2.connect(dsn)


def test_what_is_closed_is_not_started_again_by_a_late_request(run_folder: Path):
    own = database(DL_DATA_DIR=str(run_folder / "never"))
    own.close()

    with pytest.raises(DatabaseUnavailable, match="ending"):
        own.dsn()
    assert not (run_folder / "never").exists()


def test_a_description_holds_no_password():
    named = database(DL_DB_DSN="postgresql://me:hunter2@somewhere/db", PG_SCHEMA_QUEUE="etl")

    assert "hunter2" not in named.describe()
    assert "somewhere" in named.describe()
    assert "schema etl" in named.describe()
