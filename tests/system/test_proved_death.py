"""A process that is certainly dead is not waited for: real processes, killed, at the default lease of a minute."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.support import Process, eventually
from tests.support.running import QUICK, Jobs, Runner, Running, alive, ask

LEASE = {
    "DL_HEARTBEAT_SEC": "10",
    "DL_DEFAULT_LEASE_TTL_SEC": "60",
    "DL_REAPER_PERIOD_SEC": "10",
    "DL_CLAIM_BACKOFF_SEC": "15",
}
SOON = 20.0  # far below the lease, and far above what it takes
LISTENING = "SELECT listener FROM dl_workers WHERE worker_name = %s"


@pytest.fixture
def jobs(dsn: str, tmp_path: Path) -> Jobs:
    return Jobs(dsn, tmp_path, lease=60)


def worker(run: Runner, **env: str) -> Running:
    return run("worker", **{**LEASE, **env}).until_ready()


def finish(jobs: Jobs, job: str) -> None:
    """The second attempt ends well, and the first one is recorded nowhere."""
    jobs.let_go()
    jobs.until({"succeeded": 1})
    assert jobs.row(job) == ("succeeded", 2)
    assert ("requeue", "process_died") in jobs.events(job)
    jobs.check()


def test_killed_worker_jobs_start_on_its_neighbour_at_once(run: Runner, jobs: Jobs):
    doomed = worker(run)
    (job,) = jobs.insert("test.until")
    jobs.until_began(1)
    neighbour = worker(run)

    doomed.process.signal(signal.SIGKILL)

    jobs.until_began(2, SOON)
    assert len(neighbour.log("worker.found_dead")) == 1
    finish(jobs, job)
    eventually(lambda: ask(jobs.dsn, "SELECT pid FROM dl_workers WHERE dead_at IS NOT NULL") == [(doomed.process.pid,)])


def test_neighbour_that_started_first_learns_of_a_new_process(run: Runner, jobs: Jobs):
    """Its own beat comes every ten seconds; the new one's start is announced."""
    first = worker(run, WORKERS_JSON='[{"queue":"other","concurrency":1}]')
    doomed = worker(run)
    (job,) = jobs.insert("test.until")
    jobs.until_began(1)

    doomed.process.signal(signal.SIGKILL)

    eventually(lambda: jobs.row(job) == ("queued", 1), SOON)
    assert len(first.log("reaper.requeued")) == 1
    worker(run)
    finish(jobs, job)


def test_successor_pauses_only_after_second_death(run: Runner, jobs: Jobs):
    (job,) = jobs.insert("test.until")
    for time in (1, 2):
        doomed = worker(run)
        jobs.until_began(time, SOON)
        doomed.process.kill()
    worker(run)
    eventually(lambda: jobs.row(job) == ("queued", 2), SOON)
    ((pause,),) = ask(jobs.dsn, "SELECT extract(epoch FROM available_at - clock_timestamp())::float8 FROM dl_jobs")
    assert 2 < pause <= 10
    ask(jobs.dsn, "UPDATE dl_jobs SET available_at = clock_timestamp()")
    jobs.until_began(3, SOON)
    jobs.let_go()
    jobs.until({"succeeded": 1})
    jobs.check()


def test_job_whose_process_outlives_the_worker_waits_for_it(run: Runner, jobs: Jobs, tmp_path: Path):
    pids, gone = tmp_path / "pids", tmp_path / "gone"
    script = f"[ -e {gone} ] && exit 0; setsid sleep 600 & echo $! > {pids}; wait"
    tasks = {"DL_TASKS": json.dumps({"escapes": {"command": ["sh", "-c", script]}})}
    doomed = worker(run, **tasks)
    (job,) = jobs.insert("escapes")
    eventually(lambda: pids.exists() and pids.read_text().strip())
    escaped = int(pids.read_text())
    try:
        neighbour = worker(run, **tasks)
        doomed.process.signal(signal.SIGKILL)
        neighbour.process.wait_for("worker.found_dead", SOON)
        plain = jobs.insert()  # taken and ended meanwhile: the neighbour is at work
        eventually(lambda: jobs.row(plain[0])[0] == "succeeded")
        assert alive(escaped)
        assert jobs.row(job) == ("running", 1)
        gone.touch()
    finally:
        os.kill(escaped, signal.SIGKILL)
    eventually(lambda: jobs.row(job) == ("succeeded", 2), SOON, lambda: neighbour.process.text)
    jobs.check()


# ── by name ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def namespaced(start: Callable[..., Process], dsn: str, tmp_path: Path) -> Callable[..., Process]:
    """Start a worker in a pid namespace of its own, as in a container."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing")

    def started(output: str, **env: str) -> Process:
        argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "app", "worker"]
        return Process(argv, output=tmp_path / output, env={**QUICK, **LEASE, "DL_DB_DSN": dsn, **env})

    return started


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace needs root")
def test_name_proves_death_in_another_pid_namespace(run: Runner, jobs: Jobs, namespaced: Callable[..., Process]):
    """The successor may not look into the namespace, in which the predecessor's pid is its own."""
    with namespaced("first", DL_WORKER_NAME="etl-0") as first:
        first.wait_for("listener.listening")
        (job,) = jobs.insert("test.until")
        jobs.until_began(1)
        eventually(lambda: ask(jobs.dsn, LISTENING, "etl-0") == [("listening",)])
        first.kill()
    with namespaced("second", DL_WORKER_NAME="etl-0") as second:
        jobs.until_began(2, SOON)
        second.wait_for("a new process holds its name")
        finish(jobs, job)
        assert "worker_name.shared" not in second.text
        second.signal(signal.SIGKILL)


def test_two_live_holders_of_a_name_take_nothing_from_each_other(run: Runner, jobs: Jobs, start: Any):
    first = worker(run, DL_WORKER_NAME="etl-0")
    (job,) = jobs.insert("test.until")
    jobs.until_began(1)
    eventually(lambda: ask(jobs.dsn, LISTENING, "etl-0") == [("listening",)])

    second = worker(run, DL_WORKER_NAME="etl-0")

    second.process.wait_for("worker_name.shared", SOON)
    assert second.log("worker_name.shared")[0]["level"] == "error"
    assert jobs.row(job) == ("running", 1)
    assert ask(jobs.dsn, "SELECT count(superseded_by) FROM dl_workers") == [(0,)]
    doctor = start("doctor", "--json", env={"DL_DB_DSN": jobs.dsn})
    doctor.wait()
    assert "shared_worker_names" in doctor.text
    jobs.let_go()
    jobs.until({"succeeded": 1})
    assert jobs.row(job) == ("succeeded", 1)
    assert first.log("worker_name.taken") == []


def test_frozen_holder_of_a_name_stops_its_attempts_when_it_wakes(run: Runner, jobs: Jobs):
    frozen = worker(run, DL_WORKER_NAME="etl-0")
    (job,) = jobs.insert("test.until")
    jobs.until_began(1)
    eventually(lambda: ask(jobs.dsn, LISTENING, "etl-0") == [("listening",)])
    frozen.process.signal(signal.SIGSTOP)

    heir = worker(run, DL_WORKER_NAME="etl-0")
    jobs.until_began(2, SOON)
    assert heir.log("worker_name.shared") == []
    frozen.process.signal(signal.SIGCONT)

    eventually(lambda: jobs.traced("stopped: "), SOON)
    assert jobs.traced("stopped: ")[0]["pid"] == frozen.process.pid
    assert frozen.process.wait(SOON) == 70
    finish(jobs, job)


def test_arbiter_restart_of_a_killed_gunicorn_worker_takes_its_jobs(run: Runner, jobs: Jobs):
    """The new worker process is a child of the same arbiter, which has reaped the dead one."""
    running = run("serve", **LEASE).until_ready()
    (job,) = jobs.insert("test.until")
    jobs.until_began(1)
    before = running.works_in

    psutil.Process(before).kill()

    jobs.until_began(2, SOON)
    assert running.works_in != before
    finish(jobs, job)
    assert running.stop() == 0
