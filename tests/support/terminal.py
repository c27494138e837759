"""A terminal with a command in it, as a person has it: what it shows, Ctrl-C, closing the window."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

from tests.support.processes import ROOT, clean_environment
from tests.support.waiting import eventually


class Terminal:
    """Killed with its whole session at the end of a `with`."""

    def __init__(self, *argv: str, env: Mapping[str, str], cwd: Path = ROOT) -> None:
        self._output = b""
        self._code: int | None = None
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            try:
                signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a suite under nohup has it ignored
                os.chdir(cwd)
                os.execvpe(argv[0], argv, {**clean_environment(), "TERM": "xterm", **env})  # noqa: S606
            finally:
                os._exit(127)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))

    @classmethod
    def dataloader(cls, *args: str, env: Mapping[str, str]) -> Terminal:
        return cls(sys.executable, "-m", "app", *args, env=env)

    @property
    def output(self) -> str:
        self._read()
        return self._output.decode(errors="replace")

    def wait_for(self, text: str, timeout: float = 60) -> None:
        eventually(lambda: text in self.output, timeout, lambda: f"{text!r} in {self.output}")

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def ctrl_c(self) -> None:
        os.write(self._fd, b"\x03")

    def close(self) -> None:
        """Close the window."""
        self._read()
        os.close(self._fd)
        self._fd = -1

    def wait(self, timeout: float = 60) -> int:
        """The exit code; negative: the signal that killed it."""
        eventually(self._has_ended, timeout, lambda: f"the end of {self.output}")
        assert self._code is not None
        return self._code

    def _has_ended(self) -> bool:
        self._read()
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
                self._read()
        return self._code is not None

    def _read(self) -> None:
        while self._fd >= 0 and select.select([self._fd], [], [], 0)[0]:
            try:
                more = os.read(self._fd, 65536)
            except OSError:  # the other side is closed
                return
            if not more:
                return
            self._output += more

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._has_ended():
            os.killpg(self._pid, 9)
            eventually(self._has_ended)
        if self._fd >= 0:
            os.close(self._fd)
