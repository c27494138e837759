"""A server of a test's own, to be stopped and killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from dataloader.app.postgres import EmbeddedServer
from tests.support.waiting import eventually


class PrivateServer:
    """An embedded server whose database has the schema. The DSN stays the same through every restart."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.embedded = server
        self.dsn = server.dsn

    @property
    def pid(self) -> int:
        """The pid of the server's main process."""
        pid = self.embedded.pid
        assert pid is not None, "the server does not run"
        return pid

    def stop(self) -> None:
        """As an operator does it: connections are closed, transactions rolled back, nothing lost."""
        self.embedded.stop()

    def start(self) -> None:
        assert self.embedded.start() == self.dsn

    def restart(self) -> None:
        """A fast stop, and a start."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """An immediate stop: every connection breaks without a word, the next start recovers from the log."""
        self._kill_with(signal.SIGQUIT)

    def kill(self) -> None:
        """kill -9 of the main process, as the kernel does it when memory runs out."""
        self._kill_with(signal.SIGKILL)

    def _kill_with(self, signal_number: signal.Signals) -> None:
        os.kill(self.pid, signal_number)
        eventually(lambda: self.embedded.pid is None, message="the server is gone")
        self.embedded.stop()  # gives up the share: the server itself is gone


def copy_data_dir(data_dir: Path, target_dir: Path) -> Path:
    """Copy a stopped server's data folder with the owners of its files; `into` is there, and empty."""
    target_dir.chmod(0o755)  # as root the server has another account, which must get there
    subprocess.run(["cp", "-a", data_dir / "cluster", target_dir], check=True)
    return target_dir
