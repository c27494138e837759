"""What needs no Ray to be shown of its executor."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from pipelines.executors.ray import stoppable
from tests.support.waiting import eventually
from tests.workers.offloads.offload_fixture import program

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """As Ray starts it."""
    shells: list[subprocess.Popen[str]] = []

    def start_shell(entrypoint: str, **env: str) -> subprocess.Popen[str]:
        shells.append(_shell(entrypoint, env))
        return shells[-1]

    yield start_shell
    for shell in shells:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)


def _shell(entrypoint: str, env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["/bin/sh", "-c", stoppable(entrypoint)], start_new_session=True, env={**os.environ, **env},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_stop_of_the_shell_alone_ends_its_program(start: Start, tmp_path: Path):
    """Ray sends no signal to a process that the shell has started since it looked for them."""
    shell = start(f"cd / && {program('gate', tmp_path)}", RAY_JOB_STOP_WAIT_TIME_S="1")
    eventually((tmp_path / "beats").exists)

    shell.terminate()

    output, _ = shell.communicate(timeout=20)  # ends when no process has the pipe any more
    assert output == "begun\n"


@pytest.mark.parametrize(
    ("entrypoint", "ended"),
    [("exit 3", (3, "")), ("A='b c'; echo \"$A\" # d", (0, "b c\n"))],
)
def test_command_line_ends_as_it_would_by_itself(start: Start, entrypoint: str, ended: tuple[int, str]):
    shell = start(entrypoint)

    output, _ = shell.communicate(timeout=20)

    assert (shell.returncode, output) == ended
