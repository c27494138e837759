"""The commands against the real API on real PostgreSQL: the stand-in of the other tests is only as good as this."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from werkzeug.serving import make_server

from dataloader import Client
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.support import free_port


@contextmanager
def serving(dsn: str) -> Iterator[str]:
    """The address of the real API, on this database."""
    pool = Pool(dsn)
    server = make_server(
        "127.0.0.1", 0, create_app(JobQueue(pool), Pipelines(), WebOptions(version="0")), threaded=True
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
        pool.close()


@pytest.fixture
def service(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(dsn) as url:
        monkeypatch.setenv("DL_URL", url)
        yield url


def test_a_job_goes_through_all_commands(run, service):
    triggered = json.loads(run("trigger", "noop", "--arg", "sleep1=1", "--available-at", "in 1h", "--json").stdout)
    job_id = triggered["job_id"]

    assert "status     queued" in run("status", job_id).stdout
    assert run("jobs", "--queue", "etl.default", "--status", "queued").stdout.splitlines()[1].startswith(job_id)
    assert "is canceled" in run("cancel", job_id).stdout
    assert run("status", job_id, "--watch").exit_code == 1
    assert "is queued again" in run("retry", job_id).stdout
    kinds = [event["kind"] for event in json.loads(run("events", job_id, "--json").stdout)["events"]]
    assert kinds[:2] == ["queued", "canceled"]
    assert len(kinds) == 3


def test_one_key_makes_one_job(run, service):
    first, second = (json.loads(run("trigger", "noop", "--idempotency-key", "once", "--json").stdout) for _ in range(2))
    other = run("trigger", "other", "--idempotency-key", "once", "--json")

    assert first == second
    assert other.exit_code == 4
    assert json.loads(other.stderr)["code"] == "idempotency_conflict"


def test_refusals_of_the_service_have_their_exit_codes(run, service):
    job_id = json.loads(run("trigger", "noop", "--json").stdout)["job_id"]
    invalid = run("trigger", "noop", "--lease-ttl", "1", "--queue", " ")

    assert run("retry", job_id).exit_code == 4
    assert run("status", str(uuid4())).exit_code == 3
    assert run("events", str(uuid4())).exit_code == 3
    assert invalid.exit_code == 4
    assert "--queue: is empty" in invalid.stderr
    assert "  --lease-ttl: " in invalid.stderr


def test_a_database_that_is_away_is_69(run):
    with serving(f"host=127.0.0.1 port={free_port()} dbname=etl") as url:
        shown = run("jobs", "--retry-timeout", "0", "--url", url)

    assert shown.exit_code == 69
    assert "503" in shown.stderr


def test_delete_of_ended_parent_of_open_graph_is_refused(run, service):
    job = {"queue": "etl.default", "task": "noop"}
    jobs = [
        {**job, "key": "a", "lock_key": "a"},
        {**job, "key": "b", "lock_key": "b", "after": [{"job": "a", "on": "ended"}]},
    ]
    ids = Client(service).request("POST", "/api/v1/graphs", body={"jobs": jobs})["jobs"]
    run("cancel", ids["a"])

    refused = run("delete", ids["a"])

    assert refused.exit_code == ExitCode.REFUSED
    assert "is open" in refused.stderr
    run("cancel", ids["b"])
    assert "is deleted" in run("delete", ids["a"]).stdout
