"""A process group of an attempt: the watchdog that leads it, and the program that the watchdog runs.

`SpawnedProcess` starts a fresh watchdog and program; `fork_server.py` has those that are forked.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

_WATCHDOG = str(Path(__file__).with_name("watchdog.py"))
UNKNOWN_EXIT = (255, 0)


def encode_deadline(lease_ends_at: float) -> bytes:
    """The end of the lease, as a watchdog reads it."""
    return b"%.3f\n" % lease_ends_at


def open_watchdog_channel(lease_ends_at: float) -> tuple[socket.socket, socket.socket]:
    """Return the worker's end and the watchdog's, which finds the end of the lease there: a worker process that is
    frozen while it starts a program cannot send it later."""
    ours, theirs = socket.socketpair()
    ours.send(encode_deadline(lease_ends_at))
    return ours, theirs


class WatchedProcess(ABC):
    """The watchdog, seen from the thread that started it."""

    pid: int  # of the watchdog, and so of the process group
    program: str
    watchdog: socket.socket  # to the watchdog
    stdout: int  # descriptors to read from
    stderr: int

    @abstractmethod
    def has_exited(self) -> bool:
        """Whether the watchdog has ended."""

    @abstractmethod
    def wait_exited(self) -> None:
        """Wait until it has."""

    @abstractmethod
    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the group, if it is still there."""

    @abstractmethod
    def collect(self) -> tuple[int, int]:
        """Kill what is left of the group; return the watchdog's exit code and peak memory. Its number may then be
        another's."""

    @abstractmethod
    def close(self) -> None:
        """Close the descriptors."""


class SpawnedProcess(WatchedProcess):
    """A child of this process."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        lease_ends_at: float,
        descriptors: Sequence[int] = (),
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start the program with these descriptors. Raises OSError or ValueError."""
        self.program = argv[0]
        with ExitStack() as undo:
            self.watchdog, theirs = open_watchdog_channel(lease_ends_at)
            undo.enter_context(self.watchdog)
            with theirs:
                self._popen = subprocess.Popen(
                    [sys.executable, "-I", "-S", _WATCHDOG, str(theirs.fileno()), *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(theirs.fileno(), *descriptors),
                    cwd=cwd,
                    env=env,
                    start_new_session=True,
                )
            undo.enter_context(self._popen)  # closes its pipes
            self._resources = undo.pop_all()
        assert self._popen.stdout is not None and self._popen.stderr is not None  # noqa: S101, PT018 - pipes
        self.pid, self.stdout, self.stderr = self._popen.pid, self._popen.stdout.fileno(), self._popen.stderr.fileno()

    def has_exited(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # other code of this process has waited for it
            return True

    def wait_exited(self) -> None:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def collect(self) -> tuple[int, int]:
        self.signal_group(signal.SIGKILL)  # the leader is not reaped yet, so the group's number is not reused
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            self._popen.returncode = UNKNOWN_EXIT[0]
            return UNKNOWN_EXIT
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        return self._popen.returncode, usage.ru_maxrss

    def close(self) -> None:
        self._resources.close()
