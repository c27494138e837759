"""Captures what pipelines log and print.

A context variable holds the attempt whose output is captured, apart from that of all other threads: a coroutine's tasks
and `asyncio.to_thread` inherit it, a thread that a pipeline starts by itself does not.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol
from uuid import UUID

from dataloader.app import log
from dataloader.workers.logs.records import add_fields, level_of, record_fields, record_texts

LogSink = Callable[[UUID, int, str, str, str], None]
"""Receives job id, attempt, level, stream and line. Never blocks, never raises."""

_JOB_LOGGER = "pipeline"  # the logger behind ctx.log
_MAX_PARTIAL_LENGTH = 16_384  # of a printed line whose end has not come

_CURRENT_OUTPUT: ContextVar[CapturedOutput | None] = ContextVar("captured output", default=None)


def is_captured() -> bool:
    """Return whether a pipeline runs in this context."""
    return _CURRENT_OUTPUT.get() is not None


def record_lines(record: logging.LogRecord) -> Iterator[str]:
    """Yield the lines of a record: its message with fields, and its traceback."""
    message, *texts = record_texts(record)
    for text in (add_fields(message, log.mask(record_fields(record))), *texts):
        yield from text.splitlines() or [""]


class OutputSource(Protocol):
    """An attempt."""

    @property
    def job_id(self) -> UUID: ...

    @property
    def attempt(self) -> int: ...


class CapturedOutput:
    """The output of one attempt. Its asyncio tasks and helper threads may write too."""

    __slots__ = ("_lock", "_partial", "_source", "_token", "capture")

    def __init__(self, capture: Capture, source: OutputSource) -> None:
        self.capture, self._source = capture, source
        self._lock = threading.Lock()
        self._partial: dict[str, str] = {}  # by stream: printed without the end of its line; under the lock

    def __enter__(self) -> None:
        self._token = _CURRENT_OUTPUT.set(self)

    def __exit__(self, *_: object) -> None:
        _CURRENT_OUTPUT.reset(self._token)
        if not self._partial:
            return
        with self._lock:
            partial, self._partial = self._partial, {}
        for stream, line in partial.items():
            if line:
                self._emit("INFO", stream, line)

    def log(self, record: logging.LogRecord) -> None:
        for line in record_lines(record):
            self._emit(level_of(record), "log", line)

    def print(self, stream: str, text: str) -> None:
        with self._lock:
            *lines, rest = (self._partial.get(stream, "") + text).split("\n")
            rest = _collapse_carriage_returns(rest) + ("\r" if rest.endswith("\r") else "")
            if len(rest) > _MAX_PARTIAL_LENGTH:
                lines, rest = [*lines, rest], ""
            self._partial[stream] = rest
        for line in lines:
            self._emit("INFO", stream, line)

    def _emit(self, level: str, stream: str, line: str) -> None:
        self.capture.sink(self._source.job_id, self._source.attempt, level, stream, _collapse_carriage_returns(line))


def _collapse_carriage_returns(line: str) -> str:
    """Return what a terminal shows of a line that was overwritten, such as a progress bar."""
    return line.rstrip("\r").rpartition("\r")[2]


class _CaptureHandler(logging.Handler):
    """Passes records of pipelines to their attempt's output."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self._capture = capture

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the handler's lock: a pipeline that is interrupted here must not leave it locked."""
        output = self._capture.current_output()
        if output is not None:
            with suppress(Exception):  # a log line must not end a job
                output.log(record)
        elif logging.getLogger().handlers == [self] and logging.lastResort and record.levelno >= logging.WARNING:
            logging.lastResort.handle(record)  # as in a process that has not configured logging
        return True


class CapturedStream:
    """Replaces sys.stdout or sys.stderr. Threads that run no pipeline write to the original."""

    def __init__(self, capture: Capture, name: str, original: Any) -> None:
        self._capture, self._name, self.original = capture, name, original
        self.is_removed = False  # its pool has stopped

    def write(self, text: str) -> int:
        output = self._capture.current_output()
        if output is None:
            return int(self.original.write(text))
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        output.print(self._name, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self._capture.current_output() is None:
            self.original.flush()

    def isatty(self) -> bool:
        return self._capture.current_output() is None and bool(self.original.isatty())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


class Capture:
    """Replaces the process's standard streams and adds a root log handler while it is installed."""

    def __init__(self, sink: LogSink) -> None:
        self.sink = sink
        self._handler = _CaptureHandler(self)
        self._streams: dict[str, CapturedStream] = {}
        self._saved_level: int | None = None

    def output_of(self, source: OutputSource) -> CapturedOutput:
        """Return a context manager within which output belongs to this attempt."""
        return CapturedOutput(self, source)

    def current_output(self) -> CapturedOutput | None:
        output = _CURRENT_OUTPUT.get()
        return output if output is not None and output.capture is self else None

    def install(self) -> None:
        logging.getLogger().addHandler(self._handler)
        job_logger = logging.getLogger(_JOB_LOGGER)
        if job_logger.getEffectiveLevel() > logging.INFO:  # logging is not configured: the job's log is kept even so
            self._saved_level = job_logger.level
            job_logger.setLevel(logging.INFO)
        for name in ("stdout", "stderr"):
            original = getattr(sys, name)
            if original is not None:
                self._streams[name] = CapturedStream(self, name, original)
                setattr(sys, name, self._streams[name])

    def remove(self) -> None:
        """Restore the streams. One that other code has replaced since stays, and writes to the original."""
        logging.getLogger().removeHandler(self._handler)
        if self._saved_level is not None:
            logging.getLogger(_JOB_LOGGER).setLevel(self._saved_level)
            self._saved_level = None
        for name, stream in self._streams.items():
            stream.is_removed = True
            current: Any = getattr(sys, name)
            while isinstance(current, CapturedStream) and current.is_removed:
                current = current.original
            setattr(sys, name, current)
        self._streams = {}
