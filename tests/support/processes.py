"""Real processes: started, listened to, signalled, and reaped by their pid."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil  # type: ignore[import-untyped]

from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
SETTING_PREFIXES = (
    "PG_",
    "PG",
    "DL_",
    "APP_",
    "WORKERS_",
    "LOG_",
    "METRIC_",
    "AUDIT_",
    "TIMEZONE",
    "ENVIRONMENT",
    "DEBUG",
)


def free_port() -> int:
    """Return a free TCP port of the loopback."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return different free TCP ports of the loopback."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


class Process:
    """A process in a session of its own, whose output is kept in a file.

        with Process.dataloader("serve", env={"DL_DB_DSN": dsn, "APP_PORT": str(port)}, output=tmp_path / "out") as p:
            p.wait_for("ready")
            p.signal(signal.SIGTERM)
            assert p.wait() == 0

    Leaving the block kills whatever is left of it, its children included.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        output: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        user: str | int | None = None,
    ) -> None:
        self.output = output
        with output.open("ab") as file:
            self._popen = subprocess.Popen(
                [str(word) for word in argv],
                env={**clean_environment(), **(env or {})},
                cwd=cwd,
                user=user,
                extra_groups=[] if user is not None else None,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @classmethod
    def dataloader(cls, *args: str, output: Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> Process:
        """`python -m app …`, with no setting but those of `env`."""
        return cls([sys.executable, "-m", "app", *args], output=output, env=env, cwd=cwd)

    @classmethod
    def python(cls, code: str, *args: str, output: Path, env: Mapping[str, str] | None = None) -> Process:
        """A few lines of Python in a process of their own."""
        return cls([sys.executable, "-c", code, *args], output=output, env=env)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def text(self) -> str:
        """The output so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    def wait_for_line(self, text: str, timeout: float = 60) -> str:
        """The first line with these words; AssertionError when it ends or the time is up without saying them."""

        def matching_line() -> str | None:
            over = self.exit_code is not None
            line = next((line for line in self.lines if text in line), None)
            assert line is not None or not over, f"ended with {self.exit_code} before {text!r}:\n{self.text}"
            return line

        found = eventually(matching_line, timeout, lambda: f"{text!r} in the output:\n{self.text}")
        assert found is not None
        return found

    def wait_for_port(self, port: int, timeout: float = 60) -> None:
        """Until something listens on the port of the loopback."""

        def is_listening() -> bool:
            assert self.exit_code is None, f"ended with {self.exit_code} before it listened:\n{self.text}"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(is_listening, timeout, lambda: f"a listener on port {port}:\n{self.text}")

    def signal(self, signal_number: signal.Signals) -> None:
        self._popen.send_signal(signal_number)

    def wait(self, timeout: float = 60) -> int:
        """Its exit code (negative: the signal that killed it)."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s:\n{self.text}") from None

    def kill(self) -> None:
        """SIGKILL to it and to its process group; wait until all of them have ended, and their ports with them."""
        members = _group_members(self.pid)
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._popen.kill()
        self._popen.wait(30)
        eventually(lambda: all(map(_has_ended, members)), 30, f"the processes of group {self.pid} have ended")

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _group_members(group: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group:
                members.append(process)
    return members


def _has_ended(process: psutil.Process) -> bool:
    """Whether its last thread has: the first may be a zombie while another still holds the ports."""
    try:
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return is_zombie and len(os.listdir(f"/proc/{process.pid}/task")) == 1
    except (psutil.NoSuchProcess, FileNotFoundError):
        return True


def clean_environment() -> dict[str, str]:
    """Our environment without any setting of dataloader's or libpq's."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTING_PREFIXES)}
