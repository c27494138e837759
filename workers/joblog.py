"""The log of each job: kept in memory for a second at most, then written together with what other jobs have said.

Whatever happens to the database, a pipeline never waits here: what finds no room is left out, and the log says so. Of
a try that says too much the beginning is kept, and the end, which tells how it went.
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
from app.queue.job import Said
from app.queue.jobqueue import JobQueue
from app.wording import counted
from workers.capture import LEVELS, Capture, Speaker, Voice, Write
from workers.threads import Loop, clock

_log = log.get(__name__)
_EVERY = 1.0  # seconds between two writes of a process
_QUIET = 60.0  # when nothing is to be written: whoever says something rings
_AT_ONCE = 2_000  # lines a write
_WAITING = 20_000  # lines that wait at most, and
_WAITING_BYTES = 16_000_000
_LONGEST = 8_192  # bytes of a line
_LOOKED_AT = 16_384  # characters of a line that are looked through for secrets
_BURST = 10  # seconds' worth of lines that may come at once
_LAST = 50  # lines of the end that are kept whatever was left out before
_REMEMBERED = 1_000  # tries whose amounts are kept
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")

Key = tuple[UUID, int]


@dataclass(frozen=True, kw_only=True)
class LogLimits:
    """How much of what jobs say is kept."""

    bytes_a_try: int = 2_097_152
    lines_a_sec: float = 200.0


class _Line(NamedTuple):
    key: Key
    at: float
    level: str
    stream: str
    text: str


@dataclass
class _Amount:
    """How much a try has said, and what was left out of it. Under the lock."""

    tokens: float
    at: float
    size: int = 0
    full: bool = False
    choked: bool = False  # too fast: until it has been quiet for a while
    left_out: int = 0
    last: deque[_Line] = field(default_factory=lambda: deque(maxlen=_LAST))


class JobLogs:
    """`write` may be called by any thread; `turn` is the keeper's."""

    def __init__(
        self,
        queue: JobQueue,
        limits: LogLimits,
        *,
        connected: Callable[[], bool],
        died: Callable[[str], None],
        echo: Write | None = None,
    ) -> None:
        self._queue, self._limits, self._connected, self._echo = queue, limits, connected, echo
        self._lock = threading.Lock()
        self._waiting: deque[_Line] = deque()  # under the lock, as the next two
        self._waiting_bytes = 0
        self._amounts: OrderedDict[Key, _Amount] = OrderedDict()
        self._writing = threading.Lock()  # held over a write: the keeper's, or the last one's
        self._written_at = 0.0  # the writer's, as the next two
        self._told_fault = False
        self._capture = Capture(self.write)
        self.loop = Loop("joblog", self.turn, died=died)

    # ── for attempts ────────────────────────────────────────────────────────────────────────────────────────────

    def capturing(self, who: Speaker) -> Voice:
        """What is logged and printed within is this attempt's; it is whole after `ended`."""
        return self._capture.of(who)

    def ended(self, who: Speaker) -> None:
        if self._amounts:  # somebody has said something
            self._end((who.job_id, who.attempt))

    def write(self, job_id: UUID, attempt: int, level: str, stream: str, text: str) -> None:
        """Add to a job's log. Never blocks, never raises; lines that are too many are counted instead."""
        with suppress(Exception):
            if self._echo is not None:
                self._echo(job_id, attempt, level, stream, text)
            level = level if level in LEVELS else "INFO"
            now, key = clock(), (job_id, attempt)
            with self._lock:
                first = not self._waiting
                for line in text.split("\n"):
                    self._take(_Line(key, now, level, stream, _bounded(line)))
                first = first and bool(self._waiting)
            if first:
                self.loop.ring()

    def _take(self, line: _Line) -> None:
        amount = self._amount(line.key, line.at)
        size = len(line.text)
        if amount.full or amount.size + size > self._limits.bytes_a_try:
            if not amount.full:
                amount.full = True
                most = f"{self._limits.bytes_a_try:,}"
                self._note(line, f"… this log has reached {most} characters; of what follows only the end is kept …")
        elif self._may_speak(amount, line.at) and not self._crowded():
            self._tell_gap(amount, line)
            amount.size += size + 1
            self._keep(line)
            return
        amount.left_out += 1
        amount.last.append(line)

    def _amount(self, key: Key, now: float) -> _Amount:
        amount = self._amounts.get(key)
        if amount is None:
            amount = self._amounts[key] = _Amount(self._limits.lines_a_sec * _BURST, now)
            if len(self._amounts) > _REMEMBERED:
                self._amounts.popitem(last=False)
        return amount

    def _may_speak(self, amount: _Amount, now: float) -> bool:
        a_sec = self._limits.lines_a_sec
        amount.tokens = min(a_sec * _BURST, amount.tokens + (now - amount.at) * a_sec)
        amount.at = now
        if amount.choked and amount.tokens < a_sec:
            return False
        amount.choked = amount.tokens < 1
        amount.tokens -= not amount.choked
        return not amount.choked

    def _crowded(self) -> bool:
        return len(self._waiting) >= _WAITING or self._waiting_bytes >= _WAITING_BYTES

    def _tell_gap(self, amount: _Amount, line: _Line) -> None:
        if amount.left_out:
            self._note(line, f"… {counted(amount.left_out, 'line')} left out …")
            amount.left_out = 0
            amount.last.clear()

    def _note(self, line: _Line, text: str) -> None:
        self._keep(line._replace(level="WARNING", stream="note", text=text))

    def _keep(self, line: _Line) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line.text)

    def _end(self, key: Key) -> None:
        """Its last lines, if they were left out: nothing else tells how it went."""
        with self._lock:
            amount = self._amounts.pop(key, None)
            if amount is None or not amount.left_out:
                return
            last = () if self._crowded() else tuple(amount.last)
            left_out = amount.left_out - len(last)
            if left_out:
                self._note(_Line(key, clock(), "", "", ""), f"… {counted(left_out, 'line')} left out …")
            for line in last:
                self._keep(line)
        self.loop.ring()

    # ── for the pool ────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self._capture.install()
        self.loop.start()

    def stop(self, timeout: float) -> bool:
        """Write what is left; False: the database is away, and some lines are lost."""
        self._capture.remove()
        self.loop.stop()
        self.loop.join(timeout)
        return self.flush(timeout)

    def flush(self, timeout: float = 5.0) -> bool:
        """Write what waits now."""
        deadline = clock() + timeout
        with suppress(DatabaseUnavailable):
            while self._waiting and self._connected() and clock() < deadline:
                if not self._write():
                    break
        return not self._waiting

    # ── the keeper's ────────────────────────────────────────────────────────────────────────────────────────────

    def turn(self) -> float:
        now = clock()
        if not self._connected():
            return _EVERY  # the heartbeat brings it back; it must not have to wait for us while we try the same
        if now - self._written_at < _EVERY:
            return self._written_at + _EVERY - now
        if self._waiting:
            self._write()
            return _EVERY
        return _QUIET

    def _write(self) -> bool:
        """One batch; False: it could not be written, for a reason that somebody must see to."""
        with self._writing:
            self._written_at = clock()
            batch = self._next()
            try:
                self._send(batch)
            except BaseException as error:
                self._put_back(batch)
                if isinstance(error, DatabaseUnavailable) or not isinstance(error, DataloaderError):
                    raise
                if not self._told_fault:
                    _log.error("joblog.failed", error=str(error))
                self._told_fault = True
                return False
            self._told_fault = False
            return True

    def _send(self, batch: list[_Line]) -> None:
        now = clock()
        lines = [Said(*line.key, max(0.0, now - line.at), line.level, line.stream, clean(line.text)) for line in batch]
        try:
            self._queue.write_logs(lines)
        except InvalidJob:  # a database in another encoding than UTF-8
            plain = [line._replace(line=line.line.encode("ascii", "backslashreplace").decode()) for line in lines]
            self._queue.write_logs(plain)

    def _next(self) -> list[_Line]:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            self._waiting_bytes -= sum(len(line.text) for line in batch)
            return batch

    def _put_back(self, batch: list[_Line]) -> None:
        with self._lock:
            self._waiting.extendleft(reversed(batch))
            self._waiting_bytes += sum(len(line.text) for line in batch)


def _bounded(line: str) -> str:
    return line if len(line) <= _LOOKED_AT else line[:_LOOKED_AT]


def clean(line: str) -> str:
    """Without secrets, harmless on a terminal, and not too long."""
    line = str(log.mask(_ESCAPE_SEQUENCE.sub("", line)))
    if not line.isprintable():
        line = "".join(char if char.isprintable() or char == "\t" else _written_out(char) for char in line)
    told = line.encode()
    if len(told) > _LONGEST:
        line = told[: _LONGEST - 60].decode(errors="ignore") + " … the rest of this line left out …"
    return line


def _written_out(char: str) -> str:
    return char.encode("unicode_escape").decode()
