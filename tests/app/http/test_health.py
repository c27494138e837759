"""Is it there, what is it, is it ready."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import migrate
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines


def test_health_does_not_touch_the_database(app_without_database, broken):
    response = app_without_database(broken(AssertionError("asked"))).get("/health")

    assert response.status_code == 200
    assert response.json == {"status": "healthy"}


def test_health_is_quick_while_the_database_is_away(app_without_database):
    client = app_without_database()
    client.get("/status")

    def seconds() -> float:
        began = time.perf_counter()
        client.get("/health")
        return time.perf_counter() - began

    assert min(seconds() for _ in range(5)) < 0.02


def test_info_says_which_service_this_is(app_without_database):
    response = app_without_database(environment="test").get("/info")

    assert response.json == {"service": "dataloader", "version": "1.2.3", "environment": "test"}
    assert list(response.json) == ["service", "version", "environment"]


def test_a_service_with_all_its_parts_is_ready(client):
    response = client.get("/status")

    assert response.status_code == 200, response.text
    assert response.json["ready"] is True
    assert response.json["database"]["ready"] is True
    assert response.json["database"]["round_trip_ms"] > 0
    assert response.json["schema"]["version"] == response.json["schema"]["required_version"]
    assert response.json["pool"]["size"] == 4
    assert response.json["workers"] is None


@pytest.mark.parametrize(("probe", "status"), [({"threads": 2}, 200), ({"ready": True}, 200), ({"ready": False}, 503)])
def test_the_worker_pool_has_its_say(queue, pool, probe, status):
    client: Any = create_app(queue, Pipelines(), WebOptions(version="1"), probe=lambda: probe, pool=pool).test_client()

    response = client.get("/status")

    assert response.status_code == status
    assert response.json["workers"] == {"ready": True, **probe}


def test_a_worker_pool_that_cannot_say_how_it_is_is_not_ready(queue, pool):
    def probe() -> dict[str, object]:
        raise RuntimeError("s3cret")

    client: Any = create_app(queue, Pipelines(), WebOptions(version="1"), probe=probe, pool=pool).test_client()

    response = client.get("/status")

    assert response.status_code == 503
    assert response.json["workers"] == {
        "ready": False,
        "detail": "the worker pool's state is unknown: RuntimeError",
    }


def test_without_a_database_it_is_not_ready_and_says_so(app_without_database):
    response = app_without_database().get("/status")

    assert response.status_code == 503
    assert response.content_type == "application/problem+json"
    assert response.json["code"] == "not_ready"
    assert response.json["ready"] is False
    assert response.json["database"] == {"ready": False, "detail": "unavailable", "round_trip_ms": None}
    assert response.json["schema"] is None


@pytest.mark.parametrize(
    ("change", "found", "result"),
    [
        ("UPDATE dl_schema SET version = 0", 0, "dataloader migrate"),
        ("DELETE FROM dl_schema", None, "dataloader migrate"),
        ("UPDATE dl_schema SET version = 9999, serves_from = 9998", 9999, "upgrade dataloader"),
        ("DROP TABLE dl_schema", None, "dataloader migrate"),
    ],
)
def test_other_schema_version_is_not_ready_and_names_remedy(databases, change, found, result):
    with databases.fresh() as dsn:
        migrate(dsn)
        _execute(dsn, change)
        pool = Pool(dsn)
        client: Any = create_app(JobQueue(pool), Pipelines(), WebOptions(version="1"), pool=pool).test_client()
        response = client.get("/status")
        pool.close()

    assert response.status_code == 503
    assert response.json["database"]["ready"] is True
    assert response.json["schema"]["ready"] is False
    assert response.json["schema"]["version"] == found
    assert result in response.json["schema"]["detail"]


def test_read_only_database_is_not_ready_and_is_logged_once(databases, captured):
    with databases.fresh() as dsn:
        migrate(dsn)
        name = psycopg2.extensions.parse_dsn(dsn)["dbname"]
        _execute(dsn, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        pool = Pool(dsn, recycle_sec=0.0)
        options = WebOptions(version="1", status_timeout_sec=60)
        client: Any = create_app(JobQueue(pool), Pipelines(), options, pool=pool).test_client()

        statuses = [client.get("/status") for _ in range(2)]
        probes = [client.get("/health/ready") for _ in range(2)]
        connection = psycopg2.connect(dsn, options="-c default_transaction_read_only=off")
        with closing(connection), connection, connection.cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        after = client.get("/health/ready")
        pool.close()

    reason = "the database takes no writes: default_transaction_read_only is on (source: database)"
    assert [(response.status_code, response.json["database"]["detail"]) for response in statuses] == [(503, reason)] * 2
    assert [(response.status_code, response.json["detail"]) for response in probes] == [
        (503, f"database: {reason}")
    ] * 2
    assert after.status_code == 200
    lines = [record.getMessage() for record in captured.records if record.getMessage().startswith("status.")]
    assert lines == ["status.database_unavailable", "status.database_available"]


def test_unreachable_database_is_logged_once(app_without_database, captured):
    client = app_without_database()

    probes = [client.get("/health/ready") for _ in range(3)]

    assert [(probe.status_code, probe.json["detail"]) for probe in probes] == [(503, "database: unavailable")] * 3
    lines = [record.getMessage() for record in captured.records if record.getMessage().startswith("status.")]
    assert lines == ["status.database_unavailable"]


def test_silent_database_times_out():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never says a word
        port = silent.getsockname()[1]
        pool = Pool(f"host=127.0.0.1 port={port} user=x dbname=x", connect_timeout_sec=60)
        options = WebOptions(version="1", status_timeout_sec=0.2)
        client: Any = create_app(JobQueue(pool), Pipelines(), options, pool=pool).test_client()

        began = time.monotonic()
        responses = [client.get("/status") for _ in range(3)]
        scrape = client.get("/metrics")
        seconds = time.monotonic() - began

        assert [response.status_code for response in responses] == [503] * 3
        assert responses[0].json["database"]["detail"] == "no answer within 0.2 s"
        assert scrape.status_code == 200
        assert seconds < 20


def _execute(dsn: str, statement: str) -> None:
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
    finally:
        connection.close()


def test_status_while_starting_is_no_error_in_the_log(queue, pool, captured):
    answers = [{"ready": False, "detail": "the worker pool is starting"}] * 3 + [{"ready": True}, {"ready": False}]
    client: Any = create_app(
        queue, Pipelines(), WebOptions(version="1"), probe=lambda: answers.pop(0), pool=pool
    ).test_client()

    starting = [client.get(path) for path in ("/status", "/health/started", "/health/ready")]
    ready, gone = client.get("/status"), client.get("/status")

    assert [response.status_code for response in starting] == [503, 503, 503]
    assert starting[0].json["state"] == "starting"
    assert (ready.json["state"], gone.status_code, gone.json["state"]) == ("ready", 503, "not_ready")
    assert [record.getMessage() for record in captured.records if record.levelno > logging.INFO] == []
