"""A program as the job: its exit code is the outcome, its output the job's log, its process group ends with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Pipelines
from tests.support.waiting import eventually


@pytest.fixture
def tasks() -> Pipelines:
    return Pipelines()


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def program(tasks: Pipelines, code: str, *arguments: str, **options) -> None:
    tasks.command("program", [sys.executable, "-c", code, *arguments], **options)


def test_exit_code_zero_succeeds_and_arguments_stay_whole(worker_pools, tasks, tmp_path):
    output = tmp_path / "argv.txt"
    program(tasks, "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))", str(output), "--date", "{date}")
    worker_pools.pool(pipelines=tasks)
    hostile = "2026-01-01; rm -rf / $(id) 'quoted'"
    job = worker_pools.wait_for_status(worker_pools.add_job("program", args={"date": hostile}), Status.SUCCEEDED)

    assert output.read_text() == repr(["--date", hostile])
    assert job.result == {"exit_code": 0}


def test_other_exit_code_is_an_error_with_last_output(worker_pools, tasks):
    program(tasks, "import sys; print('table is locked', file=sys.stderr); sys.exit(3)")
    worker_pools.pool(pipelines=tasks)
    job = worker_pools.wait_for_status(worker_pools.add_job("program", max_attempts=1), Status.FAILED)

    assert job.error is not None
    assert "the process exited with code 3" in job.error
    assert "table is locked" in job.error


def test_failed_command_is_retried(worker_pools, tasks, tmp_path):
    flag = tmp_path / "been-here"
    program(
        tasks,
        "import os, sys; p = sys.argv[1]; there = os.path.exists(p); open(p, 'w'); sys.exit(not there)",
        str(flag),
    )
    worker_pools.pool(pipelines=tasks)
    job = worker_pools.wait_for_status(worker_pools.add_job("program"), Status.SUCCEEDED)

    assert job.attempt == 2


def test_command_gets_its_job_id(worker_pools, tasks, tmp_path):
    output = tmp_path / "env.txt"
    program(
        tasks,
        "import os, sys; open(sys.argv[1], 'w').write(os.environ['DL_JOB_ID'] + ' ' + os.environ['DL_ATTEMPT'])",
        str(output),
    )
    worker_pools.pool(pipelines=tasks)
    job = worker_pools.wait_for_status(worker_pools.add_job("program"), Status.SUCCEEDED)

    assert output.read_text() == f"{job.id} 1"


def test_missing_argument_of_a_command_is_named(worker_pools, tasks):
    program(tasks, "pass", "{date}")
    worker_pools.pool(pipelines=tasks)
    job = worker_pools.wait_for_status(worker_pools.add_job("program"), Status.FAILED)

    assert job.error is not None
    assert "date" in job.error


def test_missing_program_fails_the_attempt(worker_pools, tasks):
    tasks.command("program", ["/nowhere/legacy"])
    worker_pools.pool(pipelines=tasks)
    job = worker_pools.wait_for_status(worker_pools.add_job("program", max_attempts=1), Status.FAILED)

    assert job.error is not None
    assert job.error.startswith("FileNotFoundError")


@pytest.mark.parametrize(("ignores_sigterm", "stop_step"), [(False, "sigterm"), (True, "sigkill")])
def test_cancel_ends_the_whole_process_group(worker_pools, tasks, tmp_path, ignores_sigterm, stop_step):
    pids = tmp_path / "pids.txt"
    program(
        tasks,
        "import os, signal, subprocess, sys, time\n"
        f"if {ignores_sigterm}: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open(sys.argv[1] + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "time.sleep(60)\n",
        str(pids),
    )
    worker_pools.pool(pipelines=tasks, stop_step_sec=0.3)
    job_id = worker_pools.add_job("program")
    eventually(pids.exists)
    worker_pools.queue_fixture.queue.cancel(job_id)
    worker_pools.wait_for_status(job_id, Status.CANCELED)

    assert worker_pools.event_payloads(job_id, "canceled")[0]["stopped_by"] == stop_step
    group = [int(pid) for pid in pids.read_text().split()]
    eventually(lambda: not any(map(lives, group)), message=f"the processes {group} have ended")


def test_endless_output_delays_nothing(worker_pools, tasks):
    program(tasks, "import sys; sys.stdout.write('x' * 3_000_000 + '\\n'); sys.stdout.write('no newline at the end')")
    worker_pools.pool(pipelines=tasks)
    worker_pools.wait_for_status(worker_pools.add_job("program"), Status.SUCCEEDED)
