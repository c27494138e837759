"""A new option of a schedule needs one place: it is added to a copy of the checkout, and schedules made with it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.real_service import query_rows
from tests.support.scratch import Scratch

MAX_PLACES = 1
DECLARATION = """
    consumer_group: Annotated[str | None, _field(
        Kind.NAME, "The consumer of the results of its jobs", "Consumer", "of the results", of_job=True)]
"""
PROGRAM = """
import sys
from click.testing import CliRunner
from dataloader import schedule
from dataloader.app.cli.command import cli
from dataloader.app.db.schema import migrate
from dataloader.pipelines.contract import Pipelines
from tests.support.api_server import serving
import requests

dsn, pipelines = sys.argv[1], Pipelines()
pipelines.register("t")(schedule(every=60, consumer_group="code")(lambda args: None))
(declared,) = pipelines.declared_schedules()
assert declared["definition"]["consumer_group"] == "code", declared
try:
    schedule(every=60, consumer_group=" ")
except ValueError as error:
    assert "consumer_group is a text" in str(error), error
migrate(dsn)
with serving(dsn, pipelines) as url:
    fields = {"task": "t", "kind": "interval", "expression": "600"}
    api = f"{url}/api/v1/schedules"
    requests.post(api, json={**fields, "name": "api", "consumer_group": "api"}).raise_for_status()
    requests.post(f"{url}/schedules", data={**fields, "name": "form", "consumer_group": "form"}).raise_for_status()
    words = ["schedules", "create", "command", "--task", "t", "--every", "10m", "--consumer-group", "command"]
    done = CliRunner().invoke(cli, [*words, "--url", url])
    assert done.exit_code == 0, done.output
    wrong = requests.post(api, json={**fields, "name": "wrong", "consumer_group": 1}).json()
    assert wrong["errors"][0]["field"] == "consumer_group", wrong
    page = requests.get(f"{url}/schedules/form").text
    assert 'name="consumer_group"' in page and 'value="form"' in page
    requests.patch(f"{api}/form", json={"consumer_group": "changed"}).raise_for_status()
    for name in ("api", "form", "command"):
        requests.post(f"{api}/{name}/run", json={}).raise_for_status()
"""
# The pages that name options; each other page is compared with the code by a test of its own.
WRITE_PAGES = """
from docs.make import DOCS, generated_page
for name in ("schedules.md", "cli.md"):
    (DOCS / name).write_text(generated_page(name), encoding="utf-8")
"""


def test_a_schedule_option_needs_one_place(empty_dsn: str, tmp_path: Path):
    scratch = Scratch(tmp_path)

    scratch.insert_before(
        "pipelines/schedule_fields.py", "    need: Annotated[Need, _choice(", DECLARATION.lstrip("\n")
    )
    places = scratch.places
    document = scratch.describe_api()
    scratch.create("option.py", PROGRAM)
    scratch.python("option.py", empty_dsn)
    scratch.python("-c", WRITE_PAGES)

    rows = query_rows(empty_dsn, "SELECT consumer_group FROM dl_jobs ORDER BY created_at")
    assert [group for (group,) in rows] == ["api", "changed", "command"]
    about = json.loads(document)["components"]["schemas"]["ScheduleChange"]["properties"]["consumer_group"]
    assert about["description"] == "The consumer of the results of its jobs."
    assert "| `consumer_group` | `consumer_group` |" in (scratch.folder / "docs/schedules.md").read_text("utf-8")
    assert "| `--consumer-group` |" in (scratch.folder / "docs/cli.md").read_text("utf-8")
    assert places <= MAX_PLACES
