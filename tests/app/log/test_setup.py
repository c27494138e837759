"""Who says what where: the console and three files, set up once, taken down without a trace."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dataloader.app.log import LogOptions, audit, get, metric, set_up, tear_down

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def taken_down():
    yield
    tear_down()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_file_has_its_own_lines(tmp_path):
    out = io.StringIO()
    app, metrics, audits = tmp_path / "a" / "app.log", tmp_path / "metric.log", tmp_path / "audit.log"
    set_up(LogOptions(stream=out, file=app, metric_file=metrics, audit_file=audits))

    get("x").info("said")
    metric("job.finished", seconds=1.5)
    audit("job.cancel", who="operator", token="hunter2")

    assert [line["event"] for line in lines(app)] == ["said"]
    assert [(line["event"], line["seconds"]) for line in lines(metrics)] == [("job.finished", 1.5)]
    assert [(line["event"], line["who"], line["token"]) for line in lines(audits)] == [
        ("job.cancel", "operator", "***")
    ]
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["said"]


def test_without_path_metrics_and_audit_are_not_written(tmp_path):
    out = io.StringIO()
    set_up(LogOptions(stream=out))

    metric("job.finished")
    audit("job.cancel")

    assert out.getvalue() == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_made_by_its_first_line(tmp_path):
    set_up(LogOptions(stream=io.StringIO(), file=tmp_path / "app.log", audit_file=tmp_path / "audit.log"))
    assert list(tmp_path.iterdir()) == []

    get("x").info("said")
    assert [path.name for path in tmp_path.iterdir()] == ["app.log"]


def test_the_file_is_json_unless_text_was_asked_for(tmp_path):
    set_up(LogOptions(stream=io.StringIO(), format="text", file=tmp_path / "a", audit_file=tmp_path / "b"))
    get("x").info("said")
    audit("job.cancel")

    assert "INFO    x: said" in (tmp_path / "a").read_text()
    assert lines(tmp_path / "b")[0]["event"] == "job.cancel"


def test_a_second_set_up_replaces_the_first(tmp_path):
    first, second = io.StringIO(), io.StringIO()
    set_up(LogOptions(stream=first, metric_file=tmp_path / "metric.log"))
    set_up(LogOptions(stream=second))

    get("x").info("said")
    metric("job.finished")

    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_other_peoples_handlers_are_left_alone():
    theirs = logging.StreamHandler(io.StringIO())
    root = logging.getLogger()
    root.addHandler(theirs)
    try:
        set_up(LogOptions(stream=io.StringIO()))
        tear_down()
        assert theirs in root.handlers
    finally:
        root.removeHandler(theirs)


def test_standard_error_is_the_default(capsys):
    set_up(LogOptions())
    get("x").info("said")

    result = capsys.readouterr()
    assert result.out == ""
    assert json.loads(result.err)["event"] == "said"


def test_a_closed_terminal_harms_nothing(capsys):
    closed = io.StringIO()
    set_up(LogOptions(stream=closed))
    closed.close()

    get("x").info("said")

    assert capsys.readouterr().err == ""


def test_without_set_up_records_are_ordinary(caplog):
    with caplog.at_level(logging.INFO):
        get("x").info("said", count=3)
        audit("job.cancel", who="operator")

    output, audited = caplog.records
    assert (output.name, output.getMessage(), output.__dict__["fields"]) == ("x", "said", {"count": 3})
    assert (audited.name, audited.getMessage()) == ("dataloader.audit", "job.cancel")


def test_nothing_happens_at_import():
    code = (
        "import logging, threading, os\n"
        "before = len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else 0\n"
        "import dataloader.app.log, dataloader.app.config\n"
        "after = len(os.listdir('/proc/self/fd')) if before else 0\n"
        "assert after == before, 'a file was opened'\n"
        "assert logging.getLogger().handlers == [] and threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
