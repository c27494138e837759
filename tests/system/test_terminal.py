"""`dataloader serve` as a newcomer has it: in a terminal, with the embedded server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import eventually, free_port
from tests.support.running import QUICK, Jobs, alive, ask, servers_of
from tests.support.terminal import Terminal


@pytest.fixture
def env(home: Path) -> Mapping[str, str]:
    settings = {**QUICK, "DL_DATA_DIR": str(home), "APP_PORT": str(free_port())}
    del settings["DL_LOG_FORMAT"]
    return settings


def dsn_in(home: Path) -> str:
    return f"host={home / 'postgres' / 'run'} port=5432 user=dataloader dbname=postgres"


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_ctrl_c_ends_everything_without_a_word_too_many(command, env, home: Path):
    with Terminal.dataloader(command, env=env) as terminal:
        terminal.until("listener.listening")
        assert servers_of(home)

        terminal.ctrl_c()

        assert terminal.wait() == 0
        assert "Traceback" not in terminal.shown
        assert "Aborted" not in terminal.shown
        assert terminal.shown.count("pool.started") == 1
        assert terminal.shown.count("pool.stopped") == 1
        assert servers_of(home) == []


def test_ctrl_c_before_it_is_ready_leaves_nothing_half_started(env, home: Path):
    with Terminal.dataloader("serve", env=env) as terminal:
        eventually(lambda: servers_of(home), message=lambda: terminal.shown)

        terminal.ctrl_c()

        assert terminal.wait() == 0
        assert "Traceback" not in terminal.shown
        assert servers_of(home) == []


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_closed_window_ends_everything(command, env, home: Path, tmp_path: Path):
    with Terminal.dataloader(command, env=env) as terminal:
        terminal.until("listener.listening")
        jobs = Jobs(dsn_in(home), tmp_path)
        jobs.insert("test.until")
        jobs.until_began(1)
        (worker,) = {line["pid"] for line in jobs.traced("began")}

        terminal.close()

        assert terminal.wait() == 0
        assert not alive(worker)
        assert jobs.traced("stopped: shutdown")
        assert servers_of(home) == []


def test_what_was_queued_yesterday_is_found_today(env, home: Path, tmp_path: Path):
    with Terminal.dataloader("serve", "--no-workers", env=env) as terminal:
        terminal.until("Ctrl-C stops everything.")
        Jobs(dsn_in(home), tmp_path).insert(seconds=0)
        terminal.ctrl_c()
        assert terminal.wait() == 0

    with Terminal.dataloader("serve", env=env) as terminal:
        terminal.until("listener.listening")
        eventually(lambda: ask(dsn_in(home), "SELECT status::text FROM dl_jobs") == [("succeeded",)])
        terminal.ctrl_c()
        assert terminal.wait() == 0
