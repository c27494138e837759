"""Writes the logs of jobs to the database about once a second.

A pipeline never waits here: lines that do not fit are dropped, and a note in the log counts them. Of an attempt that
writes too much, the beginning and the last lines are kept.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable, DataloaderError, InvalidJob
from dataloader.app.queue.job_records import LogEntry, LogPosition
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.wording import format_count
from dataloader.pipelines.json_values import sanitize_text
from dataloader.pipelines.portable import clock
from dataloader.workers.logs.capture import Capture, LogSink
from dataloader.workers.logs.records import LEVELS
from dataloader.workers.threads import BackgroundThread

_log = log.get(__name__)
_FLUSH_INTERVAL_SEC = 1.0
_IDLE_SEC = 60.0  # the first line wakes the thread
_BATCH = 2_000  # lines
_MAX_PENDING_LINES = 20_000
_MAX_PENDING_BYTES = 16_000_000
_MAX_LINE_BYTES = 8_192
_MAX_NAME_LENGTH = 200  # of a level or a stream
_MAX_SCANNED_LENGTH = 16_384  # characters of a line that are scanned for secrets
_BURST_SEC = 10  # this many seconds' worth of lines may come at once
_TAIL_LINES = 50  # the last lines of an attempt, kept although lines before them were dropped
_MAX_QUOTAS = 1_000
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")

POSITION_STREAM = "offload-position"
"""A line of it is stored nowhere: it names an offload, a run and the position behind the lines before it."""


@dataclass(frozen=True, kw_only=True)
class JobLogLimits:
    """How much of a job's log is kept."""

    max_bytes: int = 2_097_152  # of an attempt
    lines_per_sec: float = 200.0


class _Line(NamedTuple):
    key: tuple[UUID, int]  # job and attempt
    logged_at: float
    level: str
    stream: str
    text: str
    dropped: int = 0  # of a note


@dataclass
class _Quota:
    """How much an attempt has written, and what was dropped. Under the writer's lock."""

    limits: JobLogLimits
    tokens: float
    refilled_at: float
    size: int = 0
    is_full: bool = False
    is_throttled: bool = False  # until a second's worth of tokens is there again
    dropped_count: int = 0
    tail: deque[_Line] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))

    def take_token(self, now: float) -> bool:
        rate = self.limits.lines_per_sec
        self.tokens = min(rate * _BURST_SEC, self.tokens + (now - self.refilled_at) * rate)
        self.refilled_at = now
        self.is_throttled = self.tokens < (max(rate, 1.0) if self.is_throttled else 1.0)
        self.tokens -= not self.is_throttled
        return not self.is_throttled


class JobLogWriter:
    """Any thread may call `write`; the thread `job-logs` runs `run_once`."""

    def __init__(
        self,
        queue: JobQueue,
        limits: JobLogLimits,
        *,
        is_connected: Callable[[], bool],
        on_crash: Callable[[str], None],
        echo: LogSink | None = None,
    ) -> None:
        self._queue, self._limits, self._is_connected, self._echo = queue, limits, is_connected, echo
        self._lock = threading.Lock()
        self._pending: deque[_Line] = deque()  # under the lock, as the next two
        self._pending_bytes = 0
        self._quotas: OrderedDict[tuple[UUID, int], _Quota] = OrderedDict()
        self._write_lock = threading.Lock()  # held while a batch is written
        self._last_write_at = 0.0  # under the write lock, as the next one
        self._failure_logged = False
        self.capture = Capture(self.write)
        self.thread = BackgroundThread("job-logs", self.run_once, on_crash=on_crash)

    # ── for attempts ────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, job_id: UUID, attempt: int, level: str, stream: str, text: str) -> None:
        """Add lines to a job's log. Never blocks, never raises."""
        with suppress(Exception):
            if stream == POSITION_STREAM:
                self._add_position(job_id, attempt, text)
                return
            if self._echo is not None:
                self._echo(job_id, attempt, level, stream, text)
            level = level if level in LEVELS else "INFO"
            now, key = clock(), (job_id, attempt)
            with self._lock:
                was_empty = not self._pending
                for line in text.split("\n"):
                    self._accept(_Line(key, now, level, stream, line[:_MAX_SCANNED_LENGTH]))
                must_wake = was_empty and bool(self._pending)
            if must_wake:
                self.thread.wake()

    @property
    def has_attempts(self) -> bool:
        """Whether an attempt that has not been finished may have written anything."""
        return bool(self._quotas)

    def finish(self, job_id: UUID, attempt: int) -> None:
        """Add the last lines of an attempt that has ended, if they were dropped: they say how it ended."""
        key = (job_id, attempt)
        with self._lock:
            quota = self._quotas.pop(key, None)
            if quota is None or not quota.dropped_count:
                return
            tail = () if self._is_over_capacity() else tuple(quota.tail)
            self._add_gap(_Line(key, clock(), "", "", ""), quota.dropped_count - len(tail))
            for line in tail:
                self._append(line)
        self.thread.wake()

    def _add_position(self, job_id: UUID, attempt: int, text: str) -> None:
        is_storable = text.isascii() and text.isprintable() and len(text) <= _MAX_SCANNED_LENGTH
        is_valid = is_storable and text.count(" ") >= 2  # noqa: PLR2004
        if is_valid and not self._is_over_capacity():  # without it another attempt repeats lines
            with self._lock:
                self._append(_Line((job_id, attempt), clock(), "", POSITION_STREAM, text))
            self.thread.wake()

    def _accept(self, line: _Line) -> None:
        quota = self._quotas.get(line.key)
        if quota is None:
            quota = self._quotas[line.key] = _Quota(
                self._limits, self._limits.lines_per_sec * _BURST_SEC, line.logged_at
            )
            if len(self._quotas) > _MAX_QUOTAS:
                self._quotas.popitem(last=False)
        if quota.is_full or quota.size + len(line.text) > self._limits.max_bytes:
            if not quota.is_full:
                quota.is_full = True
                reached = f"this log has reached {self._limits.max_bytes:,} characters"
                self._add_notice(line, f"… {reached}; of what follows only the end is kept …")
        elif quota.take_token(line.logged_at) and not self._is_over_capacity():
            self._add_gap(line, quota.dropped_count)
            quota.dropped_count = 0
            quota.tail.clear()
            quota.size += len(line.text) + 1
            self._append(line)
            return
        quota.dropped_count += 1
        quota.tail.append(line)

    def _is_over_capacity(self) -> bool:
        return len(self._pending) >= _MAX_PENDING_LINES or self._pending_bytes >= _MAX_PENDING_BYTES

    def _add_gap(self, line: _Line, dropped_count: int) -> None:
        if dropped_count:
            self._add_notice(line, f"… {format_count(dropped_count, 'line')} left out …", dropped_count)

    def _add_notice(self, line: _Line, text: str, dropped_count: int = 0) -> None:
        self._append(line._replace(level="WARNING", stream="note", text=text, dropped=dropped_count))

    def _append(self, line: _Line) -> None:
        self._pending.append(line)
        self._pending_bytes += len(line.text)

    # ── for the pool ────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self.capture.install()
        self.thread.start()

    def stop(self, timeout: float) -> bool:
        """Write the pending lines; return False if some are lost because the database does not answer."""
        self.capture.remove()
        self.thread.stop()
        self.thread.join(timeout)
        return self.flush(timeout)

    def flush(self, timeout: float = 5.0) -> bool:
        """Write the pending lines now; return whether all were written."""
        deadline = clock() + timeout
        with suppress(DatabaseUnavailable):
            while self._pending and self._is_connected() and clock() < deadline:
                if not self._write_batch():
                    break
        if not self._write_lock.acquire(timeout=max(0.0, deadline - clock())):  # the thread's batch
            return False
        self._write_lock.release()
        return not self._pending

    def keep_positions(self, job_id: UUID, attempt: int) -> None:
        """Write the pending lines now if a position of this attempt is among them: its job is released after that, and
        the next attempt reads from there. Never raises: without it that attempt repeats lines."""
        key = (job_id, attempt)
        with self._lock:
            is_pending = any(line.stream == POSITION_STREAM and line.key == key for line in self._pending)
        if is_pending or self._write_lock.locked():
            with suppress(Exception):
                self.flush()

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────────

    def run_once(self) -> float:
        now = clock()
        if not self._is_connected():
            return _FLUSH_INTERVAL_SEC  # the heartbeat reconnects, and must not wait for us
        if now - self._last_write_at < _FLUSH_INTERVAL_SEC:
            return self._last_write_at + _FLUSH_INTERVAL_SEC - now
        if not self._pending:
            return _IDLE_SEC
        self._write_batch()
        return _FLUSH_INTERVAL_SEC

    def _write_batch(self) -> bool:
        """Write one batch; return False if it failed for a reason that an operator must remove."""
        with self._write_lock:
            self._last_write_at = clock()
            with self._lock:
                batch = [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
                self._pending_bytes -= sum(len(line.text) for line in batch)
            try:
                self._send(batch)
            except BaseException as error:
                with self._lock:
                    self._pending.extendleft(reversed(batch))
                    self._pending_bytes += sum(len(line.text) for line in batch)
                if isinstance(error, DatabaseUnavailable) or not isinstance(error, DataloaderError):
                    raise
                if not self._failure_logged:
                    _log.error("job_logs.failed", error=str(error))
                self._failure_logged = True
                return False
            self._failure_logged = False
            return True

    def _send(self, batch: list[_Line]) -> None:
        now = clock()
        lines = [
            LogEntry(
                *line.key,
                max(0.0, now - line.logged_at),
                sanitize_text(line.level, _MAX_NAME_LENGTH),  # a job's process may send any
                sanitize_text(line.stream, _MAX_NAME_LENGTH),
                sanitize_line(line.text),
                line.dropped,
            )
            for line in batch
            if line.stream != POSITION_STREAM
        ]
        marks = [LogPosition(*line.text.split(" ", 2)) for line in batch if line.stream == POSITION_STREAM]
        positions = list({mark.offload: mark for mark in marks}.values())  # the last of each
        try:
            self._queue.write_logs(lines, positions)
        except InvalidJob:  # the database's encoding is not UTF-8
            plain = [line._replace(line=line.line.encode("ascii", "backslashreplace").decode()) for line in lines]
            self._queue.write_logs(plain, positions)


def sanitize_line(line: str) -> str:
    """Mask secrets, escape control characters and limit the length."""
    line = str(log.mask(_ESCAPE_SEQUENCE.sub("", line)))
    if not line.isprintable():
        line = "".join(
            char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode() for char in line
        )
    encoded = line.encode()
    if len(encoded) > _MAX_LINE_BYTES:
        line = encoded[: _MAX_LINE_BYTES - 60].decode(errors="ignore") + " … the rest of this line left out …"
    return line
