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
from tests.support.real_service import FAST_SETTINGS, RunningService, ServiceJobs, ServiceStarter, is_alive, query_rows

LEASE_SETTINGS = {
    "DL_HEARTBEAT_SEC": "10",
    "DL_DEFAULT_LEASE_TTL_SEC": "60",
    "DL_REAPER_PERIOD_SEC": "10",
    "DL_CLAIM_BACKOFF_SEC": "15",
}
MAX_TAKEOVER_SEC = 20.0  # far below the lease, and far above what it takes
LISTENING = "SELECT listener FROM dl_workers WHERE worker_name = %s"


@pytest.fixture
def jobs(dsn: str, tmp_path: Path) -> ServiceJobs:
    return ServiceJobs(dsn, tmp_path, lease=60)


def worker(run: ServiceStarter, **env: str) -> RunningService:
    return run("worker", **{**LEASE_SETTINGS, **env}).wait_until_ready()


def finish_second_attempt(jobs: ServiceJobs, job: str) -> None:
    """The second attempt ends well, and the first one is recorded nowhere."""
    jobs.release_jobs()
    jobs.wait_for_counts({"succeeded": 1})
    assert jobs.row(job) == ("succeeded", 2)
    assert ("requeue", "process_died") in jobs.event_kinds(job)
    jobs.check_invariants()


def test_killed_worker_jobs_start_on_its_neighbour_at_once(run: ServiceStarter, jobs: ServiceJobs):
    doomed = worker(run)
    (job,) = jobs.insert("test.until")
    jobs.wait_for_starts(1)
    neighbour = worker(run)

    doomed.process.signal(signal.SIGKILL)

    jobs.wait_for_starts(2, MAX_TAKEOVER_SEC)
    assert len(neighbour.log_lines("worker.found_dead")) == 1
    finish_second_attempt(jobs, job)
    eventually(
        lambda: query_rows(jobs.dsn, "SELECT pid FROM dl_workers WHERE dead_at IS NOT NULL") == [(doomed.process.pid,)]
    )


def test_neighbour_that_started_first_learns_of_a_new_process(run: ServiceStarter, jobs: ServiceJobs):
    """Its own heartbeat comes every ten seconds; the new one's start is announced."""
    first = worker(run, WORKERS_JSON='[{"queue":"other","concurrency":1}]')
    doomed = worker(run)
    (job,) = jobs.insert("test.until")
    jobs.wait_for_starts(1)

    doomed.process.signal(signal.SIGKILL)

    eventually(lambda: jobs.row(job) == ("queued", 1), MAX_TAKEOVER_SEC)
    assert len(first.log_lines("reaper.requeued")) == 1
    worker(run)
    finish_second_attempt(jobs, job)


def test_successor_pauses_only_after_second_death(run: ServiceStarter, jobs: ServiceJobs):
    (job,) = jobs.insert("test.until")
    for time in (1, 2):
        doomed = worker(run)
        jobs.wait_for_starts(time, MAX_TAKEOVER_SEC)
        doomed.process.kill()
    worker(run)
    eventually(lambda: jobs.row(job) == ("queued", 2), MAX_TAKEOVER_SEC)
    ((pause,),) = query_rows(
        jobs.dsn, "SELECT extract(epoch FROM available_at - clock_timestamp())::float8 FROM dl_jobs"
    )
    assert 2 < pause <= 10
    query_rows(jobs.dsn, "UPDATE dl_jobs SET available_at = clock_timestamp()")
    jobs.wait_for_starts(3, MAX_TAKEOVER_SEC)
    jobs.release_jobs()
    jobs.wait_for_counts({"succeeded": 1})
    jobs.check_invariants()


def test_job_whose_process_outlives_the_worker_waits_for_it(run: ServiceStarter, jobs: ServiceJobs, tmp_path: Path):
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
        neighbour.process.wait_for_line("worker.found_dead", MAX_TAKEOVER_SEC)
        plain = jobs.insert()  # taken and ended meanwhile: the neighbour is at work
        eventually(lambda: jobs.row(plain[0])[0] == "succeeded")
        assert is_alive(escaped)
        assert jobs.row(job) == ("running", 1)
        gone.touch()
    finally:
        os.kill(escaped, signal.SIGKILL)
    eventually(lambda: jobs.row(job) == ("succeeded", 2), MAX_TAKEOVER_SEC, lambda: neighbour.process.text)
    jobs.check_invariants()


# ── by name ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def namespaced(start: Callable[..., Process], dsn: str, tmp_path: Path) -> Callable[..., Process]:
    """Start a worker in a pid namespace of its own, as in a container."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing")

    def started(output: str, **env: str) -> Process:
        argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "app", "worker"]
        return Process(argv, output=tmp_path / output, env={**FAST_SETTINGS, **LEASE_SETTINGS, "DL_DB_DSN": dsn, **env})

    return started


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace needs root")
def test_name_proves_death_in_another_pid_namespace(
    run: ServiceStarter, jobs: ServiceJobs, namespaced: Callable[..., Process]
):
    """The successor may not look into the namespace, in which the predecessor's pid is its own."""
    with namespaced("first", DL_WORKER_NAME="etl-0") as first:
        first.wait_for_line("listener.connected")
        (job,) = jobs.insert("test.until")
        jobs.wait_for_starts(1)
        eventually(lambda: query_rows(jobs.dsn, LISTENING, "etl-0") == [("listening",)])
        first.kill()
    with namespaced("second", DL_WORKER_NAME="etl-0") as second:
        jobs.wait_for_starts(2, MAX_TAKEOVER_SEC)
        second.wait_for_line("a new process holds its name")
        finish_second_attempt(jobs, job)
        assert "worker_name.shared" not in second.text
        second.signal(signal.SIGKILL)


def test_two_live_holders_of_a_name_take_nothing_from_each_other(run: ServiceStarter, jobs: ServiceJobs, start: Any):
    first = worker(run, DL_WORKER_NAME="etl-0")
    (job,) = jobs.insert("test.until")
    jobs.wait_for_starts(1)
    eventually(lambda: query_rows(jobs.dsn, LISTENING, "etl-0") == [("listening",)])

    second = worker(run, DL_WORKER_NAME="etl-0")

    second.process.wait_for_line("worker_name.shared", MAX_TAKEOVER_SEC)
    assert second.log_lines("worker_name.shared")[0]["level"] == "error"
    assert jobs.row(job) == ("running", 1)
    assert query_rows(jobs.dsn, "SELECT count(superseded_by) FROM dl_workers") == [(0,)]
    doctor = start("doctor", "--json", env={"DL_DB_DSN": jobs.dsn})
    doctor.wait()
    assert "shared_worker_names" in doctor.text
    jobs.release_jobs()
    jobs.wait_for_counts({"succeeded": 1})
    assert jobs.row(job) == ("succeeded", 1)
    assert first.log_lines("worker_name.taken") == []


def test_thawed_holder_of_a_name_stops_its_attempts(run: ServiceStarter, jobs: ServiceJobs):
    frozen = worker(run, DL_WORKER_NAME="etl-0")
    (job,) = jobs.insert("test.until")
    jobs.wait_for_starts(1)
    eventually(lambda: query_rows(jobs.dsn, LISTENING, "etl-0") == [("listening",)])
    frozen.process.signal(signal.SIGSTOP)

    heir = worker(run, DL_WORKER_NAME="etl-0")
    jobs.wait_for_starts(2, MAX_TAKEOVER_SEC)
    assert heir.log_lines("worker_name.shared") == []
    frozen.process.signal(signal.SIGCONT)

    eventually(lambda: jobs.trace_entries("stopped: "), MAX_TAKEOVER_SEC)
    assert jobs.trace_entries("stopped: ")[0]["pid"] == frozen.process.pid
    assert frozen.process.wait(MAX_TAKEOVER_SEC) == 70
    finish_second_attempt(jobs, job)


def test_restarted_gunicorn_worker_takes_over_jobs(run: ServiceStarter, jobs: ServiceJobs):
    """The new worker process is a child of the same arbiter, which has reaped the dead one."""
    running = run("serve", **LEASE_SETTINGS).wait_until_ready()
    (job,) = jobs.insert("test.until")
    jobs.wait_for_starts(1)
    before = running.worker_pid

    psutil.Process(before).kill()

    jobs.wait_for_starts(2, MAX_TAKEOVER_SEC)
    assert running.worker_pid != before
    finish_second_attempt(jobs, job)
    assert running.stop() == 0
