from __future__ import annotations

import pytest

from app.cli.banner import address, serve_banner, worker_banner
from app.config import Settings


def settings(**environ: str) -> Settings:
    return Settings.load(environ, dotenv=None)


def test_the_banner_says_what_runs_where_and_what_to_try():
    told = serve_banner(settings(), "embedded PostgreSQL 18 in .data", workers=True)

    assert "http://127.0.0.1:8081" in told
    assert "/docs" in told
    assert "embedded PostgreSQL 18 in .data" in told
    assert "etl.default × 2 threads" in told
    assert "dataloader trigger noop --arg sleep1=1 --watch\n" in told
    assert told.count("curl") == 4


def test_the_suggested_command_finds_a_service_that_is_elsewhere():
    told = serve_banner(settings(APP_PORT="9000", APP_HOST="0.0.0.0"), "db", workers=False)

    assert "--watch --url http://127.0.0.1:9000" in told
    assert "dataloader worker" in told


def test_a_worker_names_its_queues():
    told = worker_banner(
        settings(WORKERS_JSON='[{"queue":"a","concurrency":1},{"queue":"b","concurrency":3}]'), "host=db"
    )

    assert "a × 1 thread, b × 3 threads" in told
    assert "host=db" in told
    assert "names no queue" in worker_banner(settings(WORKERS_JSON="[]"), "host=db")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://127.0.0.1:1"),
        ("::1", "http://[::1]:1"),
        ("etl.example", "http://etl.example:1"),
    ],
)
def test_an_address_to_listen_on_becomes_one_to_visit(host, url):
    assert address(host, 1) == url
