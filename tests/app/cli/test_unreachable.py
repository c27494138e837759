"""A database that does not answer: doctor names host, port and remedy, and reads speak of reads."""

from __future__ import annotations

import json

import pytest

from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.support.processes import free_port


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch, tmp_path, port: int) -> str:
    monkeypatch.chdir(tmp_path)
    dsn = f"postgresql://u:hunter2@127.0.0.1:{port}/db"
    monkeypatch.setenv("DL_DB_DSN", dsn)
    return dsn


def test_doctor_of_unreachable_database_is_one_finding(run, away, port):
    shown = run("doctor")

    assert shown.exit_code == ExitCode.UNAVAILABLE
    assert f"127.0.0.1 port {port} does not answer" in shown.stdout
    assert "refused" in shown.stdout
    assert "Is the server running" not in shown.stdout, "the remedy asks that"
    assert f"pg_isready -h 127.0.0.1 -p {port}" in shown.stdout
    assert "hunter2" not in shown.output


def test_doctor_of_unreachable_database_as_json(run, away, port):
    found = json.loads(run("doctor", "--json").stdout)

    (finding,) = found["findings"]
    assert (found["worst"], finding["check"], finding["severity"]) == ("error", "database", "error")
    assert (finding["facts"]["host"], finding["facts"]["port"]) == ("127.0.0.1", str(port))
    assert finding["remedy"]


def test_read_without_database_speaks_of_no_idempotency_key(away):
    pool = Pool(away, size=1, overflow=0)
    client = create_app(
        JobQueue(pool), Pipelines(), WebOptions(version="1", auth_disabled=True), pool=pool
    ).test_client()

    read = client.get("/api/v1/jobs")
    write = client.post("/api/v1/jobs/trigger", json={"queue": "q", "task": "t", "lock_key": "k"})
    pool.close()

    assert read.status_code == write.status_code == 503
    assert "idempotency" not in read.get_json()["detail"]
    assert "nothing was read" in read.get_json()["detail"]
    assert "idempotency" in write.get_json()["detail"]


def test_absent_service_names_both_ways_to_its_address(run, port):
    shown = run("jobs", "--url", f"http://127.0.0.1:{port}", "--retry-timeout", "0")

    assert shown.exit_code == ExitCode.UNAVAILABLE
    assert f"cannot connect to http://127.0.0.1:{port}" in shown.stderr
    assert "`dataloader serve`" in shown.stderr
    assert "--url or DL_URL" in shown.stderr


def test_migrate_without_database_says_what_to_correct(run, away):
    shown = run("migrate")

    assert shown.exit_code == ExitCode.UNAVAILABLE
    assert "correct DL_DB_DSN or PG_HOST" in shown.stderr
    assert "hunter2" not in shown.output
