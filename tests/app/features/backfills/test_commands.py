"""The commands about backfills, as a shell sees them: against the real routes, and a real database."""

from __future__ import annotations

import json

import psycopg2
import pytest

from dataloader.app.db.connection import Session
from dataloader.app.features.backfills.duty import BackfillsDuty
from dataloader.pipelines.contract import Pipelines
from tests.app.features.webhooks.test_commands import Shell, shell, webhook_dsn  # noqa: F401 - fixtures

JANUARY = ("--from", "2026-01-01", "--to", "2026-01-03", "--unit", "day", "--zone", "UTC", "--queue", "etl")


@pytest.fixture(autouse=True)
def none_before(webhook_dsn: str) -> None:  # noqa: F811
    connection = psycopg2.connect(webhook_dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM dl_backfills; DELETE FROM dl_slices; DELETE FROM dl_jobs")
    connection.close()


def test_a_backfill_from_its_plan_to_its_end(shell: Shell, webhook_dsn: str):  # noqa: F811
    plan = shell("backfill", "load", *JANUARY, "--arg", "day={partition}", "--dry-run").output
    assert plan == '3 of 3 slices, 2026-01-01 to 2026-01-03\nargs of the first: {"day": "2026-01-01"}\n'
    made = shell("backfill", "load", *JANUARY, "--note", "again").output.splitlines()
    backfill_id = made[1].split()[-1]
    session = Session(webhook_dsn, application_name="makes")
    BackfillsDuty(session, Pipelines(), default_lease_sec=60).run()
    session.close()

    assert "3 queued" in shell("backfills", "list").output
    assert "load is open: 3 queued" in shell("backfills", "show", backfill_id).output
    assert "2026-01-02" in shell("slices", "load", "--state", "queued").output
    assert "load is paused" in shell("backfills", "pause", backfill_id).output
    assert shell("backfills", "show", backfill_id, "--watch", code=1).output == "paused: 3 queued\n"
    assert json.loads(shell("backfills", "show", backfill_id, "--watch", "--json", code=1).output)["state"] == "paused"
    assert "load is open" in shell("backfills", "resume", backfill_id).output
    shell("backfills", "edit", backfill_id, "--concurrency", "5")
    assert json.loads(shell("backfills", "show", backfill_id, "--json").output)["concurrency"] == 5
    assert "load is canceled: 3 canceled" in shell("backfills", "cancel", backfill_id).output
    assert "load is open" in shell("backfills", "retry", backfill_id).output


def test_what_is_missing_is_reported(shell: Shell):  # noqa: F811
    assert "takes from and to, or a list" in shell("backfill", "load", code=4).output
    assert "unit is required" in shell("backfill", "load", "--from", "2026-01", "--to", "2026-01", code=4).output
