"""Who uses the server just now, as locks on files: the kernel lets go of them even for a process that is killed."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import EmbeddedServerError


class Share:
    """One user's share in the server. Shares are counted by the kernel, a child of fork() has its parent's."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def give_up(self) -> bool:
        """Give the share back. True: nobody else has one. Ask only while holding the turn."""
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

    def leave_to_parent(self) -> None:
        """In a forked child: the share is over when the parent ends, however it ends."""
        os.close(self._fd)


@contextmanager
def turn(path: Path, *, patience_sec: float) -> Iterator[None]:
    """Start and stop one at a time."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for(fd, path, patience_sec)
        yield
    finally:
        os.close(fd)


def _wait_for(fd: int, path: Path, patience_sec: float) -> None:
    deadline = time.monotonic() + patience_sec
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"another process has been starting or stopping the server for over {patience_sec:.0f} s; "
                    f"see who has {path} open (`fuser {path}`), end it, and start again"
                ) from None
            time.sleep(0.02)
        else:
            return
