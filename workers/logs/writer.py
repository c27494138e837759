"""Writes the logs of jobs to the database, together about once a second.

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

from app import log
from app.errors import DatabaseUnavailable, DataloaderError, InvalidJob
from app.queue.job import LogEntry
from app.queue.jobs import JobQueue
from app.wording import format_count
from workers.logs.capture import LEVELS, Capture, CapturedOutput, LogOwner, LogSink
from workers.threads import BackgroundThread, clock

_log = log.get(__name__)
_FLUSH_INTERVAL_SEC = 1.0
_IDLE_SEC = 60.0  # the first line wakes the thread
_BATCH = 2_000  # lines
_MAX_PENDING_LINES = 20_000
_MAX_PENDING_BYTES = 16_000_000
_MAX_LINE_BYTES = 8_192
_MAX_SCANNED_LENGTH = 16_384  # characters of a line that are scanned for secrets
_BURST_SEC = 10  # this many seconds' worth of lines may come at once
_TAIL_LINES = 50  # the last lines of an attempt, kept although lines before them were dropped
_MAX_QUOTAS = 1_000
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")

AttemptKey = tuple[UUID, int]


@dataclass(frozen=True, kw_only=True)
class JobLogLimits:
    """How much of a job's log is kept."""

    max_bytes: int = 2_097_152  # of an attempt
    lines_per_sec: float = 200.0


class _Line(NamedTuple):
    key: AttemptKey
    logged_at: float
    level: str
    stream: str
    text: str


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
        self._quotas: OrderedDict[AttemptKey, _Quota] = OrderedDict()
        self._write_lock = threading.Lock()  # held while a batch is written
        self._last_write_at = 0.0  # under the write lock, as the next one
        self._failure_logged = False
        self._capture = Capture(self.write)
        self.thread = BackgroundThread("job-logs", self.run_once, on_crash=on_crash)

    # ── for attempts ────────────────────────────────────────────────────────────────────────────────────────────

    def capture(self, log_owner: LogOwner) -> CapturedOutput:
        """Return a context manager within which output belongs to this attempt."""
        return self._capture.output_of(log_owner)

    def write(self, job_id: UUID, attempt: int, level: str, stream: str, text: str) -> None:
        """Add lines to a job's log. Never blocks, never raises."""
        with suppress(Exception):
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

    def finish(self, log_owner: LogOwner) -> None:
        """Add the last lines of an attempt that has ended, if they were dropped: they say how it ended."""
        if not self._quotas:  # no attempt has written anything
            return
        key = (log_owner.job_id, log_owner.attempt)
        with self._lock:
            quota = self._quotas.pop(key, None)
            if quota is None or not quota.dropped_count:
                return
            tail = () if self._is_over_capacity() else tuple(quota.tail)
            self._add_gap(_Line(key, clock(), "", "", ""), quota.dropped_count - len(tail))
            for line in tail:
                self._append(line)
        self.thread.wake()

    def _accept(self, line: _Line) -> None:
        quota = self._quota_of(line.key, line.logged_at)
        if quota.is_full or quota.size + len(line.text) > self._limits.max_bytes:
            if not quota.is_full:
                quota.is_full = True
                limit = f"{self._limits.max_bytes:,}"
                self._add_notice(
                    line, f"… this log has reached {limit} characters; of what follows only the end is kept …"
                )
        elif quota.take_token(line.logged_at) and not self._is_over_capacity():
            self._add_gap(line, quota.dropped_count)
            quota.dropped_count = 0
            quota.tail.clear()
            quota.size += len(line.text) + 1
            self._append(line)
            return
        quota.dropped_count += 1
        quota.tail.append(line)

    def _quota_of(self, key: AttemptKey, now: float) -> _Quota:
        quota = self._quotas.get(key)
        if quota is None:
            quota = self._quotas[key] = _Quota(self._limits, self._limits.lines_per_sec * _BURST_SEC, now)
            if len(self._quotas) > _MAX_QUOTAS:
                self._quotas.popitem(last=False)
        return quota

    def _is_over_capacity(self) -> bool:
        return len(self._pending) >= _MAX_PENDING_LINES or self._pending_bytes >= _MAX_PENDING_BYTES

    def _add_gap(self, line: _Line, dropped_count: int) -> None:
        if dropped_count:
            self._add_notice(line, f"… {format_count(dropped_count, 'line')} left out …")

    def _add_notice(self, line: _Line, text: str) -> None:
        self._append(line._replace(level="WARNING", stream="note", text=text))

    def _append(self, line: _Line) -> None:
        self._pending.append(line)
        self._pending_bytes += len(line.text)

    # ── for the pool ────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self._capture.install()
        self.thread.start()

    def stop(self, timeout: float) -> bool:
        """Write the pending lines; return False if some are lost because the database does not answer."""
        self._capture.remove()
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
        return not self._pending

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
            batch = self._take_batch()
            try:
                self._send(batch)
            except BaseException as error:
                self._requeue(batch)
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
            LogEntry(*line.key, max(0.0, now - line.logged_at), line.level, line.stream, sanitize_line(line.text))
            for line in batch
        ]
        try:
            self._queue.write_logs(lines)
        except InvalidJob:  # the database's encoding is not UTF-8
            plain = [line._replace(line=line.line.encode("ascii", "backslashreplace").decode()) for line in lines]
            self._queue.write_logs(plain)

    def _take_batch(self) -> list[_Line]:
        with self._lock:
            batch = [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
            self._pending_bytes -= sum(len(line.text) for line in batch)
            return batch

    def _requeue(self, batch: list[_Line]) -> None:
        with self._lock:
            self._pending.extendleft(reversed(batch))
            self._pending_bytes += sum(len(line.text) for line in batch)


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
