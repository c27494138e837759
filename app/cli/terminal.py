"""Where a task that runs in the foreground is shown, and from where it is stopped."""

from __future__ import annotations

import os
import queue
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, Self
from uuid import UUID

from dataloader.app.cli import text
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.workers.logs.writer import sanitize_line


class Terminal:
    """Prints what the task prints to the same stream, and everything else to standard error.

    Within its block the first Ctrl-C or SIGTERM requests a stop, the second one ends the process.
    """

    def __init__(self) -> None:
        self._out, self._err = sys.stdout, sys.stderr  # before a capture replaces them
        self._progress: Mapping[str, Any] = {}
        self.is_stop_requested = False
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._former = {number: signal.signal(number, self._record) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _record(self, number: int, _frame: FrameType | None) -> None:
        self._signals.put(number)

    def wait_for_stop(self, seconds: float) -> bool:
        """Return whether the first signal arrived within this time."""
        try:
            self._signals.get(timeout=seconds)
        except queue.Empty:
            return False
        if self.is_stop_requested:
            os._exit(ExitCode.INTERRUPTED)  # other workers reap its job when the lease expires
        self.is_stop_requested = True
        self.print_notice("Stopping at the next safe point; Ctrl-C again leaves at once.")
        return True

    def write_log_line(self, job_id: UUID, attempt: int, level: str, stream: str, line: str) -> None:
        head = "" if stream in ("stdout", "stderr") else f"{level:<8} "
        self._write(self._out if stream == "stdout" else self._err, head + sanitize_line(line))

    def show_progress(self, progress: Mapping[str, Any]) -> None:
        if progress and progress != self._progress:
            self._progress = dict(progress)
            self.print_notice(f"         {text.format_progress(progress)}")

    def print_notice(self, line: str) -> None:
        self._write(self._err, line)

    @staticmethod
    def _write(stream: Any, line: str) -> None:
        with suppress(OSError, ValueError):  # a terminal that was closed
            stream.write(f"{line}\n")
            stream.flush()
