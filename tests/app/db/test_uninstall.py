"""`dataloader migrate --uninstall`: removes the queue from a schema, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing

import psycopg2
import pytest
from click.testing import CliRunner, Result

from dataloader.app.cli.command import cli
from dataloader.app.db.schema import migrate
from dataloader.app.db.uninstall import find_installation, uninstall
from dataloader.app.errors import SchemaBlocked, SchemaMissing
from dataloader.app.runtime import commands
from tests.support.queue_fixture import QueueFixture

OWN_OBJECTS = (
    "SELECT 'table ' || relname FROM pg_class"
    " WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'S')"
    " UNION ALL SELECT 'function ' || proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    " UNION ALL SELECT 'type ' || typname FROM pg_type"
    " WHERE typnamespace = 'public'::regnamespace AND typtype = 'e' ORDER BY 1"
)


def query(dsn: str, statement: str) -> list[str]:
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return [row[0] for row in cursor.fetchall()] if cursor.description else []


@pytest.fixture
def command(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command within this process, whose logging stays as it is."""
    monkeypatch.setenv("DL_DB_DSN", dsn)
    monkeypatch.setattr(commands, "set_up_logging", lambda settings: None)

    def invoke(*arguments: str, answer: str = "") -> Result:
        return CliRunner().invoke(cli, ["migrate", "--uninstall", *arguments], input=answer)

    return invoke


def test_what_is_not_the_queues_stays(empty_dsn):
    query(empty_dsn, "CREATE TABLE dl_notes (note text); CREATE TABLE orders (id int)")
    query(empty_dsn, "CREATE FUNCTION dl_own() RETURNS int LANGUAGE sql RETURN 1; CREATE TYPE colour AS ENUM ('red')")
    before = query(empty_dsn, OWN_OBJECTS)
    migrate(empty_dsn)

    removed = uninstall(empty_dsn, "public")

    assert query(empty_dsn, OWN_OBJECTS) == before
    assert ("dl_jobs" in removed.tables, removed.other_tables) == (True, 2)
    with pytest.raises(SchemaMissing, match="holds no queue"):
        uninstall(empty_dsn, "public")
    migrate(empty_dsn)
    assert find_installation(empty_dsn, "public").tables == removed.tables


def test_view_of_others_keeps_all_of_it(dsn):
    query(dsn, "CREATE VIEW report AS SELECT count(*) FROM dl_jobs")
    before = query(dsn, OWN_OBJECTS)

    with pytest.raises(SchemaBlocked, match="view report depends on table dl_jobs"):
        uninstall(dsn, "public")

    assert query(dsn, OWN_OBJECTS) == before


def test_queue_in_use_is_removed_by_force_only(dsn):
    queue_db = QueueFixture(dsn)
    queue_db.enqueue_and_claim("k")
    queue_db.sql(
        "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
        " VALUES (gen_random_uuid(), 'etl-1', '0', '{q}', '{t}', 1, 60)"
    )
    queue_db.close()
    with pytest.raises(SchemaBlocked, match="worker etl-1, .*1 job"):
        uninstall(dsn, "public")

    uninstall(dsn, "public", force=True)

    assert query(dsn, OWN_OBJECTS) == []


def test_command_shows_first_and_asks(dsn, command):
    query(dsn, "INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'q', 't', 'k' || n FROM generate_series(1, 3) n")

    refused = command(answer="n\n")
    assert refused.exit_code == 1
    assert [line.split() for line in refused.stdout.splitlines() if " dl_jobs " in line] == [["dl_jobs", "3", "rows"]]
    assert "Not touched: the schema, its 0 other tables and views, and the roles: none." in refused.stdout
    assert query(dsn, "SELECT count(*)::text FROM dl_jobs") == ["3"]

    assert command("--json").exit_code == 2
    removed = json.loads(command("--yes", "--json").stdout)
    assert (removed["tables"]["dl_jobs"], query(dsn, OWN_OBJECTS)) == (3, [])
