"""A log file that is put aside in time, may be shared by processes, and is never in a job's way."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import stat
import sys
from contextlib import suppress
from datetime import datetime, tzinfo
from pathlib import Path

_WEEK_OFFSET = 3 * 86_400  # the epoch was a Thursday; weeks begin on Monday
_NOT_OPEN = -1

_log = logging.getLogger(__name__)


class RotatingFile(logging.Handler):
    """Appends lines; puts the file aside at a size, or when a period in the given zone is over.

    Several processes may write to one file: each line is one append, whoever finds the file full puts it aside
    under a lock, and the others notice that it was moved, as they do when logrotate did it. A disk that cannot
    be written costs lines, which is told once on the other handlers; it never raises.
    """

    def __init__(
        self, path: Path, *, max_bytes: int | None, every_sec: int | None, keep_files: int, zone: tzinfo
    ) -> None:
        super().__init__()
        self._path = path.absolute()  # the process may change its folder later
        self._max_bytes = max_bytes
        self._every_sec = every_sec
        self._keep_files = keep_files
        self._zone = zone
        self._file = _NOT_OPEN
        self._opened_by = 0
        self._torn = False  # the last line was cut short by a full disk
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
            self._follow_the_path()
            if self._is_due(record.created, len(line)):
                self._put_aside()
            self._append(line)
        except Exception:  # a log may cost a line, never a job
            self.handleError(record)
        else:
            self._tell_recovery()

    def _follow_the_path(self) -> None:
        """Have the file open that the path names now, in this process."""
        if self._file != _NOT_OPEN and self._opened_by == os.getpid() and self._is_at_the_path():
            return
        self._close_file()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        # A lock is shared with a forked child, so that each process needs a descriptor of its own.
        self._opened_by = os.getpid()

    def _is_at_the_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except OSError:
            return False

    def _is_due(self, now: float, more: int) -> bool:
        """The file itself knows its size and its last line's time, so that restarts and other processes count."""
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode) or found.st_size == 0:
            return False
        if self._max_bytes is not None and found.st_size + more > self._max_bytes:
            return True
        return self._every_sec is not None and self._period(now) > self._period(found.st_mtime)

    def _period(self, moment: float) -> int:
        offset = datetime.fromtimestamp(moment, self._zone).utcoffset()
        local = moment + (offset.total_seconds() if offset else 0)
        return int((local + _WEEK_OFFSET) // (self._every_sec or 1))

    def _put_aside(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another process is at it; the next line will find the new file
        if self._is_at_the_path():
            self._path.rename(self._name_aside())
            self._drop_the_oldest()
        self._follow_the_path()

    def _name_aside(self) -> Path:
        last = datetime.fromtimestamp(os.fstat(self._file).st_mtime, self._zone)
        name, number = self._path.with_name(f"{self._path.name}.{last:%Y%m%d-%H%M%S}"), 0
        free = name
        while free.exists():
            number += 1
            free = name.with_name(f"{name.name}.{number}")
        return free

    def _drop_the_oldest(self) -> None:
        ours = re.compile(re.escape(self._path.name) + r"\.\d{8}-\d{6}(\.\d+)?")
        aside = [path for path in self._path.parent.iterdir() if ours.fullmatch(path.name)]
        aside.sort(key=lambda path: (path.stat().st_mtime_ns, len(path.name), path.name))
        for path in aside[: -self._keep_files]:
            path.unlink(missing_ok=True)

    def _append(self, line: bytes) -> None:
        whole = b"\n" + line if self._torn else line
        written = os.write(self._file, whole)
        self._torn = written < len(whole)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def handleError(self, record: logging.LogRecord) -> None:
        self._lost += 1
        if self._lost == 1:
            # Said through this handler too, where it is lost in turn, and silently.
            _log.warning("log file %s cannot be written, lines go missing: %s", self._path, sys.exc_info()[1])

    def _tell_recovery(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            _log.warning("log file %s is written again, %d lines are missing", self._path, lost)

    def close(self) -> None:
        self.acquire()
        try:
            self._close_file()
        finally:
            self.release()
        super().close()

    def _close_file(self) -> None:
        if self._file != _NOT_OPEN:
            with suppress(OSError):
                os.close(self._file)
            self._file = _NOT_OPEN
