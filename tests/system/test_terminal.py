"""`dataloader serve` as a newcomer has it: in a terminal, with the embedded server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import eventually, free_port
from tests.support.real_service import (
    FAST_SETTINGS,
    ServiceJobs,
    is_alive,
    postgres_pids_of,
    query_rows,
    wait_for_end_of_postgres,
)
from tests.support.terminal import Terminal


@pytest.fixture
def env(home: Path) -> Mapping[str, str]:
    settings = {**FAST_SETTINGS, "DL_DATA_DIR": str(home), "APP_PORT": str(free_port())}
    del settings["DL_LOG_FORMAT"]
    return settings


def dsn_in(home: Path) -> str:
    return f"host={home / 'postgres' / 'run'} port=5432 user=dataloader dbname=postgres"


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_ctrl_c_ends_everything_without_noise(command, env, home: Path):
    with Terminal.dataloader(command, env=env) as terminal:
        terminal.wait_for("listener.connected")
        assert postgres_pids_of(home)

        terminal.ctrl_c()

        assert terminal.wait() == 0
        assert "Traceback" not in terminal.output
        assert "Aborted" not in terminal.output
        assert terminal.output.count("pool.started") == 1
        assert terminal.output.count("pool.stopped") == 1
        wait_for_end_of_postgres(home)


def test_ctrl_c_before_it_is_ready_leaves_nothing_half_started(env, home: Path):
    with Terminal.dataloader("serve", env=env) as terminal:
        eventually(lambda: postgres_pids_of(home), message=lambda: terminal.output)

        terminal.ctrl_c()

        assert terminal.wait() == 0
        assert "Traceback" not in terminal.output
        wait_for_end_of_postgres(home)


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_closed_window_ends_everything(command, env, home: Path, tmp_path: Path):
    with Terminal.dataloader(command, env=env) as terminal:
        terminal.wait_for("listener.connected")
        jobs = ServiceJobs(dsn_in(home), tmp_path)
        jobs.insert("test.until")
        jobs.wait_for_starts(1)
        (worker,) = {line["pid"] for line in jobs.trace_entries("began")}

        terminal.close()

        assert terminal.wait() == 0
        assert not is_alive(worker)
        assert jobs.trace_entries("stopped: shutdown")
        wait_for_end_of_postgres(home)


def test_what_was_queued_yesterday_is_found_today(env, home: Path, tmp_path: Path):
    with Terminal.dataloader("serve", "--no-workers", env=env) as terminal:
        terminal.wait_for("Ctrl-C stops everything.")
        ServiceJobs(dsn_in(home), tmp_path).insert(seconds=0)
        terminal.ctrl_c()
        assert terminal.wait() == 0

    with Terminal.dataloader("serve", env=env) as terminal:
        terminal.wait_for("listener.connected")
        eventually(lambda: query_rows(dsn_in(home), "SELECT status::text FROM dl_jobs") == [("succeeded",)])
        terminal.ctrl_c()
        assert terminal.wait() == 0
