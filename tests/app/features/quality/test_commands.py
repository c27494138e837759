"""The commands `datasets` and `checks` against a real service."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from dataloader.app.cli.command import cli
from dataloader.app.queue.job import Reports
from tests.support.api_server import serving
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def dsn(own_dsn: str) -> str:
    return own_dsn


@pytest.fixture
def queue_db(dsn: str) -> Iterator[QueueFixture]:
    made = QueueFixture(dsn)
    yield made
    made.close()


def test_checks_and_datasets_are_listed(dsn: str, queue_db: QueueFixture):
    check = {"name": "rows", "value": 7, "outcome": "warned", "low": 9, "high": None, "median": None, "detail": None}
    use = {"kind": "produced", "dataset": "s3://raw/orders", "partition": None, "rows": 7, "schema": None}
    run = queue_db.enqueue_and_claim()
    queue_db.settle(run, reports=Reports((check,), (use, {**use, "kind": "consumed", "dataset": "read"})))

    with serving(dsn) as url:

        def invoke(*arguments: str) -> str:
            result = CliRunner().invoke(cli, [*arguments, "--url", url])
            return result.output

        assert "warned   7      9" in invoke("checks", "t")
        assert json.loads(invoke("checks", "t", "--json"))["checks"][0]["name"] == "rows"
        assert "No job of the task has made a data check." in invoke("checks", "other")
        assert "s3://raw/orders" in invoke("datasets")
        shown = invoke("datasets", "s3://raw/orders")
        assert "produced by t, last" in shown
        assert f"{run.id}  7 rows" in shown
        assert "read: never updated" in invoke("datasets", "read")
        assert str(run.id) in invoke("jobs", "--warnings")
        assert str(run.id) in invoke("jobs")
