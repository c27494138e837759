from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dataloader.app.cli.banner import serve_banner, service_address, worker_banner
from dataloader.app.cli.invocation import dataloader_command, python_command
from dataloader.app.config import Settings, load_settings
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.runtime.database import describe_outage
from dataloader.app.runtime.startup import Startup, last_error


def settings(**environ: str) -> Settings:
    return load_settings(environ, dotenv=None)


READY = Startup("embedded PostgreSQL 18 in .data", None, {}, frozenset({"noop", "load.cbr.rates"}))


def test_the_banner_says_what_runs_where_and_what_to_try():
    result = serve_banner(settings(), READY, workers=True)

    assert "http://127.0.0.1:8081" in result
    assert "/docs" in result
    assert "embedded PostgreSQL 18 in .data" in result
    assert "etl.default × 2 threads" in result
    assert f"  {dataloader_command()} trigger noop --arg sleep1=1 --watch\n" in result
    assert result.count("curl") == 4


def test_the_suggested_command_finds_a_service_that_is_elsewhere():
    result = serve_banner(settings(APP_PORT="9000", APP_HOST="0.0.0.0"), READY, workers=True)

    assert "--watch --url http://127.0.0.1:9000" in result


def test_the_suggested_job_is_in_a_queue_that_is_served():
    queues = '[{"queue":"etl.heavy","concurrency":1},{"queue":"etl.light","concurrency":1}]'

    result = serve_banner(settings(WORKERS_JSON=queues), READY, workers=True)

    assert "trigger noop --queue etl.heavy --arg sleep1=1 --watch" in result
    assert """ -d '{"queue": "etl.heavy", "task": "noop",""" in result
    assert "etl.default" not in result


@pytest.mark.parametrize(
    ("tasks", "workers", "environ"),
    [
        ({"load.orders"}, True, {}),  # DL_PIPELINES names other packages than ours
        ({"noop"}, False, {}),  # serve --no-workers
        ({"noop"}, True, {"WORKERS_JSON": "[]"}),
    ],
)
def test_no_job_is_suggested_that_nothing_here_would_run(tasks, workers, environ):
    result = serve_banner(settings(**environ), Startup("db", None, {}, frozenset(tasks)), workers=workers)

    assert f"  {dataloader_command()} tasks" in result
    assert f"  {dataloader_command()} trigger" not in result
    assert "curl" not in result
    if not workers:
        assert f"run `{dataloader_command()} worker`" in result


def test_the_banner_names_the_time_zone_and_its_setting():
    assert "  times    Europe/Moscow (TIMEZONE)\n" in serve_banner(settings(), READY, workers=True)
    assert "  times    UTC (TIMEZONE)\n" in worker_banner(settings(TIMEZONE="UTC"), READY)


AWAY = "waiting for the database at db:5432: Connection refused"


def test_banner_of_outage_says_what_is_missing_and_not_ready():
    served = serve_banner(settings(), Startup("host=db", AWAY), workers=True)
    working = worker_banner(settings(), Startup("host=db", AWAY))

    for shown in (served, working):
        assert f"not ready: {AWAY}" in shown
        assert "is ready at" not in shown
        assert "dataloader works" not in shown
        assert "trigger" not in shown


def test_banner_lists_broken_modules_with_first_line_of_error():
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1\n    x\nValueError: first\nsecond\n'
    startup = Startup("db", None, {"acme.orders": trace})

    for shown in (serve_banner(settings(), startup, workers=True), worker_banner(settings(), startup)):
        assert "1 module;" in shown
        assert "    acme.orders: ValueError: first\n" in shown
        assert "second" not in shown
    assert last_error("SyntaxError: invalid syntax") == "SyntaxError: invalid syntax"


@pytest.mark.parametrize(
    ("error", "dsn", "shown"),
    [
        (
            'connection to server at "127.0.0.1", port 1 failed: Connection refused\n\tIs the server running?',
            "postgresql://u:secret@127.0.0.1:1/shop",
            "waiting for the database at 127.0.0.1:1: Connection refused",
        ),
        (
            'connection to server at "::1", port 5432 failed: FATAL:  password authentication failed for user "u"',
            "host=::1 user=u password=secret",
            'waiting for the database at ::1:5432: password authentication failed for user "u"',
        ),
        (
            'connection to server at "10.0.0.1", port 5432 failed: FATAL:  database "my shop" does not exist',
            "postgresql://u:secret@db/my%20shop",
            "database 'my shop' does not exist at db:5432: create it with: createdb -h db -U u 'my shop'",
        ),
        ("timeout", "host=a,b port=1,2", "waiting for the database at a:1, b:2: timeout"),
        ("", "no dsn", "waiting for the database at the local socket:5432: no answer"),
    ],
)
def test_outage_names_place_and_remedy_and_no_password(error, dsn, shown):
    assert describe_outage(str(DatabaseUnavailable(error)), dsn) == shown


def test_suggested_command_can_be_pasted(tmp_path, monkeypatch):
    for folder in (Path.cwd(), tmp_path):
        monkeypatch.chdir(folder)
        done = subprocess.run(
            ["sh", "-c", f"{dataloader_command()} --version"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.startswith("dataloader "), done.stderr


def test_suggested_command_is_relative_to_folder_or_plain_name(tmp_path, monkeypatch):
    bin_ = tmp_path / "my venv" / "bin"
    bin_.mkdir(parents=True)
    for name in ("python", "dataloader"):
        (bin_ / name).write_text("#!/bin/sh\n")
        (bin_ / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bin_ / "python"))
    monkeypatch.chdir(tmp_path)
    assert dataloader_command() == "'my venv/bin/dataloader'"

    monkeypatch.setenv("PATH", str(bin_))
    assert (dataloader_command(), python_command()) == ("dataloader", "python")

    (bin_ / "dataloader").unlink()
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert dataloader_command() == f"{shlex.quote(str(bin_ / 'python'))} -m dataloader"


def test_a_worker_names_its_queues():
    result = worker_banner(
        settings(WORKERS_JSON='[{"queue":"a","concurrency":1},{"queue":"b","concurrency":3}]'), Startup("host=db")
    )

    assert "a × 1 thread, b × 3 threads" in result
    assert "host=db" in result
    assert "names no queue" in worker_banner(settings(WORKERS_JSON="[]"), Startup("host=db"))


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
    assert service_address(host, 1) == url
