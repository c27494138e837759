"""The process of a job, and how it is watched over: without a database, for it needs none."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from app.queue.job import Settlement, Status
from pipelines.contract import Pipelines, StopReason, registry
from tests.support import eventually, hostile
from tests.support.claims import Said, attempt_with
from tests.support.running import Jobs, alive, ask
from workers import leash
from workers.attempt import Attempt
from workers.child import Child, Unstarted
from workers.outcome import Abandoned, Ending, HandedBack

PACKAGES: dict[str, Any] = {"packages": ("tests.support.hostile",)}


@pytest.fixture
def said() -> Said:
    return Said()


def settled(task: str, said: Said | None = None, tools: dict[str, Any] | None = None, **row: Any) -> Settlement:
    args = row.pop("args", {})
    attempt = attempt_with(said, tools={**PACKAGES, **(tools or {})}, task=task, args_text=json.dumps(args), **row)
    end = attempt.run(registry.get(task))
    assert isinstance(end, Settlement), end
    return end


def python(attempt: Attempt, code: str, **more: Any) -> Child:
    return Child(attempt, [sys.executable, "-c", code], **more)


class Running:
    """An attempt in a thread of its own, as a worker has it."""

    def __init__(self, attempt: Attempt, pipelines: Pipelines = registry) -> None:
        self.attempt = attempt
        self.ends: list[Ending] = []
        self._thread = threading.Thread(target=lambda: self.ends.append(attempt.run(pipelines.get(attempt.job.task))))
        self._thread.start()

    def end(self, timeout: float = 30) -> Ending:
        self._thread.join(timeout)
        assert self.ends, "it still runs"
        return self.ends[0]


def running(task: str, **more: Any) -> Running:
    return Running(attempt_with(tools=PACKAGES | more.pop("tools", {}), task=task, **more))


# ── its streams ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_result_larger_than_any_buffer_crosses_whole():
    end = settled("hostile.big", args={"size": 10_000_000}, tools={"max_result_bytes": 20_000_000})

    assert end.status is Status.SUCCEEDED
    assert len(end.result) == 5_000_000
    assert end.progress is not None
    assert end.progress["processed"] == 99


def test_a_result_beyond_the_limit_says_so_instead():
    end = settled("hostile.big", args={"size": 1000}, tools={"max_result_bytes": 100})

    assert end.result == {"$dropped": "1002 bytes of JSON; at most 100 are kept"}


def test_garbage_on_the_channel_harms_nobody():
    end = settled("hostile.garbage")

    assert (end.status, end.result) == (Status.SUCCEEDED, "unharmed")


@pytest.mark.parametrize("task", ["closes_its_streams", "leaves_a_daemon", "leaves_threads"])
def test_streams_and_threads_that_stay_open_or_close_early_decide_nothing(task: str):
    end = settled(f"hostile.{task}")
    if task == "leaves_a_daemon":
        os.kill(end.result, signal.SIGKILL)

    assert end.status is Status.SUCCEEDED


def test_what_is_printed_in_any_encoding_is_kept_as_well_as_it_can_be(said: Said):
    settled("hostile.says_odd_things", said)

    assert said.of("stdout") == ["caf\N{REPLACEMENT CHARACTER}", "half a surrogate \\udc80"]
    assert said.of("log")[0] == "'%d' (with arguments that do not fit it)"
    assert len(said.of("log")[1]) < 20_000


def test_threads_finalizers_and_signal_handlers_may_log_at_once(said: Said):
    end = settled("hostile.logs_at_once", said)

    assert end.result == "all said"
    told = said.of("log")
    assert len([line for line in told if line.startswith("line ")]) == 800
    assert told.count("gone") > 100  # one thread collects at a time
    assert set(told) <= {f"line {n}" for n in range(200)} | {"gone", "alarm"}


def test_what_a_fork_logs_is_kept_too(said: Said):
    end = settled("hostile.forks", said)

    assert end.result == [0, 1, 2, 3]
    assert sorted(said.of("stderr")) == [f"from a fork {n}" for n in range(4)]


def test_a_flood_is_read_without_an_end_in_memory(said: Said):
    tasks = Pipelines()
    tasks.command("flood", [sys.executable, "-c", "import sys\nfor n in range(40): sys.stdout.write('y\\n' * 10_000)"])
    end = attempt_with(said, task="flood").run(tasks.get("flood"))

    assert isinstance(end, Settlement)
    assert end.status is Status.SUCCEEDED
    assert len(said.lines) == 400_000


def test_an_error_as_long_as_a_book_is_cut(said: Said):
    end = settled("hostile.huge_error", said)

    assert end.error is not None
    assert end.error.startswith("ValueError: xxx")
    assert len(end.error) < 9_000
    assert not end.crashed


# ── its end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_registered_to_be_done_at_the_exit_is_done(tmp_path: Path):
    settled("hostile.cleans_up", args={"file": str(tmp_path / "file")})

    assert (tmp_path / "file").read_text() == "cleaned"


def test_a_process_that_has_said_its_end_is_not_waited_for_without_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("workers.child._LINGER", 0.2)

    assert settled("hostile.never_leaves").result == "done"


def test_a_polite_signal_from_elsewhere_is_no_crash():
    end = settled("hostile.terminated")

    assert end.error is not None
    assert "killed by SIGTERM" in end.error
    assert (end.status, end.crashed, end.traceback) == (Status.QUEUED, False, None)


def test_threads_find_room_within_the_limit_of_memory():
    assert settled("hostile.threads_within_its_memory").result == "50000000"


def test_many_short_processes_leave_nothing_behind():
    settled("hostile.short", args={"n": 0})
    me = psutil.Process()
    before, threads = me.num_fds(), threading.active_count()

    for n in range(20):
        assert settled("hostile.short", args={"n": n}).result == n

    assert (me.num_fds(), threading.active_count()) == (before, threads)
    assert [child for child in me.children() if child.status() == psutil.STATUS_ZOMBIE] == []


def test_folder_and_path_are_the_workers_and_no_variable_tells_other_interpreters():
    told = settled("hostile.path").result

    assert told["cwd"] == os.getcwd()
    assert told["path"][: len(sys.path)] == [entry or os.getcwd() for entry in sys.path]
    assert told["inherited"] == os.environ.get("PYTHONPATH")


def test_an_end_that_somebody_else_has_waited_for_is_an_end():
    attempt = attempt_with()
    child = python(attempt, "import os; os._exit(3)")
    eventually(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    os.waitpid(child.pid, 0)

    assert child.watch().code == 3  # so says the leash


# ── how it does not begin ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
@pytest.mark.parametrize("where", ["subprocess.Popen", "socket.socketpair"])
def test_a_machine_without_room_costs_the_job_no_attempt(monkeypatch: pytest.MonkeyPatch, number: int, where: str):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    fds = psutil.Process().num_fds()
    monkeypatch.setattr(where, refuse)
    end = settled("hostile.short")

    assert (end.status, end.refund, end.crashed) == (Status.QUEUED, True, False)
    assert end.retry_in > 0
    assert psutil.Process().num_fds() == fds


def test_an_interpreter_that_is_gone_is_an_error_of_the_try(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    end = settled("hostile.short")

    assert (end.status, end.refund) == (Status.QUEUED, False)
    assert str(end.error).startswith("FileNotFoundError")


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (["/nowhere/legacy"], FileNotFoundError),
        (["/etc/passwd"], PermissionError),
        (["true", "x" * 9_000_000], OSError),
    ],
)
def test_a_program_that_cannot_be_started_is_named(argv: list[str], kind: type[OSError]):
    with pytest.raises(Unstarted) as refused:
        Child(attempt_with(), argv).watch()

    assert type(refused.value.error) is kind


def test_a_child_that_is_killed_before_it_has_heard_anything_is_a_crash(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "workers.process.Child",
        lambda attempt, argv, **more: Child(
            attempt, [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], **more
        ),
    )
    end = settled("hostile.short", args={"n": "x" * 3_000_000})

    assert end.crashed
    assert "killed by SIGKILL" in str(end.error)


def test_a_module_that_breaks_only_there_is_named_and_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "only_here.py").write_text("import sys\nsys.exit('not on this machine')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    end = settled("hostile.short", tools={"packages": ("only_here",)})

    assert (end.status, end.error) == (Status.QUEUED, "SystemExit: not on this machine")


def test_a_task_that_is_not_known_there_is_an_error_of_the_try():
    end = settled("hostile.short", tools={"packages": ("tests.support.gate", "no.such.package")})

    assert end.status is Status.QUEUED
    assert end.error == (
        "RuntimeError: the process does not know the task 'hostile.short'"
        " (broken modules: no.such.package: ModuleNotFoundError: No module named 'no')"
    )


# ── how it is stopped ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(StopReason.CANCEL, Settlement), (StopReason.SHUTDOWN, HandedBack), (StopReason.LEASE_LOST, Abandoned)],
)
def test_a_stop_that_comes_while_it_starts_keeps_the_pipeline_from_beginning(reason: StopReason, kind: type[Any]):
    run = running("hostile.waits", tools={"stop_grace_sec": 30})
    eventually(lambda: psutil.Process().children())
    run.attempt.stop(reason)

    assert isinstance(run.end(), kind)
    assert run.attempt.rung == "flag"
    assert run.attempt.news()[0] is None


def test_a_child_that_takes_nothing_in_is_stopped_all_the_same():
    """More is sent than the socket holds, and nobody reads: not even the recipe gets through."""
    attempt = attempt_with()
    ours, theirs = socket.socketpair()
    with theirs:
        child = python(attempt, f"import time; time.sleep({hostile.LONG})", channel=ours)
        child.send({"args": "x" * 30_000_000})
        threading.Timer(0.1, attempt.stop, [StopReason.CANCEL]).start()
        how = child.watch()

    assert how.by_us
    assert attempt.rung == "sigterm"


def test_a_frozen_process_is_killed():
    run = running("hostile.waits")
    pids = eventually(lambda: (run.attempt.news()[0] or {}).get("pids")) or []
    os.kill(pids[0], signal.SIGSTOP)
    run.attempt.stop(StopReason.CANCEL)
    end = run.end()

    assert isinstance(end, Settlement)
    assert end.notes is not None
    assert end.notes["stopped_by"] == "sigkill"
    eventually(lambda: not alive(pids[0]))


def test_a_program_that_had_ended_well_before_the_signal_has_succeeded(tmp_path: Path):
    """It has exited, and its parent does not know yet."""
    attempt = attempt_with()
    child = python(attempt, "pass")
    eventually(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    attempt.stop(StopReason.CANCEL)
    how = child.watch()

    assert (how.code, how.by_us) == (0, False)


def test_when_the_worker_is_killed_the_whole_group_of_its_job_dies(start, dsn):
    """Also what the job itself has started, which no signal of the system's would find."""
    worker = start(
        "worker",
        env={
            "DL_DB_DSN": dsn,
            "DL_PIPELINES": "tests.support.hostile",
            "WORKERS_JSON": '[{"queue":"q","concurrency":1}]',
            "DL_HEARTBEAT_SEC": "1",
        },
    )
    jobs = Jobs(dsn, Path(), lease=20)
    (job,) = jobs.insert("hostile.waits")
    pids = eventually(
        lambda: ask(dsn, "SELECT progress->'pids' FROM dl_jobs WHERE job_id = %s", job)[0][0],
        message=lambda: worker.text,
    )
    os.kill(worker.pid, signal.SIGKILL)

    eventually(lambda: not any(map(alive, pids)), message=f"{pids} have ended")


# ── the leash by itself ─────────────────────────────────────────────────────────────────────────────────────────────


def on_leash(*argv: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, leash.__file__, str(theirs.fileno()), *argv], pass_fds=[theirs.fileno()],
            start_new_session=True, stdout=subprocess.PIPE,
        )  # fmt: skip
    return process, ours


def ends(process: subprocess.Popen[bytes], ours: socket.socket) -> tuple[bytes, int]:
    with ours, process:
        told = ours.recv(100)
        process.communicate(timeout=20)
        return told, process.returncode


@pytest.mark.parametrize(
    ("code", "told"),
    [("import sys; sys.exit(7)", b"exit 7 "), ("import os; os.kill(os.getpid(), 11)", b"exit -11 ")],
)
def test_the_leash_tells_how_its_program_ended(code: str, told: bytes):
    said, returned = ends(*on_leash(sys.executable, "-c", code))

    assert said.startswith(told)
    assert returned == 0


def test_the_leash_tells_why_there_is_no_program():
    assert ends(*on_leash("/nowhere/legacy"))[0] == b"error %d\n" % errno.ENOENT


def test_a_polite_signal_to_the_group_is_the_programs_to_answer():
    process, ours = on_leash(
        sys.executable, "-c",
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print(1, flush=True)\ntime.sleep(60)",
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGTERM)

    assert ends(process, ours)[0].startswith(b"exit 5 ")


def test_the_leash_ends_everything_when_nobody_holds_it():
    process, ours = on_leash(sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)")
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        (program,) = psutil.Process(process.pid).children()
        ours.close()
        eventually(lambda: not alive(program.pid))

        assert process.wait(20) == -signal.SIGKILL
