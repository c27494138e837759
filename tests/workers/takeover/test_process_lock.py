"""The lock that the last of a worker's processes gives back by its end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from dataloader.workers.takeover import process_identity
from dataloader.workers.takeover.process_identity import LockState, ProcessLock, probe_lock, remove_lock
from tests.support.waiting import eventually

WORKER = uuid4()


def taken(folder: Path) -> tuple[ProcessLock, Path]:
    lock = ProcessLock()
    lock.acquire(WORKER, (folder,))
    assert lock.path is not None
    return lock, lock.path


def kept(path: Path) -> Path:
    """The same file in another folder: a clean end removes the first."""
    other = path.parent / "kept" / path.name
    other.parent.mkdir()
    other.hardlink_to(path)
    return other


def test_lock_is_held_until_its_last_process_has_ended(tmp_path: Path):
    lock, path = taken(tmp_path / "run")
    assert path.stat().st_mode & 0o777 == 0o600
    assert probe_lock(path, WORKER) is LockState.HELD
    (descriptor,) = lock.inherited_descriptors()
    child = subprocess.Popen(["sleep", "600"], pass_fds=[descriptor], start_new_session=True)
    try:
        other = kept(path)
        lock.release()
        assert probe_lock(other, WORKER) is LockState.HELD
    finally:
        child.kill()
        child.wait()
    eventually(lambda: probe_lock(other, WORKER) is LockState.FREE)


def test_clean_end_removes_the_file(tmp_path: Path):
    lock, path = taken(tmp_path)
    lock.release()
    assert not path.exists()
    assert lock.inherited_descriptors() == ()


def test_descriptor_is_not_inherited_unless_it_is_passed(tmp_path: Path):
    lock, path = taken(tmp_path)
    child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        other = kept(path)
        lock.release()
        assert probe_lock(other, WORKER) is LockState.FREE
    finally:
        child.kill()
        child.wait()


def test_missing_or_irregular_lock_file_is_unknown(tmp_path: Path):
    path = tmp_path / f"{WORKER}.lock"
    assert probe_lock(path, WORKER) is LockState.UNKNOWN
    path.mkdir()
    assert probe_lock(path, WORKER) is LockState.UNKNOWN
    path.rmdir()
    (tmp_path / "target").touch()
    path.symlink_to(tmp_path / "target")
    assert probe_lock(path, WORKER) is LockState.UNKNOWN
    assert probe_lock(tmp_path / "target", WORKER) is LockState.UNKNOWN


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_lock_file_of_another_account_proves_nothing(tmp_path: Path):
    path = tmp_path / f"{WORKER}.lock"
    path.touch()
    assert probe_lock(path, WORKER) is LockState.FREE
    os.chown(path, 65534, 65534)
    assert probe_lock(path, WORKER) is LockState.UNKNOWN


def test_only_a_lock_file_in_a_runtime_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process_identity, "_candidate_folders", lambda: iter([tmp_path / "ours"]))
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
        for name in (f"{WORKER}.lock", "passwd"):
            (tmp_path / folder / name).touch()
            remove_lock(tmp_path / folder / name, WORKER)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["ours/passwd", f"theirs/{WORKER}.lock", "theirs/passwd"]


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_unusable_lock_folder_is_skipped(tmp_path: Path, mode: int):
    (tmp_path / "file").touch()
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(mode)
    lock = ProcessLock()
    lock.acquire(uuid4(), (tmp_path / "file", tmp_path / "no" / "where", open_to_all, tmp_path / "good"))
    assert lock.path is not None
    assert lock.path.parent == tmp_path / "good"
    lock.release()


def test_remote_file_system_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    device = tmp_path.stat().st_dev
    number = f"{device >> 8 & 0xFFF}:{device & 0xFF}"
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(process_identity, "_MOUNTS", mounts)
    mounts.write_text(f"22 27 {number} / /x rw,relatime shared:1 - nfs4 host:/x rw\n")
    lock = ProcessLock()
    lock.acquire(uuid4(), (tmp_path,))
    assert lock.inherited_descriptors() == ()
    mounts.write_text(f"22 27 {number} / /x rw,relatime shared:1 - ext4 /dev/x rw\n")
    lock.acquire(uuid4(), (tmp_path,))
    assert lock.path is not None
    lock.release()
