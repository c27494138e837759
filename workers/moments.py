"""What the thread of a task does at a moment: it computes, sleeps, or waits, for what and where. Portable.

Names and lines, never a value; nothing of the program's own is called. Python's view has the line, and the kernel's
what a thread waits for: a call of native code has no frame. Between two looks CPU time says whether it has computed.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from opcode import opmap
from types import CodeType, FrameType
from typing import Any

from dataloader.pipelines.portable import clock
from dataloader.workers import syscalls
from dataloader.workers.stacks import awaiting_frames, cut_text, frame_kind, qualified_name, task_package

_MAX_FRAMES = 200  # from the innermost to the task's own
_MAX_PLACE_LENGTH = 120
_MAX_KNOWN_CODES = 2000
_FILE_PARTS = 2
LATE_SEC = 0.1  # a look that is later, and has not waited for a CPU, has waited for the interpreter
_OTHER_WAKEUPS = 3  # of a look that waits for no interpreter
_STOPPED_SEC = 2.0  # so much later, and no thread has computed meanwhile
_STOPPED_SHARE = 0.95  # of that time
_COMPUTES_SHARE = 0.5
_MIN_WAIT_SHARE = 0.2  # for the interpreter, or for a CPU
_MAX_HELPERS = 30
_MAX_ENTRY = 20  # bytes of code, in which a function begins
_PAGES_PER_SEC = 50  # that were not in memory: more is a wait for them
# Kinds of system calls that say all.
_PLAIN_WAITS: Mapping[str, tuple[str, str | None]] = {
    "running": ("python", None), "sleep": ("sleep", None), "memory": ("memory", None), "sync": ("file", "fsync"),
    "file": ("file", None), "file lock": ("file", "file lock"),
}  # fmt: skip
# Native functions by their names.
_CALLED: Mapping[str, tuple[str, str | None]] = {
    "fsync": ("file", "fsync"), "fdatasync": ("file", "fsync"), "flush": ("file", None), "write": ("file", None),
    "read": ("file", None), "readline": ("file", None), "sleep": ("sleep", None), "recv": ("network", None),
    "recv_into": ("network", None), "recvfrom": ("network", None), "send": ("network", None),
    "sendall": ("network", None), "sendto": ("network", None), "connect": ("network", None),
    "acquire": ("threads", None),
}  # fmt: skip
_DRIVERS = frozenset({"psycopg2", "psycopg", "psycopg_c", "psycopg_binary", "asyncpg", "pg8000", "sqlalchemy"})
# Of Python's library, by module: what its functions wait for where the kernel does not say it, or says too little.
_WAITS_OF_MODULES = {
    "subprocess": "child", "ssl": "network", "socket": "network", "selectors": "network", "threading": "threads",
    "queue": "threads", "concurrent.futures._base": "threads", "multiprocessing.popen_fork": "child",
    "multiprocessing.connection": "child",
}  # fmt: skip


class ThreadMoments:
    """Looks at one thread of this process, again and again. One thread uses it."""

    def __init__(self, ident: int, native_id: int, now: float) -> None:
        self.ident, self.native_id = ident, native_id
        self._looked_at, self._knows_package = now, False
        self._package: str | None = None
        self._files = syscalls.ThreadFiles(native_id)
        self._cpu_sec, self._queued_sec, _ = self._files.read_schedule()
        self._first_cpu_sec = self._cpu_sec
        self._process_sec = time.process_time()
        self._faults = self._files.read_major_faults()

    @property
    def cpu_sec(self) -> float | None:
        """That the thread has spent until the last look, since it began to be looked at."""
        return None if self._cpu_sec is None or self._first_cpu_sec is None else self._cpu_sec - self._first_cpu_sec

    @property
    def total_cpu_sec(self) -> float | None:
        """That the thread had spent at the last look, since it began."""
        return self._cpu_sec

    def read_queued_sec(self) -> float:
        """How long the thread has waited for a CPU since the last look."""
        return max(0.0, self._files.read_schedule()[1] - self._queued_sec)

    def look(self, now: float, frames: Mapping[int, FrameType], *, late_sec: float, awaitable: Any = None) -> Any:
        """Describe the time since the last look as JSON; None: the thread has ended. `late_sec`: how much later than
        planned the looking thread got the interpreter, without its waits for a CPU."""
        before = clock()
        wait, argument = self._files.read_wait()
        innermost = frames.get(self.ident)
        if innermost is None:
            return None
        span = max(0.001, now - self._looked_at)
        cpu, process, queued = self._spent_cpu()
        faults, self._faults = self._faults, self._files.read_major_faults()
        self._looked_at = now
        if not self._knows_package:
            self._package, self._knows_package = task_package(innermost), True
        innermost = _skip_entered(innermost, self._package)
        stack = _Stack(innermost, awaiting_frames(awaitable), self._package)
        kind, detail = self._classify(wait, argument, stack)
        if kind == "threads" and (helper := self._look_at_helpers(frames)) is not None:
            detail = helper
        if self._faults - faults > _PAGES_PER_SEC * span and kind in ("python", "memory", "file"):
            kind, detail = "memory", None
        late_sec += clock() - before  # each read of a file lets another thread take the interpreter
        is_late = late_sec >= LATE_SEC
        if is_late and late_sec > _STOPPED_SEC and process + queued < span - _STOPPED_SHARE * late_sec:
            kind, detail = "stopped", None
        elif is_late and kind == "python" and cpu + queued >= _COMPUTES_SHARE * late_sec:
            kind = "native"
        waits_sec = queued_sec = 0.0
        if kind in ("python", "native"):
            queued_sec = _if_long(min(queued, span - cpu), span)
        if kind == "python":
            waits_sec = _if_long(min(span - cpu - queued_sec, process - cpu), span)
            if cpu + waits_sec < _COMPUTES_SHARE * span and (called := find_called(innermost)) is not None:
                waits_sec = queued_sec = 0.0  # it was seen between two of many short waits
                kind, detail = ("sleep", None) if stack.is_sleep else called
        return {
            "sec": round(span, 4), "kind": kind, "detail": detail, "place": stack.place, "calls": stack.calls,
            "handles": _handled(self.ident), "driver": stack.is_driver, "interpreter_sec": round(waits_sec, 4),
            "queued_sec": round(queued_sec, 4),
        }  # fmt: skip

    def close(self) -> None:
        self._files.close()

    def _spent_cpu(self) -> tuple[float, float, float]:
        """CPU time since the last look, of the thread and of its process, and how long the thread waited for a CPU."""
        before, before_process, before_queued = self._cpu_sec, self._process_sec, self._queued_sec
        self._cpu_sec, self._queued_sec, _ = self._files.read_schedule()
        self._process_sec = time.process_time()
        process, queued = self._process_sec - before_process, max(0.0, self._queued_sec - before_queued)
        if self._cpu_sec is None or before is None:
            return process, process, queued  # not known: as if it had computed alone
        return max(0.0, self._cpu_sec - before), process, queued

    def _classify(self, wait: str, argument: int, stack: _Stack) -> tuple[str, str | None]:
        if stack.is_awaiting and wait in ("poll", "sleep", "futex", "unknown"):
            return ("sleep" if stack.awaits_sleep else "network"), None
        if wait == "sleep" and stack.library_wait == "child":  # it waits with a timeout
            return self._child()
        if wait in _PLAIN_WAITS:
            return _PLAIN_WAITS[wait]
        if wait == "futex" and _is_interpreter(argument):
            return "python", None
        if wait == "descriptor":
            return self._descriptor(argument, stack)
        return self._classify_by_library(wait, stack)

    def _classify_by_library(self, wait: str, stack: _Stack) -> tuple[str, str | None]:
        known = "sleep" if stack.is_sleep else "dns" if stack.is_lookup else stack.library_wait
        if wait == "child" or known == "child":
            return self._child()
        if wait == "futex":
            return ("sleep" if known == "sleep" else "threads"), None
        if wait in ("socket", "poll"):
            return ("network" if known in (None, "threads") else known), None
        return known or ("other" if sys.platform == "linux" else "python"), None

    def _descriptor(self, descriptor: int, stack: _Stack) -> tuple[str, str | None]:
        what = syscalls.describe_descriptor("/proc/self", descriptor)
        if what == "socket":
            return "network", None
        if what in ("pipe", "terminal", "unknown"):
            if stack.library_wait == "child" or syscalls.read_children(self.native_id):
                return self._child()
            return "input", None if what == "unknown" else what
        return "file", None

    def _child(self) -> tuple[str, str | None]:
        """A process that the thread has started: its name; and whether it waits for input itself."""
        children = syscalls.read_children(self.native_id)
        for pid in children[:_MAX_HELPERS]:
            wait, descriptor = syscalls.read_wait_of(f"/proc/{pid}")
            if wait == "descriptor" and descriptor == 0:
                what = syscalls.describe_descriptor(f"/proc/{pid}", 0)
                if what in ("pipe", "terminal", "socket"):
                    return "input", syscalls.read_name(pid)
        return "child", (syscalls.read_name(children[0]) or None) if children else None

    def _look_at_helpers(self, frames: Mapping[int, FrameType]) -> str | None:
        """What the task's other threads do: the first that does not only wait for others."""
        threads = {thread.ident: getattr(thread, "native_id", None) for thread in threading.enumerate()}
        found = None
        for ident, frame in list(frames.items())[:_MAX_HELPERS]:
            native_id = threads.get(ident)
            if ident in (self.ident, threading.get_ident()) or native_id is None:
                continue
            stack = _Stack(frame, (), self._package)
            if stack.place is None or stack.has_ours:
                continue
            kind, _ = self._classify(*syscalls.read_wait_of(f"/proc/self/task/{native_id}"), stack)
            found = f"{kind}: {stack.place}"
            if kind != "threads":
                break
        return found


def _skip_entered(frame: FrameType, package: str | None) -> FrameType:
    """The caller of a function that has only been entered, where a thread that has computed lets others run: the time
    until then is the caller's."""
    caller = frame.f_back
    if frame.f_lasti > _MAX_ENTRY or caller is None or _known_kind(caller, package) != "task":
        return frame
    is_entered = frame.f_lasti < 0 or frame.f_code.co_code[frame.f_lasti] == opmap.get("RESUME")
    return caller if is_entered else frame


def _if_long(waits_sec: float, span: float) -> float:
    """Shorter waits are the switches between threads."""
    return waits_sec if waits_sec > _MIN_WAIT_SHARE * span else 0.0


class _Stack:
    """What the frames of a thread say, from the innermost to the first of the task's own."""

    def __init__(self, innermost: FrameType, awaiting: Any, package: str | None) -> None:
        self.is_awaiting, self.awaits_sleep = bool(awaiting), False
        self.is_driver = self.is_sleep = self.is_lookup = self.has_ours = False
        self.place, self.calls, self.library_wait = None, None, None
        outermost, innermost_place = innermost, None
        for number, frame in enumerate(_walk(innermost, awaiting)):
            outermost = frame
            kind, module = _known_kind(frame, package), _module(frame)
            name = frame.f_code.co_name
            if kind == "task":
                self.place = describe_place(frame)
                break
            if number == 0:
                innermost_place = describe_place(frame)
            self.calls = describe_called(frame, module)  # the last one is what the task's own code has called
            self.awaits_sleep = self.awaits_sleep or (
                self.is_awaiting and module == "asyncio.tasks" and name == "sleep"
            )
            self.is_driver = self.is_driver or module.partition(".")[0] in _DRIVERS
            self.is_lookup = self.is_lookup or (module == "socket" and name == "getaddrinfo")
            self.is_sleep = self.is_sleep or (kind == "dataloader" and name in ("sleep", "wait", "pause"))
            self.has_ours = self.has_ours or kind == "dataloader"
            self.library_wait = self.library_wait or _WAITS_OF_MODULES.get(module)
        if self.place is None:
            self.place, self.calls = innermost_place, None
        rest: FrameType | None = outermost.f_back
        for _ in range(_MAX_FRAMES):
            if rest is None or self.has_ours:
                break
            self.has_ours = _known_kind(rest, package) == "dataloader"
            rest = rest.f_back


def _walk(innermost: FrameType, awaiting: Any) -> Iterator[FrameType]:
    yield from awaiting
    frame: FrameType | None = innermost
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    name = dict.get(frame.f_globals, "__name__")
    return name if type(name) is str else ""


_known_kinds: dict[tuple[CodeType, str | None], str] = {}


def _known_kind(frame: FrameType, package: str | None) -> str:
    key = frame.f_code, package
    kind = _known_kinds.get(key)
    if kind is None:
        if len(_known_kinds) >= _MAX_KNOWN_CODES:
            _known_kinds.clear()
        kind = _known_kinds[key] = frame_kind(frame, package)
    return kind


def describe_place(frame: FrameType) -> str:
    """Such as `load in sales/load.py:88`."""
    code = frame.f_code
    parts = cut_text(code.co_filename, _MAX_PLACE_LENGTH, keeps_end=True).replace("\\", "/").split("/")
    line = "" if frame.f_lineno is None else f":{frame.f_lineno}"
    return "{} in {}{}".format(cut_text(qualified_name(code), _MAX_PLACE_LENGTH), "/".join(parts[-_FILE_PARTS:]), line)


def describe_called(frame: FrameType, module: str) -> str:
    """A function of a package, or of Python's library: such as `DataFrame.iterrows in pandas`."""
    package = module.partition(".")[0]
    name = cut_text(qualified_name(frame.f_code), _MAX_PLACE_LENGTH)
    return f"{name} in {cut_text(package, _MAX_PLACE_LENGTH)}" if package else describe_place(frame)


_called_names: dict[tuple[CodeType, int], tuple[str, str | None] | None] = {}


def find_called(frame: FrameType) -> tuple[str, str | None] | None:
    """What the native function waits for that a frame has called, by its name: None for a name that is not known."""
    key = frame.f_code, frame.f_lasti
    if key not in _called_names:
        if len(_called_names) >= _MAX_KNOWN_CODES:
            _called_names.clear()
        _called_names[key] = _find_called(frame)
    return _called_names[key]


def _find_called(frame: FrameType) -> tuple[str, str | None] | None:
    import dis  # noqa: PLC0415 - few threads are seen at such a moment

    found = None
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset > frame.f_lasti:
            break
        if instruction.starts_line:
            found = None
        if instruction.opname.startswith("LOAD_") and instruction.argval in _CALLED:
            found = _CALLED[instruction.argval]
    return found


def _handled(ident: int) -> str | None:
    """The class of the exception that the thread handles, and of an operating system's error its code."""
    read = getattr(sys, "_current_exceptions", None)  # since Python 3.10
    found = None if read is None else read().get(ident)
    error = found[1] if isinstance(found, tuple) else found
    if not isinstance(error, BaseException):
        return None
    name = cut_text(type.__dict__["__name__"].__get__(type(error)), _MAX_PLACE_LENGTH)
    slot: Any = OSError.__dict__["errno"]
    number = slot.__get__(error) if isinstance(error, OSError) else None
    code = errno.errorcode.get(number) if type(number) is int else None
    return name if code is None else f"{name} {code}"


_interpreter_memory: list[tuple[int, int]] = []


def _is_interpreter(address: int) -> bool:
    """Whether a lock is the interpreter's own."""
    if not _interpreter_memory:
        _interpreter_memory.extend(syscalls.find_interpreter_memory() or [(0, 0)])
    return any(begin <= address < end for begin, end in _interpreter_memory)


class LateLooks:
    """How long the looks of a thread have waited for the interpreter. That thread uses it.

    A look that is late has waited for a CPU or for the interpreter. The kernel counts the time of the first, but on a
    busy machine the second has such times too: a thread that waits for the interpreter wakes up again and again, and
    waits for a CPU each time. So many wake-ups are themselves such a wait.
    """

    def __init__(self) -> None:
        self._files = syscalls.ThreadFiles(threading.get_native_id())
        self._planned_at: float | None = None
        self._queued_sec, self._wakeups = 0.0, 0

    def plan(self, at: float) -> None:
        self._planned_at = at
        _, self._queued_sec, self._wakeups = self._files.read_schedule()

    def close(self) -> None:
        self._files.close()

    def late_sec(self, now: float) -> float:
        if self._planned_at is None:
            return 0.0
        late_sec = now - self._planned_at
        _, queued_sec, wakeups = self._files.read_schedule()
        waited_sec = (wakeups - self._wakeups - _OTHER_WAKEUPS) * sys.getswitchinterval()
        return max(0.0, late_sec - (queued_sec - self._queued_sec), min(late_sec, waited_sec))


def read_memory_mb() -> tuple[float, float]:
    """The memory of this process now, and its peak."""
    resident, peak = 0.0, 0.0
    try:
        pages = int(syscalls.read_file("/proc/self/statm").split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE") / 1_048_576
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    except (OSError, ValueError, IndexError):
        pass
    return round(resident, 1), round(max(peak, resident), 1)


def read_cpu_of_process() -> float:
    """CPU time of this process and of those that it has started and waited for."""
    times = os.times()
    return round(times.user + times.system + times.children_user + times.children_system, 3)
