"""Identifies a process of this host beyond doubt, and proves its death.

A process is the same one if boot, pid namespace, time namespace, pid and start time are the same. An observer that
shares the first three with it can prove that it is gone; what the observer cannot read is never proof. Only Linux
shows these values: elsewhere there is no identity, and the lease decides.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

PROC = Path("/proc")
_NO_TIME_NAMESPACES = "none"  # kernels before 5.6 have one clock for all
_DEAD_STATES = ("Z", "X")
_STATE, _START_TIME = 0, 19  # fields of /proc/PID/stat after the name, which may itself hold spaces and brackets


@dataclass(frozen=True)
class Identity:
    """What names one process of one boot of one host."""

    boot_id: str
    pid_namespace: str
    time_namespace: str
    pid: int
    start_time: int  # in clock ticks after boot, as processes of the same time namespace see it

    def shares_host(self, other: Identity) -> bool:
        """Whether a process with one identity can see the other by its pid."""
        return (self.boot_id, self.pid_namespace, self.time_namespace) == (
            other.boot_id,
            other.pid_namespace,
            other.time_namespace,
        )


class Signal(StrEnum):
    """What `kill(pid, 0)` answered."""

    DELIVERED = "delivered"
    NO_SUCH_PROCESS = "no such process"
    REFUSED = "refused"


@dataclass(frozen=True)
class Observation:
    """What an observer could read of a pid. None: it could not be read."""

    observer: Identity | None
    signal: Signal
    state: str | None = None
    start_time: int | None = None
    other_threads: int | None = None  # beside the leading one


class Proof(StrEnum):
    """Why a process is known to be dead."""

    GONE = "no process has its pid"
    REPLACED = "its pid belongs to another process"
    DEFUNCT = "it has ended, and its parent has not reaped it"
    NAME_TAKEN = "a new process holds its name"


def judge(identity: Identity, seen: Observation) -> Proof | None:
    """Return why the process of this identity is certainly dead, or None: then its lease decides."""
    if seen.observer is None or not seen.observer.shares_host(identity):
        return None
    if seen.signal is Signal.NO_SUCH_PROCESS:
        return Proof.GONE
    if seen.signal is Signal.REFUSED or seen.start_time is None or seen.state is None:
        return None
    if seen.start_time != identity.start_time:
        return Proof.REPLACED
    # A leading thread that ends alone is defunct too, while the others run.
    if seen.state in _DEAD_STATES and seen.other_threads == 0:
        return Proof.DEFUNCT
    return None


def read_identity(proc: Path = PROC) -> Identity | None:
    """Return the identity of this process; None where it cannot be read. To be read again after each fork."""
    pid = os.getpid()
    if not _shows_own_namespace(proc, pid):
        return None
    stat = _stat(proc, pid)
    boot_id = _text(proc / "sys" / "kernel" / "random" / "boot_id")
    pid_namespace = _link(proc / "self" / "ns" / "pid")
    time_namespace = _time_namespace(proc)
    if stat is None or not boot_id or pid_namespace is None or time_namespace is None:
        return None
    return Identity(boot_id.strip(), pid_namespace, time_namespace, pid, stat[1])


def observe(pid: int, observer: Identity | None, proc: Path = PROC) -> Observation:
    """Read what can be known of a pid now."""
    if observer is None or not _shows_own_namespace(proc, os.getpid()):
        return Observation(None, Signal.REFUSED)
    signal = _probe(pid)
    if signal is not Signal.DELIVERED:
        return Observation(observer, signal)
    stat = _stat(proc, pid)
    if stat is None:
        return Observation(observer, signal)
    return Observation(observer, signal, state=stat[0], start_time=stat[1], other_threads=_other_threads(proc, pid))


def prove_death(identity: Identity, observer: Identity | None, proc: Path = PROC) -> Proof | None:
    """Look at a process and judge it."""
    return judge(identity, observe(identity.pid, observer, proc))


def _probe(pid: int) -> Signal:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Signal.NO_SUCH_PROCESS
    except (OSError, OverflowError):
        return Signal.REFUSED
    return Signal.DELIVERED


def _shows_own_namespace(proc: Path, pid: int) -> bool:
    """Whether this /proc numbers processes as this process does. The parent's namespace may give it the same number by
    chance, so the numbers in all namespaces below the mounted one are read too: there is to be just one."""
    if _link(proc / "self") != str(pid):
        return False
    for line in (_text(proc / "self" / "status") or "").splitlines():
        if line.startswith("NSpid:"):
            return line.split()[1:] == [str(pid)]
    return False


def _stat(proc: Path, pid: int) -> tuple[str, int] | None:
    """State and start time."""
    fields = (_text(proc / str(pid) / "stat") or "").rpartition(")")[2].split()
    try:
        return fields[_STATE], int(fields[_START_TIME])
    except (IndexError, ValueError):
        return None


def _other_threads(proc: Path, pid: int) -> int | None:
    try:
        return len({entry.name for entry in (proc / str(pid) / "task").iterdir()} - {str(pid)})
    except OSError:
        return None


def _time_namespace(proc: Path) -> str | None:
    path = proc / "self" / "ns" / "time"
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return _NO_TIME_NAMESPACES
    except OSError:
        return None


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
