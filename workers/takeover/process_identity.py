"""Identifies a process of this host beyond doubt, and proves its death and that of the processes it started.

A process is the same one if boot, pid namespace, time namespace, pid and start time are the same. An observer that
shares the first three with it can prove that it is gone; what the observer cannot read is never proof. Only Linux
shows these values: elsewhere there is no identity, and the lease decides.

A process also holds an flock on a file of its own; the processes of jobs inherit the descriptor, and with it the lock.
The lock is free only when the last of them has ended: a job's process may outlive its worker, for ever in a session of
its own. The file is in the first of these folders that works, on a local file system:

    /run/user/UID/dataloader      where the system keeps one for the user
    /run/dataloader               if this account may write there, or make it
    TEMP/dataloader-UID           the folder for temporary files
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from uuid import UUID

from dataloader.app import log

_log = log.get(__name__)
PROC = Path("/proc")
_NO_TIME_NAMESPACES = "none"  # kernels before 5.6 have one clock for all
_DEAD_STATES = ("Z", "X")
# Fields of /proc/PID/stat after the name, which may itself hold spaces and brackets.
_STATE_FIELD, _START_TIME_FIELD = 0, 19
_MOUNTS = Path("/proc/self/mountinfo")
_DEVICE_FIELD, _OPTIONS_END = 2, "-"  # in a line of mountinfo: the device, and the separator before the type
# File systems whose locks may be those of several machines, or none.
_REMOTE_FILE_SYSTEMS = (
    *("nfs", "cifs", "smb", "9p", "ceph", "afs", "fuse"),
    *("lustre", "gluster", "ocfs2", "gfs2", "virtiofs"),
)


@dataclass(frozen=True)
class Identity:
    """Identifies one process of one boot of one host."""

    boot_id: str
    pid_namespace: str
    time_namespace: str
    pid: int
    start_time: int  # in clock ticks after boot, as processes of the same time namespace see it

    def shares_host(self, other: Identity) -> bool:
        """Return whether a process with one identity sees the other by its pid."""
        return replace(self, pid=other.pid, start_time=other.start_time) == other


class Proof(StrEnum):
    """Why a process is known to be dead."""

    GONE = "no process has its pid"
    REPLACED = "its pid belongs to another process"
    DEFUNCT = "it has ended, and its parent has not reaped it"
    NAME_TAKEN = "a new process holds its name"


def read_identity(proc: Path = PROC) -> Identity | None:
    """Return the identity of this process; None where it cannot be read. Read it again after each fork."""
    pid = os.getpid()
    if not _shows_own_namespace(proc, pid):
        return None
    stat = _read_stat(proc, pid)
    boot_id = _read_text(proc / "sys" / "kernel" / "random" / "boot_id")
    pid_namespace = _read_link(proc / "self" / "ns" / "pid")
    time_namespace = _read_link(proc / "self" / "ns" / "time", missing=_NO_TIME_NAMESPACES)
    if stat is None or not boot_id or pid_namespace is None or time_namespace is None:
        return None
    return Identity(boot_id.strip(), pid_namespace, time_namespace, pid, stat[1])


def prove_death(identity: Identity, observer: Identity | None, proc: Path = PROC) -> Proof | None:
    """Return the proof that the process of this identity is dead, or None if only its lease can decide."""
    if observer is None or not observer.shares_host(identity) or not _shows_own_namespace(proc, os.getpid()):
        return None
    try:
        os.kill(identity.pid, 0)
    except ProcessLookupError:
        return Proof.GONE
    except (OSError, OverflowError):
        return None
    stat = _read_stat(proc, identity.pid)
    if stat is None:  # there is no entry, as under hidepid
        return None
    state, start_time = stat
    if start_time != identity.start_time:
        return Proof.REPLACED
    # A leading thread that ends alone is defunct too, while the others run.
    if state in _DEAD_STATES and _count_other_threads(proc, identity.pid) == 0:
        return Proof.DEFUNCT
    return None


def _shows_own_namespace(proc: Path, pid: int) -> bool:
    """Return whether the pids of this /proc are those of this process's namespace. A parent namespace may use the same
    pid by chance, so the pids in all namespaces below the mounted one are read: there must be only one."""
    if _read_link(proc / "self") != str(pid):
        return False
    for line in (_read_text(proc / "self" / "status") or "").splitlines():
        if line.startswith("NSpid:"):
            return line.split()[1:] == [str(pid)]
    return False


def _read_stat(proc: Path, pid: int) -> tuple[str, int] | None:
    """Return state and start time."""
    fields = (_read_text(proc / str(pid) / "stat") or "").rpartition(")")[2].split()
    try:
        return fields[_STATE_FIELD], int(fields[_START_TIME_FIELD])
    except (IndexError, ValueError):
        return None


def _count_other_threads(proc: Path, pid: int) -> int | None:
    try:
        return len({entry.name for entry in (proc / str(pid) / "task").iterdir()} - {str(pid)})
    except OSError:
        return None


def _read_link(path: Path, *, missing: str | None = None) -> str | None:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return missing
    except OSError:
        return None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


class LockState(StrEnum):
    FREE = "free"
    HELD = "held"  # by the process, or by one that it started
    UNKNOWN = "unknown"  # the file cannot be read, or is not there


class ProcessLock:
    """Acquired in the process that starts the threads, so that an earlier fork does not share it."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.descriptor: int | None = None  # inherited by the processes of jobs

    def acquire(self, worker_id: UUID, folders: tuple[Path, ...] = ()) -> None:
        """Create and lock the file. Without one the death of jobs with a process of their own cannot be proved."""
        for folder in folders or tuple(_candidate_folders()):
            try:
                _prepare_folder(folder)
                if _is_remote(folder):
                    continue
                path = folder / _file_name(worker_id)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            self.path, self.descriptor = path, descriptor
            return
        _log.warning("process_lock.missing", detail="no runtime folder can be written to; leases alone decide")

    def inherited_descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that a job's process inherits."""
        return () if self.descriptor is None else (self.descriptor,)

    def release(self) -> None:
        """Remove the file at a clean stop. A child that still lives keeps its lock, but no process checks it."""
        descriptor, self.descriptor = self.descriptor, None
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()
        if descriptor is not None:
            os.close(descriptor)


def remove_lock(path: Path, worker_id: UUID) -> None:
    """Remove the file of a dead process. The path comes from a table, so only files of ours are removed."""
    if path.name == _file_name(worker_id) and path.parent in _candidate_folders():
        with suppress(OSError):
            path.unlink()


def _file_name(worker_id: UUID) -> str:
    return f"{worker_id}.lock"


def probe_lock(path: Path, worker_id: UUID) -> LockState:
    """Return whether a process still holds the lock of this file.

    Only regular files are opened: opening a device may have effects. A file of another account proves nothing.
    """
    try:
        if path.name != _file_name(worker_id) or not stat.S_ISREG(path.lstat().st_mode):
            return LockState.UNKNOWN
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return LockState.UNKNOWN
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return LockState.UNKNOWN
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two observers do not mislead each other
    except BlockingIOError:
        return LockState.HELD
    except OSError:
        return LockState.UNKNOWN
    finally:
        os.close(descriptor)
    return LockState.FREE


def _candidate_folders() -> Iterator[Path]:
    user = os.getuid()
    if os.path.isdir(f"/run/user/{user}"):
        yield Path(f"/run/user/{user}/dataloader")
    yield Path("/run/dataloader")
    try:
        temp = tempfile.gettempdir()
    except OSError:  # none can be written to
        return
    yield Path(temp) / f"dataloader-{user}"


def _prepare_folder(folder: Path) -> None:
    """Make the folder, for this account alone; raise OSError if another could replace files in it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(folder)
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(folder)


def _is_remote(folder: Path) -> bool:
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        fields = line.split(" ")
        if fields[_DEVICE_FIELD] == number and _OPTIONS_END in fields:
            return fields[fields.index(_OPTIONS_END) + 1].startswith(_REMOTE_FILE_SYSTEMS)
    return False
