"""Gunicorn as a company's own set-up runs it, without our command line: `wsgi:app` of a checkout, `dataloader.wsgi:app`
of an installed wheel."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dataloader.app.db.schema import migrate
from tests.support import Process, eventually, free_port
from tests.support.real_service import (
    FAST_SETTINGS,
    RunningService,
    ServiceJobs,
    postgres_pids_of,
    wait_for_end_of_postgres,
)

Gunicorn = Callable[..., RunningService]


@pytest.fixture
def gunicorn(tmp_path: Path) -> Iterator[Gunicorn]:
    with ExitStack() as running:

        def started(*options: str, **env: str) -> RunningService:
            port = free_port()
            process = Process(
                [sys.executable, "-m", "gunicorn", *options, "wsgi:app"],
                output=tmp_path / "gunicorn.log",
                env={**FAST_SETTINGS, "APP_PORT": str(port), **env},
            )
            return RunningService(running.enter_context(process), port, "serve")

        yield started


def test_it_serves_and_works_on_the_database_it_is_given(gunicorn: Gunicorn, dsn: str, tmp_path: Path):
    migrate(dsn)
    running = gunicorn(DL_DB_DSN=dsn).wait_until_ready()
    jobs = ServiceJobs(dsn, tmp_path)
    (job,) = jobs.insert()
    eventually(lambda: running.get(f"/api/v1/jobs/{job}/status")[1]["status"] == "succeeded")
    jobs.insert("test.until", 2)
    jobs.wait_for_starts(3)

    assert running.stop() == 0
    assert running.check_clean_exit(), running.process.text
    assert len(running.log_lines("pool.started")) == len(running.log_lines("pool.stopped")) == 1
    assert jobs.status_counts() == {"succeeded": 1, "queued": 2}
    jobs.check_invariants()


def test_installed_wheel_serves_and_works(wheel_python: Path, dsn: str, tmp_path: Path):
    migrate(dsn)
    port = free_port()
    config = ("--config", "python:dataloader.gunicorn_conf")
    with Process(
        [wheel_python, "-m", "gunicorn", *config, "dataloader.wsgi:app"],
        output=tmp_path / "gunicorn.log",
        env={**FAST_SETTINGS, "DL_PIPELINES": "dataloader.pipelines", "APP_PORT": str(port), "DL_DB_DSN": dsn},
        cwd=tmp_path,
    ) as process:
        running = RunningService(process, port, "serve").wait_until_ready()
        (job,) = ServiceJobs(dsn, tmp_path).insert("noop")
        eventually(lambda: running.get(f"/api/v1/jobs/{job}/status")[1]["status"] == "succeeded")

        assert running.stop() == 0
        assert running.check_clean_exit(), process.text
        assert len(running.log_lines("pool.stopped")) == 1


def test_name_for_several_worker_processes_is_refused(gunicorn: Gunicorn, dsn: str):
    refused = gunicorn("--workers", "2", DL_DB_DSN=dsn, DL_WORKER_NAME="etl-0", DL_AUTH="none")
    assert refused.process.wait() == 78
    assert "DL_WORKER_NAME" in refused.process.text


def test_without_dsn_gunicorn_runs_an_embedded_server(gunicorn: Gunicorn, run_folder: Path):
    home = run_folder / "gunicorns-home"
    home.mkdir()
    home.chmod(0o755)
    running = gunicorn(DL_DATA_DIR=str(home)).wait_until_ready()
    assert len(postgres_pids_of(home)) == 1

    running.process.signal(signal.SIGTERM)

    assert running.process.wait() == 0
    wait_for_end_of_postgres(home)


def test_ctrl_c_hands_running_jobs_back(gunicorn: Gunicorn, dsn: str, tmp_path: Path):
    migrate(dsn)
    running = gunicorn(DL_DB_DSN=dsn, DL_SHUTDOWN_GRACE_SEC="600").wait_until_ready()
    jobs = ServiceJobs(dsn, tmp_path)
    jobs.insert("test.until", 2)
    jobs.wait_for_starts(2)

    for pid in (running.worker_pid, running.process.pid):  # a terminal sends it to the whole group
        os.kill(pid, signal.SIGINT)

    assert running.process.wait() == 0
    assert "Traceback" not in running.process.text
    assert jobs.status_counts() == {"queued": 2}
    jobs.check_invariants()


def test_invalid_setting_is_reported_without_stack_trace(gunicorn: Gunicorn):
    running = gunicorn(APP_HTTP_THREADS="many")

    assert running.process.wait() == 78
    assert "APP_HTTP_THREADS" in running.process.text
    assert "Traceback" not in running.process.text
