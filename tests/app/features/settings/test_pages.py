"""The pages of settings and of doctor's findings, without scripts."""

from __future__ import annotations

import pytest

from dataloader.app.acts.findings import error, ok
from dataloader.app.config import Settings
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.job import Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.retention_periods import RetentionPeriods
from dataloader.pipelines.contract import Pipelines


@pytest.fixture
def settings_client(pool):
    settings = Settings(webhook_secret="whsec_0123456789abcdef0123456789").loaded_from(
        {"DL_WEBHOOK_SECRET": "environment"}, (), {}
    )
    options = WebOptions(
        version="1.2.3",
        settings=settings.describe(),
        retention=RetentionPeriods(failed=0.001),
        examine=lambda: [ok("version", "it is new"), error("rights", "a right is missing", "grant it")],
    )
    return create_app(JobQueue(pool), Pipelines(), options, pool=pool).test_client()


def test_settings_are_shown_with_source_and_without_secrets(settings_client):
    page = settings_client.get("/settings").text

    assert "DL_WEBHOOK_SECRET" in page
    assert "<b>environment</b>" in page
    assert "0123456789abcdef" not in page
    assert "1 setting given" in page


def test_preview_counts_what_retention_would_delete(settings_client, client, queue, trigger):
    trigger()
    (job,), _ = queue.claim("etl", ["noop"], new_run_ids(1), "worker")
    queue.settle([(job, Settlement(Status.FAILED, error="no"))])

    assert "Due for deletion" not in settings_client.get("/settings").text
    page = settings_client.get("/settings?preview=retention").text

    assert 'aria-label="Due for deletion"' in page
    assert "noop" in page
    assert client.get(f"/api/v1/jobs/{job.id}").status_code == 200  # nothing was deleted


def test_page_without_settings_says_so(client):
    assert "started without the settings" in client.get("/settings").text


def test_findings_of_doctor_are_shown_worst_first(settings_client, client):
    page = settings_client.get("/settings/doctor").text

    assert page.index("a right is missing") < page.index("it is new")
    assert "grant it" in page
    assert client.get("/settings/doctor").status_code == 404
