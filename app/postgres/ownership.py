"""Locks on files that show which processes use the server: the kernel releases them when a process is killed."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import EmbeddedServerError


class UsageLock:
    """A shared lock of a process that uses the server. A child of fork() shares its parent's."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def release(self) -> bool:
        """Release the lock. Return whether no other process has one. Call only inside `exclusive`."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # not left to close(): a forked child keeps the file open
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            os.close(self._fd)

    def detach(self) -> None:
        """Close the copy of a forked child, so that the lock ends with the parent."""
        os.close(self._fd)


@contextmanager
def exclusive(path: Path, *, timeout_sec: float) -> Iterator[None]:
    """Let one process at a time start or stop the server."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for_lock(fd, path, timeout_sec)
        yield
    finally:
        os.close(fd)


def _wait_for_lock(fd: int, path: Path, timeout_sec: float) -> None:
    deadline = time.monotonic() + timeout_sec
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"another process has been starting or stopping the server for over {timeout_sec:.0f} s; "
                    f"see who has {path} open (`fuser {path}`), end it, and start again"
                ) from None
            time.sleep(0.02)
        else:
            return
