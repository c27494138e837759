"""What a thread of this process waits for in the kernel, by the number of its system call. Of Linux alone. Portable."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

_TASKS = "/proc/self/task"
_MAX_BYTES = 4096
_MAJOR_FAULTS = 9  # of the fields of /proc/<pid>/stat after the name
# kind → numbers on x86-64 and on 64-bit ARM
_NUMBERS = {
    "sleep": ({35, 230}, {101, 115}),
    "socket": ({42, 43, 44, 45, 46, 47, 288, 299, 307}, {202, 203, 206, 207, 211, 212, 242, 243, 269}),
    "poll": ({7, 23, 232, 270, 271, 281, 441}, {22, 72, 73, 441}),
    "descriptor": ({0, 1, 17, 18, 19, 20, 40, 275, 295, 296}, {63, 64, 65, 66, 67, 68, 69, 70, 71, 76}),
    "sync": ({26, 74, 75, 162, 277, 306}, {81, 82, 83, 84, 227, 267}),
    "file": ({2, 77, 82, 83, 84, 87, 217, 257, 262, 263, 285, 316}, {34, 35, 46, 47, 56, 61, 79, 276}),
    "file lock": ({72, 73}, {25, 32}),
    "futex": ({202}, {98}),
    "child": ({61, 247}, {95, 260}),
}
_MACHINES = ("x86_64", "aarch64")
_MACHINE = os.uname().machine
_KINDS = {}
if sys.platform == "linux" and _MACHINE in _MACHINES:
    _KINDS = {number: kind for kind, sets in _NUMBERS.items() for number in sets[_MACHINES.index(_MACHINE)]}
# The argument that is the number of descriptors: a call with none only sleeps.
_COUNT_ARGUMENTS = {7: 1, 271: 1, 23: 0, 270: 0} if _MACHINE == "x86_64" else {73: 1, 72: 0}


class ThreadFiles:
    """What the kernel says of a thread of this process. The files stay open: to open one, too, another thread may take
    the interpreter."""

    def __init__(self, native_id: int) -> None:
        folder = f"{_TASKS}/{native_id}"
        self._files = {name: _open(f"{folder}/{name}") for name in ("syscall", "schedstat", "stat")}

    def read_wait(self) -> tuple[str, int]:
        return parse_wait(self._read("syscall"))

    def read_schedule(self) -> tuple[float | None, float, int]:
        """CPU time, how long it was ready to run and had no CPU, and how often it got one. None where the kernel does
        not say."""
        fields = self._read("schedstat").split()
        return (int(fields[0]) / 1e9, int(fields[1]) / 1e9, int(fields[2])) if fields else (None, 0.0, 0)

    def read_major_faults(self) -> int:
        """For how many pages of memory it had to wait."""
        fields = self._read("stat").rpartition(b")")[2].split()
        return int(fields[_MAJOR_FAULTS]) if len(fields) > _MAJOR_FAULTS else 0

    def _read(self, name: str) -> bytes:
        descriptor = self._files[name]
        if descriptor is not None:
            with suppress(OSError):  # the thread has ended
                return os.pread(descriptor, _MAX_BYTES, 0)
        return b""

    def close(self) -> None:
        for descriptor in self._files.values():
            if descriptor is not None:
                os.close(descriptor)
        self._files = dict.fromkeys(self._files)


def _open(path: str) -> int | None:
    with suppress(OSError):
        return os.open(path, os.O_RDONLY)
    return None


def read_wait_of(folder: str) -> tuple[str, int]:
    """The wait of a thread or process by its folder in /proc."""
    try:
        return parse_wait(read_file(folder + "/syscall"))
    except OSError:
        return "unknown", 0


def parse_wait(line: bytes) -> tuple[str, int]:
    """The kind of the system call, and its first argument. The kind is `running` outside of calls, `memory` for a
    thread that waits there, `other` for calls without a kind, and `unknown` where the kernel does not say."""
    fields = line.split()
    if not fields or fields[0] == b"running":
        return ("running" if fields else "unknown"), 0
    try:
        number = int(fields[0])
        if number < 0:
            return "memory", 0
        arguments = [int(field, 16) for field in fields[1:3]]
        kind = _KINDS.get(number, "other")
        if number in _COUNT_ARGUMENTS and kind == "poll" and arguments[_COUNT_ARGUMENTS[number]] == 0:
            kind = "sleep"
        return kind, arguments[0]
    except (ValueError, IndexError):
        return "unknown", 0


def describe_descriptor(folder: str, descriptor: int) -> str:
    """What a descriptor of a process is: `socket`, `pipe`, `terminal`, `file`, or `unknown`."""
    with suppress(OSError):
        name = os.readlink(f"{folder}/fd/{descriptor}")
        if name.startswith("socket:"):
            return "socket"
        if name.startswith("pipe:"):
            return "pipe"
        return "terminal" if name.startswith(("/dev/pts/", "/dev/tty")) else "file"
    return "unknown"


def read_children(native_id: int) -> list[int]:
    """The processes that a thread of this process has started and not waited for yet."""
    try:
        return [int(pid) for pid in read_file(f"{_TASKS}/{native_id}/children").split()]
    except (OSError, ValueError):
        return []


def read_name(pid: int) -> str:
    """The name of a process's program, without arguments."""
    try:
        return read_file(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_file(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, _MAX_BYTES)
    finally:
        os.close(descriptor)


def find_interpreter_memory() -> list[tuple[int, int]]:
    """Where the interpreter's variables are, its lock among them: the writable memory of its program or library."""
    ranges, follows = [], False
    with suppress(OSError, ValueError), open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            addresses, rights, *more = line.split(maxsplit=5)
            path = more[-1].strip() if "/" in line or "[" in line else ""
            is_ours = "libpython" in path or os.path.basename(path).startswith("python")
            is_zeroed = follows and not path  # variables without a value in the file
            if "w" in rights and (is_ours or is_zeroed):
                begin, _, end = addresses.partition("-")
                ranges.append((int(begin, 16), int(end, 16)))
            follows = is_ours or is_zeroed
    return ranges
