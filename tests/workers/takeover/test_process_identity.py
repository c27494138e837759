"""What proves the death of a process, and what does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dataloader.workers.takeover.process_identity import Identity, Proof, prove_death, read_identity
from tests.support.waiting import eventually

THEM = Identity("boot", "pid:[1]", "time:[2]", 4711, 1000)
OBSERVER = replace(THEM, pid=1, start_time=5)


class PlantedProc:
    """A /proc with this process as the observer, and one process next to it."""

    def __init__(self, root: Path) -> None:
        self.root, self.me = root, os.getpid()
        for folder in ("sys/kernel/random", f"{self.me}/ns"):
            (root / folder).mkdir(parents=True)
        (root / "sys/kernel/random/boot_id").write_text("boot\n")
        (root / "self").symlink_to(str(self.me))
        (root / f"{self.me}/ns/pid").symlink_to("pid:[1]")
        (root / f"{self.me}/ns/time").symlink_to("time:[2]")
        self.status(self.me)
        self.stat(self.me, start_time=5)

    def status(self, *pids: int) -> None:
        text = "Name:\tx\nNSpid:\t" + "\t".join(map(str, pids)) + "\n"
        (self.root / f"{self.me}/status").write_text(text)

    def stat(self, pid: int, *, state: str = "S", start_time: int = 1000, name: str = "a) Z (b") -> None:
        (self.root / str(pid) / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        numbers = " ".join(["0"] * 18)
        (self.root / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {numbers} {start_time} 0 0\n")


@pytest.fixture
def proc(tmp_path: Path) -> PlantedProc:
    return PlantedProc(tmp_path / "proc")


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda pid, number: None)


def test_identity_is_read_from_proc(proc: PlantedProc):
    assert read_identity(proc.root) == replace(OBSERVER, pid=os.getpid())


def test_kernel_without_time_namespaces_has_an_identity(proc: PlantedProc):
    (proc.root / f"{proc.me}/ns/time").unlink()
    found = read_identity(proc.root)
    assert found is not None
    assert found.time_namespace == "none"


@pytest.mark.parametrize("lost", ["self", "sys/kernel/random/boot_id", "{me}/ns/pid", "{me}/stat", "{me}/status"])
def test_unreadable_proc_gives_no_identity(proc: PlantedProc, lost: str):
    (proc.root / lost.format(me=proc.me)).unlink()
    assert read_identity(proc.root) is None


def test_system_without_proc_gives_no_identity_and_no_error(tmp_path: Path):
    assert read_identity(tmp_path / "none") is None
    assert prove_death(THEM, OBSERVER, tmp_path / "none") is None


def test_proc_of_another_namespace_proves_nothing(proc: PlantedProc):
    """Its number there may be the same by chance."""
    proc.status(proc.me, 1)
    assert read_identity(proc.root) is None
    assert prove_death(replace(THEM, pid=2**22 + 1), OBSERVER, proc.root) is None
    proc.status(proc.me)
    assert prove_death(replace(THEM, pid=2**22 + 1), OBSERVER, proc.root) is Proof.GONE


@pytest.mark.parametrize(
    ("state", "start_time", "proof"),
    [
        ("S", 1000, None),
        ("T", 1000, None),
        ("S", 1001, Proof.REPLACED),
        ("T", 1001, Proof.REPLACED),
        ("Z", 1000, Proof.DEFUNCT),
        ("X", 1000, Proof.DEFUNCT),
    ],
)
def test_state_and_start_time_of_an_answering_pid(
    proc: PlantedProc, answering: None, state: str, start_time: int, proof: Proof | None
):
    proc.stat(THEM.pid, state=state, start_time=start_time)
    assert prove_death(THEM, OBSERVER, proc.root) is proof


@pytest.mark.parametrize(
    "observer",
    [
        None,
        replace(OBSERVER, boot_id="x"),
        replace(OBSERVER, pid_namespace="x"),
        replace(OBSERVER, time_namespace="x"),
    ],
)
def test_observer_of_another_host_proves_nothing(proc: PlantedProc, observer: Identity | None):
    them = replace(THEM, pid=2**22 + 1)
    assert prove_death(them, OBSERVER, proc.root) is Proof.GONE
    assert prove_death(them, observer, proc.root) is None


def test_unreadable_threads_of_a_defunct_leader_are_no_proof(proc: PlantedProc, answering: None):
    proc.stat(THEM.pid, state="Z")
    (proc.root / f"{THEM.pid}/task/{THEM.pid}").rmdir()
    (proc.root / f"{THEM.pid}/task").rmdir()
    assert prove_death(THEM, OBSERVER, proc.root) is None


def test_missing_proc_entry_of_an_answering_pid_is_no_proof(proc: PlantedProc, answering: None):
    assert prove_death(THEM, OBSERVER, proc.root) is None


def test_reused_pid_is_proof(proc: PlantedProc, answering: None):
    proc.stat(THEM.pid, start_time=THEM.start_time)
    assert prove_death(THEM, OBSERVER, proc.root) is None
    proc.stat(THEM.pid, start_time=THEM.start_time + 1)
    assert prove_death(THEM, OBSERVER, proc.root) is Proof.REPLACED


def test_defunct_leader_with_another_thread_is_no_proof(proc: PlantedProc, answering: None):
    proc.stat(THEM.pid, state="Z")
    (proc.root / f"{THEM.pid}/task/4712").mkdir()
    assert prove_death(THEM, OBSERVER, proc.root) is None
    (proc.root / f"{THEM.pid}/task/4712").rmdir()
    assert prove_death(THEM, OBSERVER, proc.root) is Proof.DEFUNCT


def test_refused_signal_is_no_proof(proc: PlantedProc, monkeypatch: pytest.MonkeyPatch):
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    proc.stat(THEM.pid, start_time=THEM.start_time + 1)
    assert prove_death(THEM, OBSERVER, proc.root) is None


# ── real processes ──────────────────────────────────────────────────────────────────────────────────────────────────

linux = pytest.mark.skipif(sys.platform != "linux", reason="proof needs /proc")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def identity_of(process: subprocess.Popen[bytes]) -> Identity:
    me = read_identity()
    assert me is not None
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return replace(me, pid=process.pid, start_time=int(fields[19]))


@linux
def test_killed_process_is_proved_dead_before_and_after_wait(other: subprocess.Popen[bytes]):
    me, them = read_identity(), identity_of(other)
    assert prove_death(them, me) is None
    os.kill(other.pid, signal.SIGSTOP)
    assert prove_death(them, me) is None
    os.kill(other.pid, signal.SIGKILL)
    eventually(lambda: prove_death(them, me) is Proof.DEFUNCT)
    other.wait()
    assert prove_death(them, me) is Proof.GONE


@linux
def test_identity_is_that_of_the_forked_process():
    before, (reader, writer) = read_identity(), os.pipe()
    assert before is not None
    if (child := os.fork()) == 0:
        os.write(writer, repr(read_identity()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    assert f"pid={child}," in found
    assert repr(before.boot_id) in found
