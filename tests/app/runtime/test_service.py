from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from http import HTTPStatus
from importlib import metadata
from pathlib import Path

import pytest
from psycopg2.extensions import parse_dsn

from dataloader import _distribution as distribution
from dataloader.app.config import load_settings
from dataloader.app.db import schema
from dataloader.app.db.connection import AsyncConnection
from dataloader.app.errors import ConfigError, EmbeddedServerError
from dataloader.app.features.doctor import facts
from dataloader.app.log import tear_down
from dataloader.app.runtime import service as services
from dataloader.app.runtime.service import Service, set_up_logging
from dataloader.app.runtime.worker import ProbeEndpoints
from dataloader.pipelines import contract
from tests.support import PrivateServer, eventually
from tests.support.databases import execute_sql, query_value

Made = Callable[..., Service]


@pytest.fixture
def made() -> Iterator[Made]:
    """Services of one queue no one uses, ended with the test."""
    all_of_them: list[Service] = []

    def make(*, workers: bool = True, **given: str) -> Service:
        settings = {
            "DL_PIPELINES": "dataloader.pipelines.noop",
            "DL_SHUTDOWN_GRACE_SEC": "0",
            "DL_HEARTBEAT_SEC": "0.5",
        }
        all_of_them.append(Service(load_settings({**settings, **given}, dotenv=None), workers=workers))
        return all_of_them[-1]

    yield make
    for service in all_of_them:
        service.stop()
        service.close()


def test_building_it_connects_to_nothing(made: Made, run_folder: Path):
    service = made(DL_DATA_DIR=str(run_folder / "untouched"))

    assert service.app.test_client().get("/health").status_code == 200
    assert service.probe() == {"ready": False, "detail": "the worker pool is starting"}
    assert service.failure is None
    assert not (run_folder / "untouched").exists()


def test_drivers_are_left_as_they_are_by_a_setting():
    code = (
        "import psycopg2; from dataloader.app.config import load_settings;"
        " from dataloader.app.runtime.service import Service;"
        " settings = {'DL_PIPELINES': 'dataloader.pipelines.noop', 'DL_WRAP_DRIVERS': 'false'};"
        " Service(load_settings(settings, dotenv=None)).pipeline_failures;"
        " print(hasattr(psycopg2.connect, '__wrapped__'))"
    )

    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).strip() == "False"


def test_interpreter_that_is_missing_is_a_configuration_error(made: Made, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(contract.registry, "_tasks", {})
    tasks = '{"old": {"call": "app.loads:rates", "python": "/nowhere/bin/python"}}'

    with pytest.raises(ConfigError, match="DL_TASKS: found '/nowhere/bin/python' of task 'old', which cannot be"):
        _ = made(DL_TASKS=tasks).pipeline_failures
    assert made(DL_TASKS=tasks, workers=False).pipeline_failures == {}


def test_workers_on_a_read_only_database_are_not_ready(made: Made, dsn: str):
    schema.migrate(dsn)
    execute_sql(dsn, f'ALTER DATABASE "{parse_dsn(dsn)["dbname"]}" SET default_transaction_read_only = on')
    service = made(DL_DB_DSN=dsn)
    probes = ProbeEndpoints(service.probe, [])

    service.start()

    reason = b"default_transaction_read_only is on (source: database)"
    eventually(lambda: reason in probes.respond("/health/ready")[2])
    assert probes.respond("/health/ready")[0] == HTTPStatus.SERVICE_UNAVAILABLE


def test_connection_that_breaks_at_the_start_is_no_pooler(
    made: Made, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    schema.migrate(dsn)
    prepare, cut = facts._set_session_state, list[int]()

    def cut_the_second(client: AsyncConnection, number: int, timeout_sec: float) -> int:
        pid = prepare(client, number, timeout_sec)
        if number and not cut:
            cut.append(pid)
            execute_sql(dsn, f"SELECT pg_terminate_backend({pid}, 5000)")
        return pid

    monkeypatch.setattr(facts, "_set_session_state", cut_the_second)
    service = made(DL_DB_DSN=dsn)

    service.start()

    eventually(lambda: service.probe()["ready"], message="jobs can start")
    assert cut
    assert "worker.pooler_refused" not in caplog.text


def test_it_works_until_it_is_stopped(made: Made, dsn: str):
    schema.migrate(dsn)
    service = made(DL_DB_DSN=dsn)

    service.start()

    eventually(lambda: service.probe()["ready"])
    assert service.probe()["broken_modules"] == []
    assert service.app.test_client().get("/status").status_code == 200
    assert service.failure is None
    service.stop_now()
    assert service.stop()
    assert service.stop(), "twice does no harm"
    assert not service.probe()["ready"]


def test_without_workers_only_the_tables_are_prepared(made: Made, empty_dsn: str):
    service = made(workers=False, DL_DB_DSN=empty_dsn)

    service.start()

    eventually(lambda: query_value(empty_dsn, "SELECT to_regclass('dl_schema') IS NOT NULL") == "True")
    answer = service.app.test_client().get("/status").json
    assert answer is not None
    assert answer["workers"] is None


def test_database_error_is_reported_and_survived(made: Made, server: PrivateServer, monkeypatch):
    monkeypatch.setattr(services, "_SCHEMA_RETRY_SEC", 0.02)
    server.stop()
    service = made(DL_DB_DSN=server.dsn)

    service.start()

    eventually(lambda: "starting" not in service.probe()["detail"])
    assert service.app.test_client().get("/status").status_code == 503
    server.start()
    schema.migrate(server.dsn)
    eventually(lambda: service.probe()["ready"])


def test_failed_embedded_server_is_an_unavailable_database(made: Made, run_folder: Path, monkeypatch):
    def refuse(self: object) -> str:
        raise EmbeddedServerError("no binaries here")

    monkeypatch.setattr("dataloader.app.postgres.EmbeddedServer.start", refuse)
    service = made(DL_DATA_DIR=str(run_folder / "no-server"))

    service.start()

    eventually(lambda: service.probe()["detail"] == "no binaries here")
    answer = service.app.test_client().get("/api/v1/jobs/4a0f9b52-6a41-4f8e-8d4c-7e9d8c1b2a3f/status")
    assert answer.status_code == 503


def test_a_bug_at_the_start_is_beyond_repair(made: Made, dsn: str, monkeypatch):
    schema.migrate(dsn)
    monkeypatch.setattr(services, "WorkerPool", None)
    service = made(DL_DB_DSN=dsn)

    service.start()

    eventually(lambda: service.failure)
    assert service.probe()["detail"] == service.failure
    assert service.stop()


def test_setting_warnings_are_logged_after_setup(caplog):
    settings = load_settings({"DL_DB_DSN": "host=here", "PG_HOST": "there"}, dotenv=None)
    assert settings.warnings

    try:
        with caplog.at_level(logging.WARNING):
            set_up_logging(settings)
    finally:
        tear_down()

    assert "settings.warning" in caplog.text


def test_a_version_is_always_known(monkeypatch):
    def lost(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert distribution.version()
    monkeypatch.setattr(metadata, "version", lost)
    assert distribution.version() == "0+unknown"


def test_follow_ups_have_the_lease_of_the_settings(made: Made):
    options = made(DL_DB_DSN="host=nowhere", DL_DEFAULT_LEASE_TTL_SEC="90").pool_options({"q": 1})

    assert options.attempts.follow_up_lease_sec == 90
