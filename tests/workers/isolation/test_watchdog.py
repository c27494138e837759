"""The watchdog of a process, without a worker."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys

import psutil  # type: ignore[import-untyped]
import pytest

from dataloader.pipelines.portable import clock
from dataloader.workers.isolation import watchdog
from dataloader.workers.isolation.processes import open_watchdog_channel
from tests.support import eventually
from tests.support.real_service import is_alive


def start_watchdog(*argv: str, lease_sec: float = 60) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = open_watchdog_channel(clock() + lease_sec)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, watchdog.__file__, str(theirs.fileno()), *argv], pass_fds=[theirs.fileno()],
            start_new_session=True, stdout=subprocess.PIPE,
        )  # fmt: skip
    return process, ours


def ends(process: subprocess.Popen[bytes], ours: socket.socket) -> tuple[bytes, int]:
    with ours, process:
        output = ours.recv(100)
        process.communicate(timeout=20)
        return output, process.returncode


@pytest.mark.parametrize(
    ("code", "output"),
    [("import sys; sys.exit(7)", b"exit 7 "), ("import os; os.kill(os.getpid(), 11)", b"exit -11 ")],
)
def test_watchdog_reports_exit_code_and_memory(code: str, output: bytes):
    logged, returned = ends(*start_watchdog(sys.executable, "-c", code))

    assert logged.startswith(output)
    assert returned == 0


def test_watchdog_reports_why_a_program_did_not_start():
    assert ends(*start_watchdog("/nowhere/legacy"))[0] == b"error %d\n" % errno.ENOENT


@pytest.mark.parametrize(("lease_sec", "output"), [(60, b"started"), (-0.001, b"")])
def test_watchdog_starts_nothing_after_the_lease(lease_sec: float, output: bytes):
    """What it starts writes before anything could kill it, and has ended by itself."""
    code = "import os, sys; from dataloader.workers.isolation.watchdog import watch\n"
    code += "watch(int(sys.argv[1]), lambda: os.write(1, b'started') and os.spawnlp(os.P_NOWAIT, 'true', 'true'))"
    ours, theirs = open_watchdog_channel(clock() + lease_sec)
    with ours, theirs:
        argv = [sys.executable, "-c", code, str(theirs.fileno())]
        process = subprocess.run(
            argv, pass_fds=[theirs.fileno()], start_new_session=True, stdout=subprocess.PIPE, timeout=20, check=False
        )

    assert process.stdout == output
    assert process.returncode == (0 if output else -signal.SIGKILL)


def test_watchdog_kills_the_group_at_the_end_of_the_lease():
    """Without a word from the worker, which may be frozen since the start."""
    process, ours = start_watchdog("sleep", "60", lease_sec=2)
    with ours:
        process.communicate(timeout=20)

    assert process.returncode == -signal.SIGKILL


def test_watchdog_ignores_termination_signals():
    process, ours = start_watchdog(
        sys.executable, "-c",
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print(1, flush=True)\ntime.sleep(60)",
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGTERM)

    assert ends(process, ours)[0].startswith(b"exit 5 ")


def test_watchdog_kills_the_group_when_its_socket_closes():
    process, ours = start_watchdog(sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)")
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        (program,) = psutil.Process(process.pid).children()
        ours.close()
        eventually(lambda: not is_alive(program.pid))

        assert process.wait(20) == -signal.SIGKILL
