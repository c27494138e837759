"""The embedded server comes back by itself when it is gone, and stays away when its service has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from dataloader import Client
from tests.support import Process, eventually
from tests.support.real_service import RunningService, ServiceStarter, postgres_pids_of, wait_for_end_of_postgres

DEADLINE_SEC = 90


def server_of(home: Path) -> int:
    """The one server; a process that it has just made bears its name for a moment."""
    eventually(lambda: len(postgres_pids_of(home)) == 1, DEADLINE_SEC, lambda: str(postgres_pids_of(home)))
    return postgres_pids_of(home)[0]


def succeeds(running: RunningService, key: str) -> None:
    client = Client(f"http://127.0.0.1:{running.port}", retry_timeout_sec=DEADLINE_SEC)
    job = client.trigger("noop", {"sleep1": 0}, queue="q", lock_key=key, idempotency_key=key)["job_id"]
    eventually(
        lambda: running.get(f"/api/v1/jobs/{job}/status")[1].get("status") == "succeeded",
        DEADLINE_SEC,
        lambda: running.process.text,
    )


def until_back(running: RunningService, home: Path, former: int) -> None:
    eventually(lambda: postgres_pids_of(home) not in ([], [former]), DEADLINE_SEC, lambda: running.process.text)
    eventually(lambda: running.get("/status")[0] == 200, DEADLINE_SEC, lambda: running.process.text)


def test_killed_embedded_server_is_started_again(start: Callable[..., Process], home: Path):
    running = ServiceStarter(start, None)("serve", DL_DATA_DIR=str(home)).wait_until_ready()
    pid = server_of(home)
    os.kill(pid, signal.SIGKILL)

    until_back(running, home, pid)
    succeeds(running, "after-kill")
    assert "postgres.restarted" in running.process.text

    pid = server_of(home)
    os.kill(pid, signal.SIGINT)  # as `pg_ctl stop -m fast` does
    until_back(running, home, pid)
    succeeds(running, "after-stop")

    assert running.stop() == 0
    wait_for_end_of_postgres(home)


def test_two_sharers_start_killed_server_once(start: Callable[..., Process], home: Path):
    one = ServiceStarter(start, None)("serve", DL_DATA_DIR=str(home)).wait_until_ready()
    other = ServiceStarter(start, None)("worker", DL_DATA_DIR=str(home)).wait_until_ready()
    pid = server_of(home)
    os.kill(pid, signal.SIGKILL)

    until_back(one, home, pid)
    succeeds(one, "shared")
    server_of(home)
    assert one.stop() == 0
    server_of(home)
    assert other.stop() == 0
    wait_for_end_of_postgres(home)


def test_server_that_cannot_start_is_tried_with_pauses(start: Callable[..., Process], home: Path):
    running = ServiceStarter(start, None)("serve", DL_DATA_DIR=str(home)).wait_until_ready()
    pid = server_of(home)
    control = home / "postgres/cluster/global/pg_control"
    hidden = control.with_name("hidden")
    psutil.Process(pid).suspend()  # so that nothing looks at the cluster meanwhile
    control.rename(hidden)
    os.kill(pid, signal.SIGKILL)

    running.process.wait_for_line("postgres.unavailable", DEADLINE_SEC)
    assert running.process.exit_code is None
    assert running.get("/health")[0] == 200
    assert running.get("/status")[0] == 503

    hidden.rename(control)
    until_back(running, home, pid)
    assert running.stop() == 0
