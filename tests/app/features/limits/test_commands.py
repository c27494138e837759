"""The commands `limits` and `graphs` against a real service."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from dataloader.app.cli.command import cli
from dataloader.app.features.limits.commands import parse_rate
from tests.support import Databases
from tests.support.api_server import serving
from tests.support.queue_fixture import QueueFixture


@pytest.fixture(scope="module")
def dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as made:
        yield made


@pytest.fixture(scope="module")
def url(dsn: str) -> Iterator[str]:
    with serving(dsn) as address:
        yield address


@pytest.fixture
def queue_db(dsn: str) -> Iterator[QueueFixture]:
    made = QueueFixture(dsn)
    yield made
    made.close()


def invoke(url: str, *arguments: str, input_text: str | None = None):
    return CliRunner().invoke(cli, [*arguments, "--url", url], input=input_text)


@pytest.mark.parametrize(
    ("text", "rate"), [("10/s", (10, 1.0)), ("100/1m", (100, 60.0)), ("5/30s", (5, 30.0)), ("1/h", (1, 3600.0))]
)
def test_rates_are_read(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["10", "0/s", "-1/s", "x/s", "10/", "10/minute", "1.5/s"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ValueError, match="one looks like"):
        parse_rate(text)


def test_limits_are_set_listed_shown_and_deleted(queue_db, url):
    made = invoke(url, "limits", "set", "warehouse", "--concurrency", "1", "--note", "small")
    rated = invoke(url, "limits", "set", "api:*", "--rate", "10/s", "--burst", "3")
    run_id = queue_db.enqueue("a", limits={"warehouse": 1})
    queue_db.enqueue("b", limits={"warehouse": 1})
    queue_db.claim(2)

    assert "Limit warehouse: 1 at once." in made.output
    assert "Limit api:*: 10 in 1 s, 3 of them at once." in rated.output
    listed = invoke(url, "limits").output
    assert "warehouse" in listed
    assert "api:*" in listed
    shown = invoke(url, "limits", "show", "warehouse").output
    assert "1 in use, 1 waiting" in shown
    assert str(run_id) in shown
    assert json.loads(invoke(url, "limits", "show", "warehouse", "--json").output)["used"] == 1
    assert "is deleted" in invoke(url, "limits", "delete", "warehouse").output
    assert invoke(url, "limits", "delete", "warehouse").exit_code != 0
    assert invoke(url, "limits", "set", "--concurrency", "1").exit_code == 2
    assert invoke(url, "limits", "set", "empty").exit_code != 0


def test_a_graph_is_triggered_shown_retried_and_canceled(queue_db, url, tmp_path):
    job = {"queue": "q", "task": "t"}
    graph = {
        "name": "daily",
        "jobs": [
            job | {"key": "load", "lock_key": "load"},
            job | {"key": "report", "lock_key": "report", "after": [{"job": "load", "on": "ended"}]},
        ],
    }
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(graph), encoding="utf-8")

    made = json.loads(invoke(url, "graphs", "trigger", str(file), "--json").output)
    shown = invoke(url, "graphs", "show", made["graph_id"])
    listed = invoke(url, "graphs", "--name", "dai")
    canceled = invoke(url, "graphs", "cancel", made["graph_id"])
    retried = invoke(url, "graphs", "retry", made["graph_id"])
    from_stdin = invoke(url, "graphs", "trigger", "-", input_text=json.dumps(graph))

    assert shown.exit_code == 0, shown.output
    assert "Graph daily" in shown.output
    assert "report  waiting" in shown.output
    assert f"{made['graph_id']}  waiting" in listed.output
    assert "after load ended" in shown.output
    assert "2 jobs canceled." in canceled.output
    assert "2 jobs queued again." in retried.output
    assert "is created: 2 jobs." in from_stdin.output
    assert invoke(url, "graphs", "show", "not-an-id").exit_code != 0
