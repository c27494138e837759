"""A rotated log file that several processes may share."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import sys
from contextlib import suppress
from datetime import datetime, tzinfo
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path

KEEP_FILES = 10
_WEEK_OFFSET_SEC = 3 * 86_400  # the epoch was a Thursday; weeks begin on Monday
_BUFFER_BYTES = 1024**2  # a line up to this size is one write, which other processes' lines do not interrupt

_log = logging.getLogger(__name__)


class RotatingFileHandler(WatchedFileHandler):
    """Rotates the file at a size, or when a period in the given time zone is over.

    The process that finds a rotation due renames the file under a lock; the others notice that it was moved. A line
    that cannot be written is lost, and the loss is logged once on the other handlers; `emit` never raises.
    """

    def __init__(self, path: Path, *, max_bytes: int | None, every_sec: int | None, zone: tzinfo) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", delay=True)
        self._path = Path(self.baseFilename)
        self._max_bytes, self._every_sec, self._zone = max_bytes, every_sec, zone
        self._opened_by_pid = 0
        self._lost_count = 0

    def _open(self) -> TextIOWrapper:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._opened_by_pid = os.getpid()

        def opener(path: str, flags: int) -> int:
            return os.open(path, flags, 0o640)

        stream = open(  # noqa: SIM115 - closed with the handler
            self._path, "a", buffering=_BUFFER_BYTES, encoding=self.encoding, errors=self.errors, opener=opener
        )
        if self._lost_count and stream.seekable() and not _ends_with_newline(self._path):
            stream.write("\n")  # a full disk has cut the last line
        return stream

    def emit(self, record: logging.LogRecord) -> None:
        lost_before = self._lost_count
        try:
            self._prepare(record.created)
        except Exception:  # a log may lose a line, but never stop a job
            self.handleError(record)
            return
        logging.StreamHandler.emit(self, record)
        if lost_before and self._lost_count == lost_before:
            self._lost_count = 0
            _log.warning("log file %s is written again, %d lines are missing", self._path, lost_before)

    def _prepare(self, now: float) -> None:
        """Open the file that the path names now, rotated if that is due."""
        if self._opened_by_pid != os.getpid():
            self._close_stream()  # a forked child needs a descriptor of its own: a lock belongs to a descriptor
        self.reopenIfNeeded()
        if self.stream is None:
            self.stream = self._open()
        file = self.stream.fileno()
        if self._is_rotation_due(os.fstat(file), now):
            self._rotate(file)

    def _is_rotation_due(self, status: os.stat_result, now: float) -> bool:
        """Judge by the file's size and time of change, so that restarts and other processes count."""
        if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
            return False
        if self._max_bytes is not None and status.st_size >= self._max_bytes:
            return True
        return self._every_sec is not None and self._period_index(now) > self._period_index(status.st_mtime)

    def _period_index(self, timestamp: float) -> int:
        offset = datetime.fromtimestamp(timestamp, self._zone).utcoffset()
        local = timestamp + (offset.total_seconds() if offset else 0)
        return int((local + _WEEK_OFFSET_SEC) // (self._every_sec or 1))

    def _rotate(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another process rotates it; the next line goes to the new file
        status = os.fstat(file)
        if os.path.exists(self._path) and os.path.samestat(status, self._path.stat()):
            self._path.rename(self._rotated_path(status.st_mtime))
            self._delete_oldest()
        self._close_stream()
        self.stream = self._open()

    def _rotated_path(self, changed_at: float) -> Path:
        last = datetime.fromtimestamp(changed_at, self._zone)
        path = first = self._path.with_name(f"{self._path.name}.{last:%Y%m%d-%H%M%S}")
        number = 0
        while os.path.exists(path):
            number += 1
            path = first.with_name(f"{first.name}.{number}")
        return path

    def _delete_oldest(self) -> None:
        pattern = re.compile(re.escape(self._path.name) + r"\.\d{8}-\d{6}(\.\d+)?")
        rotated = [path for path in self._path.parent.iterdir() if pattern.fullmatch(path.name)]
        rotated.sort(key=lambda path: (path.stat().st_mtime_ns, len(path.name), path.name))
        for path in rotated[:-KEEP_FILES]:
            path.unlink(missing_ok=True)

    def _close_stream(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError):  # what could not be written before cannot be written now
                stream.close()

    def handleError(self, record: logging.LogRecord) -> None:
        self._close_stream()
        self._lost_count += 1
        if self._lost_count == 1:
            _log.warning("log file %s cannot be written, lines go missing: %s", self._path, sys.exc_info()[1])


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
