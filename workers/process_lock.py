"""A lock file that shows whether a process, or anything that it started, still lives.

The process holds an flock on a file of its own; the processes of jobs inherit the descriptor, and with it the lock. The
lock is free only when the last of them has ended: a job's process may outlive its worker, for ever in a session of its
own. The file is in the first of these folders that works, on a local file system:

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
from enum import StrEnum
from pathlib import Path
from uuid import UUID

from app import log

_log = log.get(__name__)
_MOUNTS = Path("/proc/self/mountinfo")
_DEVICE_FIELD, _OPTIONS_END = 2, "-"  # in a line of mountinfo: the device, and the separator before the type
# File systems whose locks may be those of several machines, or none.
_REMOTE_FILE_SYSTEMS = (
    *("nfs", "cifs", "smb", "9p", "ceph", "afs", "fuse"),
    *("lustre", "gluster", "ocfs2", "gfs2", "virtiofs"),
)


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
    if Path(f"/run/user/{user}").is_dir():
        yield Path(f"/run/user/{user}/dataloader")
    yield Path("/run/dataloader")
    yield Path(tempfile.gettempdir()) / f"dataloader-{user}"


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
