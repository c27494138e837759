"""A new field of a job needs at most five places: one is added to a copy of the checkout, and jobs made with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dataloader.app.db.schema import SCHEMA_VERSION, migrate
from tests.support.real_service import query_rows
from tests.support.scratch import Scratch

MAX_PLACES = 5
DECLARATION = """
    cost_center: Annotated[str | None, _field(
        Kind.TEXT, "Who pays for the job", "the default one", is_copied=True)]
"""
MIGRATION = """-- Jobs have a cost center.
ALTER TABLE dl_jobs ADD COLUMN cost_center text;
"""
# The fourth place of a field that has an effect is the statement that uses it, the fifth its test: here it is this one.
PROGRAM = """
import json
import sys
from click.testing import CliRunner
from dataloader import Client, enqueue
from dataloader.app.cli.command import cli
from dataloader.app.queue.batch import enqueue_batch
from dataloader.app.queue.job import NewJob
from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import migrate
from tests.support.api_server import serving
import psycopg2, requests

dsn = sys.argv[1]
print(migrate(dsn).to_version)
job = {"queue": "q", "task": "t", "lock_key": "k"}
with serving(dsn) as url:
    requests.post(f"{url}/api/v1/jobs/trigger", json={**job, "cost_center": "http"}).raise_for_status()
    requests.post(f"{url}/api/v1/jobs/batch", json={"jobs": [{**job, "cost_center": "batch"}]}).raise_for_status()
    graph = {"jobs": [{**job, "key": "a", "cost_center": "graph"}]}
    requests.post(f"{url}/api/v1/graphs", json=graph).raise_for_status()
    client = Client(url)
    made = client.trigger("t", queue="q", lock_key="k", cost_center="client", idempotency_key="once")
    requests.post(f"{url}/api/v1/jobs/{made['job_id']}/clone", json={}).raise_for_status()
    words = ["trigger", "t", "--queue", "q", "--lock-key", "k", "--cost-center", "command", "--url", url]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    wrong = requests.post(f"{url}/api/v1/jobs/trigger", json={**job, "cost_center": 1}).json()
    assert wrong["errors"][0]["field"] == "cost_center", wrong
with psycopg2.connect(dsn) as connection:
    enqueue(connection, "t", queue="q", lock_key="k", cost_center="own transaction")
    with connection.cursor() as cursor:
        cursor.execute("SELECT dl_enqueue('q', 't', 'k', cost_center => 'sql')")
        wrong = json.dumps([{**job, "cost_center": "x" * 2001}])
        cursor.execute("SELECT detail FROM dl_enqueue_many(%s)", (wrong,))
        assert cursor.fetchone() == ("must be a text of at most 2000 bytes in UTF-8",)
"""


@pytest.mark.parametrize("is_upgrade", [False, True], ids=["empty database", "upgraded database"])
def test_a_job_field_needs_at_most_five_places(empty_dsn: str, tmp_path: Path, is_upgrade: bool):
    if is_upgrade:
        migrate(empty_dsn)
    scratch = Scratch(tmp_path)
    version = SCHEMA_VERSION + 1

    scratch.insert_before("dataloader/_job_fields.py", "    debounce: Annotated[", DECLARATION.lstrip("\n"))
    scratch.insert_before("app/queue/schema.sql", "    CONSTRAINT dl_jobs_chk_positive", "    cost_center text,\n")
    scratch.create(f"app/db/migrations/{version:04}.sql", MIGRATION)
    scratch.python("-m", "dataloader.app.db.make_schema")  # `make generated`
    document = scratch.describe_api()
    scratch.create("field.py", PROGRAM)
    made_to = scratch.python("field.py", empty_dsn)

    assert made_to.split() == [str(version)]
    assert [row for (row,) in query_rows(empty_dsn, "SELECT cost_center FROM dl_jobs ORDER BY created_at")] == [
        "http", "batch", "graph", "client", "client", "command", "own transaction", "sql",
    ]  # fmt: skip
    about = json.loads(document)["components"]["schemas"]["TriggerRequest"]["properties"]["cost_center"]
    assert about["description"] == "Who pays for the job; null: the default one."
    assert scratch.places <= MAX_PLACES
