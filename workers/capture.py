"""What a pipeline says in its thread, told apart from what all other threads say: through loggers, print and warnings.

Who speaks is known by a context variable: a coroutine's tasks and `asyncio.to_thread` inherit it, a thread that a
pipeline starts by itself does not.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol
from uuid import UUID

from app.log import mask

Write = Callable[[UUID, int, str, str, str], None]  # job, attempt, level, stream, a line; never blocks, never raises

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_OWN_VOICE = "pipeline"  # the logger behind ctx.log
_LONGEST_PARTIAL = 16_384  # characters that wait for the end of their line

# Each thread begins without one; like the bound fields of app.log.
_VOICE: ContextVar[Voice | None] = ContextVar("whose job speaks", default=None)


def speaking() -> bool:
    """Is it a job that runs here?"""
    return _VOICE.get() is not None


class Speaker(Protocol):
    @property
    def job_id(self) -> UUID: ...

    @property
    def attempt(self) -> int: ...


class Voice:
    """An attempt as a speaker: mostly one thread, but its tasks and helpers may speak with it."""

    __slots__ = ("_before", "_lock", "_partial", "_who", "owner")

    def __init__(self, owner: Capture, who: Speaker) -> None:
        self.owner, self._who = owner, who
        self._lock = threading.Lock()
        self._partial: dict[str, str] | None = None  # what was printed without the end of its line; under the lock

    def __enter__(self) -> None:
        """What is said within is said by this attempt."""
        self._before = _VOICE.set(self)

    def __exit__(self, *_: object) -> None:
        _VOICE.reset(self._before)
        if self._partial is not None:
            self.fall_silent()

    def log(self, record: logging.LogRecord) -> None:
        level = LEVELS[min(max(record.levelno // 10 - 1, 0), len(LEVELS) - 1)]
        for text in told(record):
            for line in text.splitlines() or [""]:
                self._say(level, "log", line)

    def print(self, stream: str, text: str) -> None:
        with self._lock:
            if self._partial is None:
                self._partial = {"stdout": "", "stderr": ""}
            *lines, rest = (self._partial[stream] + text).split("\n")
            rest = _as_on_a_terminal(rest) + ("\r" if rest.endswith("\r") else "")
            if len(rest) > _LONGEST_PARTIAL:
                lines, rest = [*lines, rest], ""
            self._partial[stream] = rest
        for line in lines:
            self._say("INFO", stream, _as_on_a_terminal(line))

    def fall_silent(self) -> None:
        """The attempt is over: what waits for the end of its line is one."""
        with self._lock:
            partial, self._partial = self._partial or {}, None
        for stream, rest in partial.items():
            if rest:
                self._say("INFO", stream, _as_on_a_terminal(rest))

    def _say(self, level: str, stream: str, line: str) -> None:
        self.owner.write(self._who.job_id, self._who.attempt, level, stream, line)


def _as_on_a_terminal(line: str) -> str:
    """Of a line that was written over again and again, such as a progress bar, what is seen in the end."""
    return line.rstrip("\r").rpartition("\r")[2]


def told(record: logging.LogRecord) -> Iterator[str]:
    try:
        message = record.getMessage()
    except Exception:  # formatting runs anybody's __str__
        message = f"{record.msg!r} (with arguments that do not fit it)"
    fields = getattr(record, "fields", None)
    if isinstance(fields, Mapping):
        message += "".join(f" {name}={_shown(value)}" for name, value in mask(fields).items())
    yield message
    if record.exc_info:
        yield logging.Formatter().formatException(record.exc_info)
    if record.stack_info:
        yield record.stack_info


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and " " not in value else json.dumps(value, ensure_ascii=False)


class _Ear(logging.Handler):
    """Hears every record of the process, and keeps those that its jobs say."""

    def __init__(self, owner: Capture) -> None:
        super().__init__()
        self._owner = owner

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the handler's lock: a pipeline may be interrupted at any place, and must not leave it locked."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        voice = _VOICE.get()
        if voice is not None and voice.owner is self._owner:
            with suppress(Exception):  # a line of a log must not end a job
                voice.log(record)
        elif logging.getLogger().handlers == [self] and logging.lastResort and record.levelno >= logging.WARNING:
            logging.lastResort.handle(record)  # what a process that set up no logging would see without us


class Stream:
    """Stands in for sys.stdout or sys.stderr. For all threads but those of jobs it is the stream itself."""

    def __init__(self, owner: Capture, name: str, original: Any) -> None:
        self._owner, self._name, self.original = owner, name, original
        self.gone = False  # its pool has stopped: there is nothing left to keep

    def write(self, text: str) -> int:
        voice = self._voice()
        if voice is None:
            return int(self.original.write(text))
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        voice.print(self._name, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self._voice() is None:
            self.original.flush()

    def isatty(self) -> bool:
        return self._voice() is None and bool(self.original.isatty())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def _voice(self) -> Voice | None:
        voice = _VOICE.get()
        return voice if voice is not None and voice.owner is self._owner else None


class Capture:
    """Takes over the process's loggers and standard streams while it is installed, for the jobs that it is told of."""

    def __init__(self, write: Write) -> None:
        self.write = write
        self._ear = _Ear(self)
        self._streams: dict[str, Stream] = {}
        self._own_level: int | None = None

    def install(self) -> None:
        logging.getLogger().addHandler(self._ear)
        own = logging.getLogger(_OWN_VOICE)
        if own.getEffectiveLevel() > logging.INFO:  # the process has set up no logging; the job's log is kept even so
            self._own_level = own.level
            own.setLevel(logging.INFO)
        for name in ("stdout", "stderr"):
            original = getattr(sys, name)
            if original is not None:
                self._streams[name] = Stream(self, name, original)
                setattr(sys, name, self._streams[name])

    def remove(self) -> None:
        """Put back what was there. A stream that another one was put over stays, and lets everything through."""
        logging.getLogger().removeHandler(self._ear)
        if self._own_level is not None:
            logging.getLogger(_OWN_VOICE).setLevel(self._own_level)
            self._own_level = None
        for name, stream in self._streams.items():
            stream.gone = True
            standing: Any = getattr(sys, name)
            while isinstance(standing, Stream) and standing.gone:
                standing = standing.original
            setattr(sys, name, standing)
        self._streams = {}

    def of(self, who: Speaker) -> Voice:
        """What is said within is said by this attempt."""
        return Voice(self, who)
