"""A service that is stopped just after it was started: real processes, at several moments of their start."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import Process, eventually, free_port
from tests.support.processes import ROOT
from tests.support.real_service import FAST_SETTINGS

COMMANDS = {
    "serve": [sys.executable, "-m", "app", "serve"],
    "worker": [sys.executable, "-m", "app", "worker"],
    "gunicorn": [sys.executable, "-m", "gunicorn", "wsgi:app"],
}
DELAYS_SEC = [0, 0.2, 0.6, 1.2]  # after the process has begun to handle the signal
HEAVY = {
    "click",
    "requests",
    "flask",
    "pydantic",
    "psycopg2",
    "gunicorn",
    "logging",
    "dataloader.app.cli",
    "dataloader.app.config",
}


def handles(pid: int, which: signal.Signals) -> bool:
    """Whether a process has a handler for a signal, as Linux knows it."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) & 1 << which - 1)


@pytest.mark.parametrize("command", COMMANDS)
def test_sigterm_during_start_ends_with_code_0(dsn: str, tmp_path: Path, command: str):
    with ExitStack() as stack, ThreadPoolExecutor(len(DELAYS_SEC)) as threads:

        def start(delay: float) -> Callable[[], int]:
            env = {**FAST_SETTINGS, "DL_DB_DSN": dsn, "APP_PORT": str(free_port())}
            process = stack.enter_context(Process(COMMANDS[command], env=env, output=tmp_path / f"after-{delay}"))

            def stop() -> int:
                eventually(lambda: handles(process.pid, signal.SIGTERM), 60, "a handler", interval_sec=0.01)
                time.sleep(delay)  # the moment is what is tried
                process.signal(signal.SIGTERM)
                return process.wait(60)

            return stop

        codes = [threads.submit(start(delay)) for delay in DELAYS_SEC]

        assert [code.result() for code in codes] == [0] * len(DELAYS_SEC)


def test_handlers_are_set_before_anything_large_is_imported():
    code = "import sys, dataloader.app.__main__; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert not HEAVY & set(loaded.stdout.split())


@pytest.mark.parametrize(
    ("command", "module"),
    [("serve", "click"), ("serve", "pydantic"), ("worker", "click"), ("worker", "pydantic"), ("gunicorn", "pydantic")],
)
def test_sigterm_during_imports_ends_with_code_0(tmp_path: Path, command: str, module: str):
    """A module that takes for ever is in place of the second in which all of them are imported."""
    (tmp_path / f"{module}.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(600)\n")
    env = {**FAST_SETTINGS, "DL_DB_DSN": "host=127.0.0.1 port=1", "PYTHONPATH": str(tmp_path)}

    with Process(COMMANDS[command], env=env, output=tmp_path / "output") as process:
        process.wait_for_line("importing")
        process.signal(signal.SIGTERM)

        assert process.wait(30) == 0


SIGTERM_AT_BIRTH = """
exec(open("gunicorn.conf.py").read())

def post_fork(server, worker):
    import os, pathlib, time
    os.kill(os.getppid(), signal.SIGTERM)
    until = time.monotonic() + 3
    while time.monotonic() < until:  # the arbiter sends it on: it is pending here, or lost
        status = pathlib.Path("/proc/self/status").read_text()
        pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:"))
        if int(pending.split()[1], 16) & 1 << signal.SIGTERM - 1:
            break
        time.sleep(0.02)
"""


def test_sigterm_to_a_newborn_gunicorn_worker_is_not_lost(dsn: str, tmp_path: Path):
    config = tmp_path / "config.py"
    config.write_text(SIGTERM_AT_BIRTH)
    command = [sys.executable, "-m", "gunicorn", "--config", str(config), "wsgi:app"]
    env = {**FAST_SETTINGS, "DL_DB_DSN": dsn, "APP_PORT": str(free_port())}

    with Process(command, env=env, output=tmp_path / "output") as process:
        assert process.wait(30) == 0


def test_sigterm_during_imports_ends_a_client_command(tmp_path: Path):
    """Only services have a clean stop: a command that was interrupted has not done its work."""
    (tmp_path / "click.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(600)\n")

    with Process.dataloader("jobs", env={"PYTHONPATH": str(tmp_path)}, output=tmp_path / "output") as process:
        process.wait_for_line("importing")
        process.signal(signal.SIGTERM)

        assert process.wait(30) == -signal.SIGTERM
