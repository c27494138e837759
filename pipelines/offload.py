"""Work that a job gives to another engine: what is asked for, how it ends, and the protocol of an executor.

A name is made of the job's id, so that any worker finds the work again. The engine must not retry by itself.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import CodeType
from typing import Any, ClassVar, Literal, Protocol
from uuid import UUID

from dataloader.pipelines.context import OffloadOptions

MAX_RESULT_BYTES = 1_000_000  # of a program, as JSON
MAX_CALL_BYTES = 16_000_000  # of a function, its arguments and its result, each pickled
MAX_LOG_LINES = 1_000  # that `logs` returns at a time
_KEY = re.compile(r"[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?")


class EngineUnavailable(Exception):
    """The engine does not answer, or its answer cannot be read. The work may continue; its name finds it later."""


class EngineFull(EngineUnavailable):
    """The engine answers, and accepts no more work for now: a quota is used up."""


class EngineRefused(Exception):
    """The engine does not accept the work; a retry would not help."""

    permanent = True


class UnknownEngine(LookupError):
    """The settings have no executor of this name."""

    permanent = True


class ResultTooLarge(Exception):
    """A result is kept with the job or sent as a message: a larger one goes to storage, and its address is returned."""

    permanent = True


class ResultUnreadable(Exception):
    """The work succeeded, and its result cannot be sent or read. Another attempt would do all of it again, to the same
    end."""

    permanent = True


class OffloadFailed(Exception):
    """The work did not succeed. The next attempt submits it again, under another name."""


class RemoteOutOfMemory(OffloadFailed, MemoryError):
    """The engine ended the work because of its memory."""


class RemoteWorkerLost(OffloadFailed):
    """The engine lost the machine or process that ran the work. Counts as a crash of the job."""


class RemoteTraceback(Exception):
    """The cause of an exception that a function raised on another machine: its traceback, as text."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)

    def __str__(self) -> str:
        return f"\n{self.text.rstrip()}"


class RemoteState(StrEnum):
    UNKNOWN = "unknown"  # the engine has no such name
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        return self not in (RemoteState.PENDING, RemoteState.RUNNING)


class FailureKind(StrEnum):
    ERROR = "error"
    OOM = "oom"
    WORKER_LOST = "worker_lost"


@dataclass(frozen=True)
class RemoteStatus:
    """What the engine answers of a name."""

    state: RemoteState
    kind: FailureKind = FailureKind.ERROR  # of a failure
    detail: str = ""  # of a failure, or why the work has not started
    error: BaseException | None = None  # that a function raised, if it could be brought here
    is_stuck: bool = False  # it has not started for so long that it is to be stopped


@dataclass(frozen=True, kw_only=True)
class OffloadSpec:
    """What to run: a program by its command line, or a function with its arguments."""

    entrypoint: str | None = None
    call: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    time_limit_sec: float | None = None  # for engines that can end the work by themselves
    labels: Mapping[str, str] = field(default_factory=dict)


class Executor(Protocol):
    """Runs work on one engine. All calls may raise EngineUnavailable, and return or raise within some seconds.

    Registered by an entry point of the group `dataloader.executors`: a callable that takes the engine's object in
    DL_EXECUTORS, with its secrets filled in. One that can delete what it keeps of a name has a `delete(name)` too.
    """

    runs: ClassVar[frozenset[Literal["program", "function"]]]
    survives: ClassVar[bool]  # whether the work continues without the process that submitted it
    address: str  # for people

    def submit(self, name: str, spec: OffloadSpec) -> None:
        """Start the work under this name. If the name exists already, nothing happens. Raises EngineRefused."""

    def status(self, name: str) -> RemoteStatus: ...

    def stop(self, name: str) -> None:
        """Ask the engine to end the work; `status` shows when it has. A name that has ended is left as it is."""

    def result(self, name: str) -> Any:
        """What work that succeeded returned. Raises ResultTooLarge; OffloadFailed if the engine does not have it."""

    def logs(self, name: str, after: str) -> tuple[list[str], str]:
        """The lines after a position, at most MAX_LOG_LINES, and the position after them. "" is the beginning.

        A position is printable ASCII text of at most 1,000 characters."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """`OffloadOptions`, checked and with their defaults."""

    timeout: float | None = None
    key: str | None = None
    fresh: bool = False
    on_shutdown: str = "detach"
    engine_timeout: float = 900.0
    grace: float = 30.0
    abandon: bool = False

    def __post_init__(self) -> None:
        if self.key is not None and not _KEY.fullmatch(self.key):
            raise ValueError(f"key has 1 to 16 of a-z, 0-9 and -, and neither begins nor ends with -: {self.key!r}")
        if self.on_shutdown not in ("detach", "stop"):
            raise ValueError(f"on_shutdown is 'detach' or 'stop', not {self.on_shutdown!r}")
        for name in ("timeout", "engine_timeout", "grace"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds <= 366 * 86_400:
                raise ValueError(f"{name} is a number of seconds, not {seconds!r}")


def parse_call(
    engine: str, call: Callable[..., Any] | None, args: tuple[Any, ...], options: OffloadOptions
) -> tuple[OffloadSpec, Options]:
    """Raises ValueError and TypeError."""
    values = dict(options)
    spec_names = ("entrypoint", "kwargs", "env", "resources")
    given = {name: values.pop(name) for name in spec_names if values.get(name) is not None}
    if (call is None) == ("entrypoint" not in given):
        raise TypeError("offload takes a function with its arguments, or entrypoint=, which is a command line")
    if call is None and (args or "kwargs" in given):
        raise TypeError("a program has its arguments in entrypoint=, and its settings in env=")
    if call is not None and not callable(call):
        raise TypeError(f"offload to {engine!r} takes a function, not {call!r}")
    return OffloadSpec(call=call, args=args, **given), Options(**values)  # type: ignore[arg-type]  # by name


def offload_name(job_id: UUID, call: str, number: int) -> str:
    """The name of a job's offload; `number` counts what was submitted for this call."""
    return f"dl-{job_id}-{call}" + (f".{number}" if number > 1 else "")


def fingerprint(engine: str, spec: OffloadSpec) -> str:
    """Identifies the code and arguments of a call: the same in each process, and another when they change."""
    call = spec.call
    code = getattr(getattr(call, "__wrapped__", call), "__code__", None)
    parts = [
        engine, spec.entrypoint, dict(spec.env), dict(spec.resources), spec.args, dict(spec.kwargs),
        None if call is None else f"{getattr(call, '__module__', '')}:{getattr(call, '__qualname__', type(call))}",
        _code_parts(code) if isinstance(code, CodeType) else None,
    ]  # fmt: skip
    text = json.dumps([_stable(part) for part in parts], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _code_parts(code: CodeType) -> list[Any]:
    constants = [_code_parts(value) if isinstance(value, CodeType) else value for value in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]


def _stable(value: Any) -> Any:
    """A value as JSON that does not depend on the order of a set or on an address in memory."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return {"bytes": hashlib.sha256(value).hexdigest()}
        case Mapping():
            return {"map": sorted(([_stable(k), _stable(v)] for k, v in value.items()), key=json.dumps)}
        case set() | frozenset():
            return {"set": sorted((_stable(item) for item in value), key=json.dumps)}
        case list() | tuple():
            return [_stable(item) for item in value]
    try:
        return {"pickle": hashlib.sha256(pickle.dumps(value, 4)).hexdigest()}
    except Exception as error:
        raise TypeError(f"an argument of an offload cannot be pickled: {type(value).__name__}: {error}") from error


def check_json_result(text: str) -> Any:
    """A program's result. Raises ResultTooLarge and OffloadFailed."""
    if len(text.encode("utf-8", "replace")) > MAX_RESULT_BYTES:
        raise ResultTooLarge(
            f"the result has {len(text):,} characters, and {MAX_RESULT_BYTES:,} bytes are allowed: write it to storage,"
            " and return its address"
        )
    try:
        return json.loads(text)
    except ValueError as error:
        raise OffloadFailed(f"the result is no JSON: {error}") from None


RESULT_PREFIX = "::result "
PROGRESS_PREFIX = "::progress "


def result_of_lines(lines: list[str]) -> Any:
    """The last `::result JSON` among a program's lines; None without one."""
    for line in reversed(lines):
        if line.startswith(RESULT_PREFIX):
            return check_json_result(line[len(RESULT_PREFIX) :])
    return None


def pickle_result(result: Any) -> bytes:
    """What a function returned, to be sent. Raises ResultUnreadable."""
    try:
        return pickle.dumps(result)
    except MemoryError:
        raise
    except Exception as error:
        raise ResultUnreadable(f"the result of the function cannot be pickled: {error}") from error


def unpickle_result(content: bytes) -> Any:
    """What our own code has pickled in another process. Raises ResultUnreadable."""
    try:
        return pickle.loads(content)  # noqa: S301
    except MemoryError:
        raise
    except Exception as error:
        raise ResultUnreadable(f"the result of the function cannot be read here: {error}") from error


def result_of_text(text: str) -> Any:
    """The same of a whole log. Of the characters that end a line for `str.splitlines` some may be in JSON."""
    return result_of_lines(text.replace("\r", "\n").split("\n"))


def parse_progress(line: str) -> dict[str, int] | None:
    """The fields of a line such as `::progress done=3 total=10`, as progress has them; None for other lines."""
    if not line.startswith(PROGRESS_PREFIX):
        return None
    names = {"done": "processed", "total": "total"}
    pairs = re.findall(r"\b(done|total)=(\d{1,18})\b", line)
    return {names[name]: int(number) for name, number in pairs} or None
