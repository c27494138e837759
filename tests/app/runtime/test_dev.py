"""`dataloader dev`: what it watches, and a real process that is edited."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dataloader.app.config import load_settings
from dataloader.app.queue.job import Status
from dataloader.app.runtime.dev import find_syntax_errors, scan, watched_packages
from tests.support import Process, eventually, free_port
from tests.support.processes import ROOT
from tests.support.queue_fixture import QueueFixture

TASK = "from dataloader import Context, register\n\n\n@register('dev.task')\ndef run(args, ctx: Context):\n    "


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "acme_dev"
    made.mkdir()
    (made / "__init__.py").touch()
    (made / "tasks.py").write_text(TASK + "return 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return made


def test_packages_of_all_tasks_are_watched():
    tasks = '{"a": "acme.loads:rates", "b": {"call": "legacy:f", "python": "/x"}, "c": {"call": "more:f"}}'
    tasks = tasks[:-1] + ', "d": {"command": ["x"]}}'

    settings = {"DL_PIPELINES": "dataloader.pipelines.noop,acme", "DL_TASKS": tasks}

    assert watched_packages(load_settings(settings, dotenv=None)) == [
        "dataloader.pipelines", "acme", "more",
    ]  # fmt: skip


def test_edit_of_a_shipped_pipeline_is_seen():
    watched = scan(load_settings({"DL_PIPELINES": "dataloader.pipelines"}, dotenv=None))

    assert {"noop.py", "cbr_rates.py"} <= {path.name for path in watched}
    assert "settings.py" not in {path.name for path in watched}


def test_changes_of_files_are_seen(package: Path):
    settings = load_settings({"DL_PIPELINES": "acme_dev,not_there_yet"}, dotenv=None)
    before = scan(settings)
    (package / "new.sql").write_text("SELECT 1", encoding="utf-8")
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__/x.py").touch()
    (package / "notes.txt").touch()
    os.utime(package / "tasks.py", ns=(1, 1))
    (package / "__init__.py").unlink()
    after = scan(settings)

    assert {path.name for path in {*before, *after} if before.get(path) != after.get(path)} == {
        "new.sql", "tasks.py", "__init__.py",
    }  # fmt: skip


def test_files_that_cannot_be_compiled_are_named(package: Path):
    (package / "bad.py").write_text("def f(:\n", encoding="utf-8")
    (package / "null.py").write_bytes(b"a = '\0'")

    errors = find_syntax_errors([*package.glob("*.py"), package / "removed.py", package / "x.sql"])

    assert {path.name for path in errors} == {"bad.py", "null.py"}
    assert "bad.py" in errors[package / "bad.py"]


@pytest.mark.full
def test_an_edit_restarts_the_service_and_gives_jobs_back(package: Path, dsn: str, tmp_path: Path):
    queue, source = QueueFixture(dsn), package / "tasks.py"
    source.write_text(TASK + "ctx.sleep(600)\n", encoding="utf-8")
    environment = {
        "DL_DB_DSN": dsn, "APP_PORT": str(free_port()), "DL_PIPELINES": "acme_dev", "PYTHONPATH": str(ROOT),
        "WORKERS_JSON": '[{"queue": "q", "concurrency": 1}]', "DL_AUTH": "none", "DL_HEARTBEAT_SEC": "1",
    }  # fmt: skip
    job_id = queue.enqueue("k", queue="q", task="dev.task")
    try:
        with Process.dataloader("dev", output=tmp_path / "out", env=environment, cwd=tmp_path) as process:
            eventually(lambda: queue.job(job_id).status is Status.RUNNING)
            source.write_text(TASK + "return 'second'\n", encoding="utf-8")
            process.wait_for_line("dev: acme_dev/tasks.py changed; restarting.")
            eventually(lambda: queue.job(job_id).status is Status.SUCCEEDED)

            source.write_text(TASK + "return (\n", encoding="utf-8")
            process.wait_for_line("The service continues without this change")
            still_works = queue.enqueue("k", queue="q", task="dev.task")
            eventually(lambda: queue.job(still_works).status is Status.SUCCEEDED)
            source.write_text(TASK + "return 'fourth'\n", encoding="utf-8")
            eventually(lambda: process.text.count("restarting.") == 2)
            mended = queue.enqueue("k", queue="q", task="dev.task")
            eventually(lambda: queue.job(mended).status is Status.SUCCEEDED)
            process.signal(signal.SIGTERM)
            code = process.wait()
        results = [(queue.job(one).result, queue.job(one).attempt) for one in (job_id, still_works, mended)]
    finally:
        queue.close()

    assert code == 0, process.text
    assert results == [("second", 1), ("second", 1), ("fourth", 1)]
    assert "was never closed" in process.text
