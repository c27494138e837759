"""The commands about schedules, as a shell sees them: against the real routes, and a real database."""

from __future__ import annotations

import json
from typing import Any

import psycopg2
import pytest

from tests.app.features.webhooks.test_commands import Shell, shell, webhook_dsn  # noqa: F401 - fixtures

MADE = ("--task", "load", "--queue", "etl", "--cron", "0 6 * * *", "--zone", "UTC")


@pytest.fixture(autouse=True)
def none_before(webhook_dsn: str) -> None:  # noqa: F811
    connection = psycopg2.connect(webhook_dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM dl_schedules")
    connection.close()


def as_json(shell: Shell, *words: str) -> Any:  # noqa: F811
    return json.loads(shell(*words, "--json").output)


def test_a_schedule_from_its_making_to_its_end(shell: Shell):  # noqa: F811
    assert "There are no schedules" in shell("schedules").output
    made = shell("schedules", "create", "by day", *MADE, "--arg", "day={interval_start:%Y-%m-%d}", "--catch-up", "all")
    assert "At 06:00 every day, UTC.\nby day is on; next " in made.output
    assert "Warning: there is no task" in made.output
    (listed,) = as_json(shell, "schedules", "list")["schedules"]
    assert (listed["name"], listed["definition"]["catch_up"]) == ("by day", "all")

    assert "At 07:00" in shell("schedules", "edit", "by day", "--cron", "0 7 * * *").output
    shown = shell("schedules", "preview", "by day", "--limit", "2", "--from", "2030-01-30T12:00:00Z").output
    assert "2030-01-31 07:00:00+00:00" in shown
    assert '{"day": "2030-01-30"}' in shown
    assert "2030-01-30 07:00:00+00:00  2030-01-31 07:00:00+00:00" in shown  # the interval, on the same clock
    paused = shell("schedules", "pause", "by day", "--note", "moving").output
    assert paused.startswith("by day is paused by ")
    assert "catch_up    all" in shell("schedules", "show", "by day").output
    job = shell("schedules", "run", "by day", "--at", "2030-01-31T07:00:00Z").output.strip()
    assert job in shell("schedules", "firings", "by day").output
    assert "has fired" in shell("schedules", "run", "by day", "--at", "2030-01-31T07:00:00Z", code=4).output
    assert shell("schedules", "resume", "by day").output.startswith("by day is on; next ")
    assert "deleted" in shell("schedules", "delete", "by day").output


def test_what_is_missing_or_wrong_is_reported(shell: Shell):  # noqa: F811
    assert "give --task, and one of" in shell("schedules", "create", "x", "--task", "t", code=2).output
    two = shell("schedules", "create", "x", "--task", "t", "--cron", "* * * * *", "--every", "2h", code=2)
    assert "give one of" in two.output
    wrong = shell("schedules", "create", "x", "--task", "t", "--queue", "q", "--cron", "61 * * * *", code=4)
    assert wrong.output.count("Error: --cron: '61' is no valid minute") == 1
    assert "nothing to change" in shell("schedules", "edit", "x", code=2).output
    assert "there is no schedule 'x'" in shell("schedules", "show", "x", code=3).output
    assert "1<=x<=500" in shell("schedules", "firings", "x", "--limit", "501", code=2).output
    assert "1<=x<=200" in shell("backfills", "list", "--limit", "201", code=2).output
    assert "1<=x<=365" in shell("checks", "x", "--limit", "366", code=2).output


def test_a_file_is_applied_and_exported(shell: Shell, tmp_path):  # noqa: F811
    shell("schedules", "create", "kept", *MADE)
    shell("schedules", "create", "gone", *MADE)
    file = tmp_path / "schedules.json"
    exported = json.loads(shell("schedules", "export").output)
    assert [s["name"] for s in exported["schedules"]] == ["gone", "kept"]
    file.write_text(json.dumps(exported))
    assert shell("schedules", "apply", str(file)).output == "Nothing to change.\n"

    kept = next(s for s in exported["schedules"] if s["name"] == "kept")
    new = {**kept, "name": "new"}
    file.write_text(json.dumps({"schedules": [{**kept, "expression": "0 8 * * *"}, new]}))
    planned = shell("schedules", "apply", str(file), "--dry-run", "--prune").output.splitlines()
    assert planned == ["would be changed: kept", "would be created: new", "would be deleted: gone"]
    assert [s["name"] for s in as_json(shell, "schedules", "list")["schedules"]] == ["gone", "kept"]
    shell("schedules", "apply", str(file), "--prune")
    after = as_json(shell, "schedules", "list")["schedules"]
    assert [(s["name"], s["definition"]["expression"]) for s in after] == [("kept", "0 8 * * *"), ("new", "0 6 * * *")]

    short = {"schedules": [{"name": "kept", "task": "load", "queue": "etl", "kind": "cron", "expression": "0 9 * * *"}]}
    file.write_text(json.dumps(short))  # with a default, and without the zone, which is the service's
    assert shell("schedules", "apply", str(file)).output == "changed: kept\n"
    assert shell("schedules", "apply", str(file)).output == "Nothing to change.\n"
    assert shell("schedules", "apply", str(file), "--dry-run").output == "Nothing to change.\n"
    shell("schedules", "edit", "kept", "--zone", "Asia/Tokyo")
    assert shell("schedules", "apply", str(file)).output == "changed: kept\n"

    file.write_text(json.dumps({"schedules": [{**new, "name": "one"}, {**new, "name": "two", "expression": "x"}]}))
    refused = shell("schedules", "apply", str(file), code=4)
    assert refused.stdout == "created: one\n"
    assert "Error: two.expression: a cron expression has five fields" in refused.stderr
    file.write_text("{")
    assert "FILE" in shell("schedules", "apply", str(file), code=2).output
    assert "JSON" in shell("schedules", "apply", str(file), code=2).output
    file.write_text("[]")
    assert "expected" in shell("schedules", "apply", str(file), code=2).output


def test_args_are_emptied_by_an_empty_object(shell: Shell):  # noqa: F811
    shell("schedules", "create", "s", *MADE, "--arg", "day=1")

    shell("schedules", "edit", "s", "--priority", "5")
    assert as_json(shell, "schedules", "show", "s")["definition"]["args"] == {"day": 1}
    shell("schedules", "edit", "s", "--args", "{}")
    assert as_json(shell, "schedules", "show", "s")["definition"].get("args", {}) == {}


def test_every_is_a_number_of_seconds_or_a_duration(shell: Shell):  # noqa: F811
    for every in ("600", "10m", "600s"):
        shell("schedules", "create", f"every {every}", "--task", "t", "--queue", "q", "--every", every)

    listed = as_json(shell, "schedules", "list")["schedules"]
    assert [schedule["definition"]["expression"] for schedule in listed] == ["600"] * 3
    refused = shell("schedules", "create", "x", "--task", "t", "--every", "soon", code=2).output
    assert "'soon' is not a duration such as 90s, 1h 30m or 90d, or a number of seconds" in refused


@pytest.mark.parametrize("options", [("--args", '{"day": "{month}"}'), ("--arg", "day={month}")])
def test_error_names_the_option_that_gave_the_argument(shell: Shell, options: tuple[str, str]):  # noqa: F811
    refused = shell("schedules", "create", "x", "--task", "t", "--queue", "q", "--every", "600", *options, code=4)

    assert f"Error: {options[0]}" in refused.output
    assert "{month} is none of the placeholders" in refused.output
