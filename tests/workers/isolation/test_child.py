"""The process of a job and its watchdog, without a database."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import Released, Settlement, Status
from dataloader.pipelines.contract import Pipelines, StopReason, registry
from dataloader.workers.attempt import Attempt
from dataloader.workers.isolation import child as child_module
from dataloader.workers.isolation.child import ChildProcess, StartFailed
from dataloader.workers.isolation.fork_server import NO_FORK_SERVER, ForkServer
from dataloader.workers.isolation.processes import SpawnedProcess
from dataloader.workers.isolation.run import run_isolated
from dataloader.workers.outcome import LeaseLost
from tests.support import eventually, hostile_tasks
from tests.support.claimed_jobs import CapturedLines, Running, attempt_with
from tests.support.real_service import ServiceJobs, is_alive, lasting_query

pytestmark = pytest.mark.usefixtures("start_method")
PACKAGES: dict[str, Any] = {"packages": ("tests.support.hostile_tasks",)}


@pytest.fixture
def logged() -> CapturedLines:
    return CapturedLines()


def settled(
    task: str, logged: CapturedLines | None = None, tools: dict[str, Any] | None = None, **row: Any
) -> Settlement:
    args = row.pop("args", {})
    attempt = attempt_with(logged, settings={**PACKAGES, **(tools or {})}, task=task, args_text=json.dumps(args), **row)
    end = attempt.run(registry.get(task))
    assert isinstance(end, Settlement), end
    return end


def started(attempt: Attempt, argv: list[str], channel: Any = None, **more: Any) -> ChildProcess:
    ends_at = attempt.lease.ends_at
    return ChildProcess(attempt, lambda: SpawnedProcess(argv, lease_ends_at=ends_at, **more), channel=channel)


def python(attempt: Attempt, code: str, **more: Any) -> ChildProcess:
    return started(attempt, [sys.executable, "-c", code], **more)


def running(task: str, **more: Any) -> Running:
    return Running(attempt_with(settings=PACKAGES | more.pop("tools", {}), task=task, **more))


@pytest.mark.parametrize("wrap", [True, False])
def test_setting_leaves_the_drivers_of_a_child_as_they_are(wrap: bool):
    connections = ConnectionSettings(dsn="host=/nowhere", schema="public", targets={}, wrap_drivers=wrap)

    assert settled("hostile.drivers", tools={"connection_settings": connections}).result is wrap


# ── its streams ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_large_result_arrives_complete():
    end = settled("hostile.big", args={"size": 10_000_000}, tools={"max_result_bytes": 20_000_000})

    assert end.status is Status.SUCCEEDED
    assert len(end.result) == 5_000_000
    assert end.progress is not None
    assert end.progress["processed"] == 99


def test_result_beyond_the_limit_is_replaced_by_a_note():
    end = settled("hostile.big", args={"size": 1000}, tools={"max_result_bytes": 100})

    assert end.result == {"$dropped": "1002 bytes of JSON; at most 100 are kept"}


def test_invalid_message_on_the_channel_is_ignored():
    end = settled("hostile.garbage")

    assert (end.status, end.result) == (Status.SUCCEEDED, "unharmed")


@pytest.mark.parametrize("task", ["closes_its_streams", "leaves_a_daemon", "leaves_threads"])
def test_open_streams_and_threads_do_not_change_the_outcome(task: str):
    end = settled(f"hostile.{task}")
    if task == "leaves_a_daemon":
        os.kill(end.result, signal.SIGKILL)

    assert end.status is Status.SUCCEEDED


def test_output_in_any_encoding_is_logged(logged: CapturedLines):
    settled("hostile.says_odd_things", logged)

    assert logged.texts_of("stdout") == ["caf\N{REPLACEMENT CHARACTER}", "half a surrogate \\udc80"]
    assert logged.texts_of("log")[0] == "'%d' (with arguments that do not fit it)"
    assert len(logged.texts_of("log")[1]) < 20_000


def test_threads_finalizers_and_handlers_can_log_at_once(logged: CapturedLines):
    end = settled("hostile.logs_at_once", logged)

    assert end.result == "all said"
    output = logged.texts_of("log")
    assert len([line for line in output if line.startswith("line ")]) == 800
    assert output.count("gone") == 800
    assert set(output) <= {f"line {n}" for n in range(200)} | {"gone", "alarm"}


def test_output_of_a_fork_is_logged(logged: CapturedLines):
    end = settled("hostile.forks", logged)

    assert end.result == [0, 1, 2, 3]
    assert sorted(logged.texts_of("stderr")) == [f"from a fork {n}" for n in range(4)]


def test_flood_of_output_uses_bounded_memory(logged: CapturedLines):
    tasks = Pipelines()
    tasks.command("flood", [sys.executable, "-c", "import sys\nfor n in range(40): sys.stdout.write('y\\n' * 10_000)"])
    end = attempt_with(logged, task="flood").run(tasks.get("flood"))

    assert isinstance(end, Settlement)
    assert end.status is Status.SUCCEEDED
    assert len(logged.lines) == 400_000


def test_long_error_is_truncated(logged: CapturedLines):
    end = settled("hostile.huge_error", logged)

    assert end.error is not None
    assert end.error.startswith("ValueError: xxx")
    assert len(end.error) < 9_000
    assert not end.crashed


# ── its end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_exit_functions_run(tmp_path: Path):
    settled("hostile.cleans_up", args={"file": str(tmp_path / "file")})

    assert (tmp_path / "file").read_text() == "cleaned"


def test_process_that_does_not_exit_after_its_result_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dataloader.workers.isolation.child._EXIT_TIMEOUT_SEC", 0.2)

    assert settled("hostile.never_leaves").result == "done"


def test_foreign_termination_signal_is_no_crash():
    end = settled("hostile.terminated")

    assert end.error is not None
    assert "killed by SIGTERM" in end.error
    assert (end.status, end.crashed, end.traceback) == (Status.QUEUED, False, None)


def test_threads_start_within_the_memory_limit():
    assert settled("hostile.threads_within_its_memory").result == "50000000"


def test_many_short_processes_leave_no_resources():
    settled("hostile.short", args={"n": 0})
    me = psutil.Process()
    fds, threads = me.num_fds(), set(threading.enumerate())

    for n in range(6):
        assert settled("hostile.short", args={"n": n}).result == n

    assert set(threading.enumerate()) <= threads  # some of before, of other tests, may have ended meanwhile
    assert me.num_fds() <= fds
    assert [child for child in me.children() if child.status() == psutil.STATUS_ZOMBIE] == []


def test_child_has_folder_and_path_but_no_pythonpath():
    output = settled("hostile.path").result

    assert output["cwd"] == os.getcwd()
    assert output["path"][: len(sys.path)] == [entry or os.getcwd() for entry in sys.path]
    assert output["inherited"] == os.environ.get("PYTHONPATH")


def test_exit_status_collected_by_other_code_is_an_exit():
    attempt = attempt_with()
    child = python(attempt, "import os; os._exit(3)")
    eventually(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    os.waitpid(child.pid, 0)

    assert child.wait().code == 3  # as the watchdog reports


# ── how it does not begin ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
@pytest.mark.parametrize("where", ["subprocess.Popen", "socket.socketpair"])
@pytest.mark.parametrize("fork_server", [NO_FORK_SERVER, ForkServer()], ids=["fresh", "forked"])
def test_exhausted_machine_costs_the_job_no_attempt(
    monkeypatch: pytest.MonkeyPatch, number: int, where: str, fork_server: ForkServer
):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    fds = psutil.Process().num_fds()
    monkeypatch.setattr(where, refuse)
    end = settled("hostile.short", tools={"fork_server": fork_server})

    assert (end.status, end.refund_attempt, end.crashed) == (Status.QUEUED, True, False)
    assert end.retry_in_sec > 0
    assert psutil.Process().num_fds() == fds


def test_missing_interpreter_fails_the_attempt(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    end = settled("hostile.short", tools={"fork_server": ForkServer()})

    assert (end.status, end.refund_attempt) == (Status.QUEUED, False)
    assert str(end.error).startswith("FileNotFoundError")


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (["/nowhere/legacy"], FileNotFoundError),
        (["/etc/passwd"], PermissionError),
        (["true", "x" * 9_000_000], OSError),
    ],
)
def test_program_that_cannot_be_started_is_named(argv: list[str], kind: type[OSError]):
    with pytest.raises(StartFailed) as refused:
        started(attempt_with(), argv).wait()

    assert type(refused.value.error) is kind


def test_child_killed_before_its_start_is_a_crash(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "dataloader.workers.isolation.run.SpawnedProcess",
        lambda argv, **more: SpawnedProcess([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], **more),
    )
    end = settled("hostile.short", args={"n": "x" * 3_000_000}, tools={"fork_server": NO_FORK_SERVER})

    assert end.crashed
    assert "killed by SIGKILL" in str(end.error)


def test_module_that_breaks_in_the_child_is_retried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "only_here.py").write_text("import sys\nsys.exit('not on this machine')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    end = settled("hostile.short", tools={"packages": ("only_here",)})

    assert (end.status, end.error) == (Status.QUEUED, "SystemExit: not on this machine")


def test_task_unknown_to_the_child_fails_the_attempt():
    end = settled("hostile.short", tools={"packages": ("tests.support.job_gate", "no.such.package")})

    assert end.status is Status.QUEUED
    assert end.error == (
        "RuntimeError: the process does not know the task 'hostile.short'"
        " (broken modules: no.such.package: ModuleNotFoundError: No module named 'no')"
    )


# ── how it is stopped ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(StopReason.CANCEL, Settlement), (StopReason.SHUTDOWN, Released), (StopReason.LEASE_LOST, LeaseLost)],
)
def test_stop_during_the_start_keeps_the_pipeline_from_running(reason: StopReason, kind: type[Any]):
    run = running("hostile.waits", tools={"stop_step_sec": 30})
    eventually(lambda: psutil.Process().children())
    run.attempt.stop(reason)

    assert isinstance(run.end(), kind)
    assert run.attempt.stop_signal.step == "request"
    assert run.attempt.reported.unsaved()[0] is None


@pytest.mark.parametrize("name", ["hostile.waits", "program"])
def test_program_is_not_started_once_the_lease_has_expired(name: str, tmp_path: Path):
    """The worker process was frozen just before, so that its thread has seen a lease which it could trust."""
    file, commands = tmp_path / "started", Pipelines()
    commands.command("program", ["touch", str(file)])
    task = commands.get(name) or registry.get(name)
    assert task is not None
    attempt = attempt_with(settings=PACKAGES, task=name)
    attempt.lease.renewed_at -= attempt.lease.ttl_sec

    assert isinstance(attempt.complete(run_isolated(attempt, task, {})), LeaseLost)
    assert attempt.reported.unsaved()[0] is None
    assert not file.exists()


def test_child_that_reads_nothing_is_stopped():
    """More is sent than the socket holds, and no one reads: not even the recipe gets through."""
    attempt = attempt_with()
    ours, theirs = socket.socketpair()
    with theirs:
        child = python(attempt, f"import time; time.sleep({hostile_tasks.LONG_SEC})", channel=ours)
        child.send({"args": "x" * 30_000_000})
        threading.Timer(0.1, attempt.stop, [StopReason.CANCEL]).start()
        exit_ = child.wait()

    assert exit_.stopped_by_us
    assert attempt.stop_signal.step == "sigterm"


class MeasuredSocket(socket.socket):
    """Records how much is to be sent at once."""

    def __init__(self, other: socket.socket) -> None:
        super().__init__(fileno=other.detach())
        self.unsent_bytes = [0]
        self.is_full = threading.Event()

    def send(self, data: Any, *args: Any) -> int:
        self.unsent_bytes.append(len(data))
        if len(data) > 10_000:
            self.is_full.set()
        return super().send(data, *args)


def test_child_that_asks_and_reads_no_reply_uses_bounded_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(child_module, "_MAX_UNREAD_BYTES", 10_000)
    attempt = attempt_with()
    ours, theirs = map(MeasuredSocket, socket.socketpair())
    code = f"import socket\ns = socket.socket(fileno={theirs.fileno()})\n"
    code += 'while True:\n    s.sendall(b\'{"call": ["none", {}]}\\n\' * 100)\n'
    child = python(attempt, code, channel=ours, descriptors=(theirs.fileno(),))
    theirs.close()

    def stop_a_second_later() -> None:
        ours.is_full.wait(60)
        threading.Timer(1.0, attempt.stop, [StopReason.CANCEL]).start()

    threading.Thread(target=stop_a_second_later).start()
    child.wait()

    assert 10_000 < max(ours.unsent_bytes) < 200_000


def test_frozen_process_is_killed():
    run = running("hostile.waits")
    pids = eventually(lambda: (run.attempt.reported.unsaved()[0] or {}).get("pids")) or []
    os.kill(pids[0], signal.SIGSTOP)
    run.attempt.stop(StopReason.CANCEL)
    end = run.end()

    assert isinstance(end, Settlement)
    assert end.event_fields is not None
    assert end.event_fields["stopped_by"] == "sigkill"
    eventually(lambda: not is_alive(pids[0]))


def test_command_that_ended_before_the_signal_succeeds(tmp_path: Path):
    """It has exited, and its parent does not know yet."""
    attempt = attempt_with()
    child = python(attempt, "pass")
    eventually(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    attempt.stop(StopReason.CANCEL)
    exit_ = child.wait()

    assert (exit_.code, exit_.stopped_by_us) == (0, False)


def test_process_group_dies_with_a_killed_worker(start, dsn):
    """Also what the job itself has started, which no signal of the system's would find."""
    worker = start(
        "worker",
        env={
            "DL_DB_DSN": dsn,
            "DL_PIPELINES": "tests.support.hostile_tasks",
            "WORKERS_JSON": '[{"queue":"q","concurrency":1}]',
            "DL_HEARTBEAT_SEC": "1",
        },
    )
    jobs = ServiceJobs(dsn, Path(), lease=20)
    (job,) = jobs.insert("hostile.waits")
    statement = "SELECT progress->'pids' FROM dl_jobs WHERE job_id = %s"
    with lasting_query(dsn) as query:
        pids = eventually(lambda: query(statement, job)[0][0], message=lambda: worker.text)
    os.kill(worker.pid, signal.SIGKILL)

    eventually(lambda: not any(map(is_alive, pids)), message=f"{pids} have ended")
