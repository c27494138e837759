"""The fork server: what its processes get, and what its own failures do to attempts."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from dataloader.app.queue.job import Settlement, Status
from dataloader.pipelines.contract import Pipelines, StopReason, load_tasks, registry
from dataloader.workers.isolation import fork_server as fork_server_module
from dataloader.workers.isolation.fork_server import NO_FORK_SERVER, ForkServer
from tests.support import eventually, hostile_tasks, process_tasks
from tests.support.claimed_jobs import CapturedLines, Running, attempt_with
from tests.support.forked_attempts import PACKAGES, run_task
from tests.support.real_service import ServiceJobs, is_alive, lasting_query

MANY = 100


def start_waiting(server: ForkServer, file: Path, logged: CapturedLines | None = None, **args: Any) -> Running:
    """An attempt that runs until the file is there."""
    settings = {"packages": PACKAGES, "fork_server": server}
    args_text = json.dumps({"file": str(file), **args})
    return Running(attempt_with(logged, settings=settings, task="process.until", args_text=args_text))


def pids_of(run: Running) -> list[int]:
    """The program and its watchdog."""
    return eventually(lambda: list[int]((run.attempt.reported.unsaved()[0] or {}).get("pids", ())))


def kill_server(server: ForkServer) -> int:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    return server.pid


# ── what the processes get ──────────────────────────────────────────────────────────────────────────────────────────


def test_process_is_given_what_a_fresh_interpreter_is(server: ForkServer, monkeypatch: pytest.MonkeyPatch, tmp_path):
    run_task(server, "process.describe")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DL_NEW", "caf\udce9")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.delenv("PATH")

    forked, fresh = run_task(server, "process.describe"), run_task(NO_FORK_SERVER, "process.describe")

    assert {name: (value, forked[name]) for name, value in fresh.items() if value != forked[name]} == {}
    assert forked["cwd"] == str(tmp_path)
    assert forked["leads_group"]


def test_process_inherits_no_descriptor_of_another(server: ForkServer, tmp_path: Path):
    run = start_waiting(server, tmp_path / "go")
    pids_of(run)
    descriptors = run_task(server, "process.describe")["descriptors"]
    (tmp_path / "go").touch()
    end = run.end()

    assert isinstance(end, Settlement)
    assert end.result["descriptors"] == descriptors
    assert [kind for _, kind, _ in descriptors] == ["/dev/null", "pipe", "pipe", "socket"]


def test_random_values_differ(server: ForkServer, folder: Path):
    (folder / "seeded.py").write_text("import random, uuid\nrandom.seed(1)\nuuid.uuid1()\n")
    preloaded = ForkServer(["seeded"])
    try:
        drawn = [run_task(preloaded, "process.random") for _ in range(3)]
    finally:
        preloaded.close()

    assert all(len(set(values)) == 3 for values in zip(*drawn, strict=True))


def test_processes_are_named_for_ps(server: ForkServer, tmp_path: Path):
    run = start_waiting(server, tmp_path / "go")
    pids = pids_of(run)
    assert server.pid is not None

    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in (server.pid, *reversed(pids))]
    (tmp_path / "go").touch()
    run.end()

    assert names == ["dl-fork-server", "dl-watchdog", "dl-job"]


def test_child_loads_the_new_file_of_a_module(server: ForkServer, folder: Path):
    known, tasks = Pipelines(), {"changing": "changes_often:value"}
    results = []
    for n in range(3):
        (folder / "changes_often.py").write_text(f"def value():\n    return {n}{' ' * n}\n")
        assert load_tasks([], tasks, known_tasks=known) == {} or n
        settings = {"tasks": tasks, "fork_server": server}
        end = attempt_with(task="changing", settings=settings).run(known.get("changing"))
        assert isinstance(end, Settlement)
        results.append(end.result)

    assert results == [0, 1, 2]


def test_registered_task_loads_the_module_of_its_function_alone():
    modules = run_task(NO_FORK_SERVER, "process.loaded")

    assert process_tasks.__name__ in modules
    assert hostile_tasks.__name__ not in modules


def test_task_registered_by_another_module_is_found(server: ForkServer, folder: Path):
    (folder / "defined_here.py").write_text("def call():\n    return 7\n")
    (folder / "registered_here.py").write_text(
        "from dataloader import register\nfrom defined_here import call\n"
        "register('elsewhere', isolation='process')(call)\n"
    )
    packages = ("defined_here", "registered_here")
    assert load_tasks(packages) == {}
    try:
        attempt = attempt_with(settings={"packages": packages, "fork_server": server}, task="elsewhere")
        end = attempt.run(registry.get("elsewhere"))
    finally:
        registry._tasks.pop("elsewhere")

    assert isinstance(end, Settlement)
    assert end.result == 7


@pytest.mark.full
def test_hundred_processes_at_once(server: ForkServer, tmp_path: Path):
    run_task(server, "process.random")  # it may start a second server meanwhile otherwise
    me = psutil.Process()
    fds = me.num_fds()
    logged = [CapturedLines() for _ in range(MANY)]
    runs = [start_waiting(server, tmp_path / "go", logged[n], n=n) for n in range(MANY)]
    programs = {pids_of(run)[0] for run in runs}
    assert server.pid is not None
    (tmp_path / "go").touch()
    ends = [run.end(120) for run in runs]

    assert [end.result["n"] for end in ends if isinstance(end, Settlement)] == list(range(MANY))
    assert {end.result["pid"] for end in ends if isinstance(end, Settlement)} == programs
    assert len(programs) == MANY
    assert all(lines.texts_of("stdout") == ["printed"] for lines in logged)
    assert psutil.Process(server.pid).children() == []  # none is a zombie
    assert {child.name() for child in me.children()} == {"dl-fork-server"}
    eventually(lambda: me.num_fds() <= fds)


# ── its failures ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_server_starts_with_the_first_attempt_that_needs_it(worker_pools, server: ForkServer):
    pool = worker_pools.pool(packages=PACKAGES, fork_server=server)
    worker_pools.wait_for_status(worker_pools.add_job("quick"), Status.SUCCEEDED)

    assert server.pid is None
    run_task(server, "process.random")
    assert server.pid is not None
    started = psutil.Process(server.pid)
    assert pool.stop(grace=1)
    assert not started.is_running()


def test_server_killed_before_an_attempt_is_replaced(server: ForkServer, monkeypatch: pytest.MonkeyPatch, logged):
    run_task(server, "process.random")
    killed = kill_server(server)
    run_task(server, "process.random")  # in a fresh interpreter: it has just been started
    monkeypatch.setattr(server, "_next_start_at", 0.0)
    run_task(server, "process.random")

    assert server.pid not in (None, killed)
    (exited,) = logged("fork_server.exited")
    assert (exited["pid"], exited["code"]) == (killed, -signal.SIGKILL)


def test_killed_server_ends_no_running_process(server: ForkServer, tmp_path: Path):
    logged = CapturedLines()
    run = start_waiting(server, tmp_path / "go", logged, n=1)
    program, watchdog = pids_of(run)
    kill_server(server)
    eventually(lambda: psutil.Process(watchdog).ppid() != server.pid)
    (tmp_path / "go").touch()
    end = run.end()

    assert isinstance(end, Settlement)
    assert (end.status, end.result["pid"]) == (Status.SUCCEEDED, program)
    assert end.event_fields is not None
    assert end.event_fields["exit_code"] == 0
    assert end.event_fields["peak_kb"] > 1000
    assert logged.texts_of("stdout") == ["printed"]
    assert not is_alive(watchdog)


def start_deaf(server: ForkServer) -> tuple[Running, list[int]]:
    """An attempt that ignores requests to stop, with a child of its own in its group."""
    run = Running(attempt_with(settings={"packages": PACKAGES, "fork_server": server}, task="hostile.waits"))
    return run, pids_of(run)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_process_is_stopped_without_its_server(
    server: ForkServer, signal_number: signal.Signals, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fork_server_module, "_REPLY_TIMEOUT_SEC", 0.3)
    run, pids = start_deaf(server)
    assert server.pid is not None
    os.kill(server.pid, signal_number)
    run.attempt.stop(StopReason.CANCEL)
    end = run.end()

    assert isinstance(end, Settlement)
    assert end.status is Status.CANCELED
    assert end.event_fields is not None
    assert end.event_fields["stopped_by"] == "sigterm"
    eventually(lambda: not any(map(is_alive, pids)))


def test_killed_watchdog_and_server_leave_no_process(server: ForkServer):
    run, (program, watchdog, child) = start_deaf(server)
    kill_server(server)
    os.kill(watchdog, signal.SIGKILL)
    end = run.end()

    assert isinstance(end, Settlement)
    assert end.crashed
    assert "killed by SIGKILL" in str(end.error)
    eventually(lambda: not is_alive(program) and not is_alive(child))


def test_frozen_server_delays_an_attempt_for_a_bounded_time(server: ForkServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fork_server_module, "_REPLY_TIMEOUT_SEC", 0.3)
    run_task(server, "process.random")
    assert server.pid is not None
    frozen = psutil.Process(server.pid)
    frozen.suspend()

    run_task(server, "process.random")
    eventually(lambda: not frozen.is_running())


def test_server_that_starts_slowly_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fork_server_module, "_READY_WAIT_SEC", 0.1)
    (folder / "slow.py").write_text("import time\ntime.sleep(60)\n")
    server = ForkServer(["slow"])
    try:
        assert "slow" not in run_task(server, "process.loaded")
        assert server.pid is not None
    finally:
        server.close()


def test_stopped_attempt_does_not_wait_for_a_server(folder: Path):
    (folder / "slow.py").write_text("import time\ntime.sleep(60)\n")
    server = ForkServer(["slow"])
    attempt = attempt_with(settings={"packages": PACKAGES, "fork_server": server}, task="hostile.waits")
    run = Running(attempt)
    try:
        eventually(lambda: server.pid)
        attempt.stop(StopReason.CANCEL)
        end = run.end(8)
    finally:
        server.close()

    assert isinstance(end, Settlement)
    assert end.status is Status.CANCELED


def test_refused_fork_costs_the_job_no_attempt(folder: Path):
    (folder / "may_not_fork.py").write_text(
        "import os, resource\n"
        "if os.getuid() == 0:  # who has no limit\n    os.setresuid(65_534, 65_534, 65_534)\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\n"
    )
    server = ForkServer(["may_not_fork"])
    try:
        attempt = attempt_with(settings={"packages": PACKAGES, "fork_server": server}, task="process.random")
        end = attempt.run(registry.get("process.random"))
        assert server.pid is not None
    finally:
        server.close()

    assert isinstance(end, Settlement)
    assert (end.status, end.refund_attempt, end.crashed) == (Status.QUEUED, True, False)
    assert end.event_fields == {"code": "out_of_resources"}


def test_server_without_room_for_descriptors_refuses(server: ForkServer):
    run_task(server, "process.random")
    assert server.pid is not None
    open_count = psutil.Process(server.pid).num_fds()
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (open_count + 2, open_count + 2))
    attempt = attempt_with(settings={"packages": PACKAGES, "fork_server": server}, task="process.random")
    end = attempt.run(registry.get("process.random"))

    assert isinstance(end, Settlement)
    assert end.refund_attempt
    eventually(lambda: psutil.Process(server.pid).num_fds() == open_count)


# ── with its worker ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def service(start, dsn: str, tmp_path: Path):
    """A worker process with two attempts that run until a file is there, and their jobs."""
    env = {
        "DL_DB_DSN": dsn,
        "DL_PIPELINES": ",".join(PACKAGES),
        "DL_PRELOAD": process_tasks.__name__,
        "WORKERS_JSON": '[{"queue":"q","concurrency":2}]',
        "DL_HEARTBEAT_SEC": "1",
        "DL_SHUTDOWN_GRACE_SEC": "60",
    }
    worker = start("worker", env=env)
    jobs = ServiceJobs(dsn, tmp_path, lease=20)
    ids = jobs.insert("process.until", 2)
    statement = "SELECT progress->'pids' FROM dl_jobs WHERE job_id = ANY(%s::uuid[]) AND progress ? 'pids'"
    with lasting_query(dsn) as query:
        rows = eventually(lambda: len(found := query(statement, ids)) == 2 and found, message=lambda: worker.text)
    pids = [row[0] for row in rows or ()]
    (server,) = [child for child in psutil.Process(worker.pid).children() if child.name() == "dl-fork-server"]
    return worker, jobs, server, pids


def test_drained_worker_waits_for_its_processes(service):
    worker, jobs, server, pids = service
    assert {psutil.Process(watchdog).ppid() for _, watchdog in pids} == {server.pid}
    server.terminate()  # as a service manager does, which signals all processes
    worker.signal(signal.SIGTERM)
    worker.wait_for_line("stop")
    jobs.release_jobs()

    assert worker.wait() == 0
    jobs.wait_for_counts({"succeeded": 2})
    assert not server.is_running()


def test_killed_worker_takes_its_processes_with_it(service):
    worker, _, server, pids = service
    os.kill(worker.pid, signal.SIGKILL)

    eventually(lambda: not any(is_alive(pid) for pair in pids for pid in pair) and not is_alive(server.pid))
