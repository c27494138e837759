"""`doctor --cells` asks real HTTP services; it needs no database."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from app.cli.exit_codes import ExitCode
from tests.app.cli.fake_service import Answer, Standin
from tests.support.processes import free_port

SetCells = Callable[..., None]


@pytest.fixture
def set_cells(monkeypatch: pytest.MonkeyPatch, tmp_path) -> SetCells:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DL_DB_DSN", f"postgresql://u@127.0.0.1:{free_port()}/away")

    def setting(**cells: Any) -> None:
        monkeypatch.setenv("DL_CELLS", json.dumps(cells))

    return setting


def overview(version: str = "1.0") -> Answer:
    figures = {"version": version, "schema_version": 8, "environment": "test", "at": datetime.now(UTC).isoformat()}
    counts = dict.fromkeys(("problems", "running", "ready", "waiting", "succeeded", "failed", "workers", "threads"), 0)
    return Answer(body={**figures, **counts, "cells": ["north", "south"], "oldest_ready_sec": None})


def test_doctor_of_equal_cells_ends_with_success(run, service: Standin, set_cells, monkeypatch):
    monkeypatch.setenv("DL_SECRET_SOUTH", "dlk_x")
    set_cells(north=service.url, south={"url": service.url, "key": {"$secret": "south"}})
    service.unruly.extend([overview(), overview()])

    shown = run("doctor", "--cells", "--all")

    assert shown.exit_code == ExitCode.OK, shown.output
    assert "one map: north, south" in shown.stdout
    assert {asked.key for asked in service.asked} == {None, "Bearer dlk_x"}


def test_doctor_of_cells_with_two_versions_is_a_warning(run, service: Standin, set_cells):
    set_cells(north=service.url, south=service.url)
    service.unruly.extend([overview(), overview("1.1")])

    shown = run("doctor", "--cells", "--json")

    found = json.loads(shown.stdout)
    assert shown.exit_code == ExitCode.WARNINGS
    assert [f["check"] for f in found["findings"] if f["severity"] == "warning"] == ["cell_versions"]


def test_doctor_of_an_unavailable_cell_is_an_error(run, service: Standin, set_cells):
    set_cells(north=service.url, south=f"http://127.0.0.1:{free_port()}")
    service.unruly.append(overview())

    shown = run("doctor", "--cells")

    assert shown.exit_code == ExitCode.FAILURE
    assert "cell south at http://127.0.0.1:" in shown.stdout
    assert "is unavailable" in shown.stdout


def test_doctor_without_cells_names_the_setting(run, set_cells):
    set_cells()

    shown = run("doctor", "--cells")

    assert shown.exit_code == ExitCode.FAILURE
    assert "set DL_CELLS" in shown.stdout
