"""Whatever is killed or frozen: every job is in one right wait state, and what is left can be started again."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.support import Process, eventually, free_port
from tests.support.real_service import ServiceJobs, ServiceStarter, is_alive, postgres_pids_of, query_rows


def test_jobs_of_a_killed_worker_are_run_again_by_another(run: ServiceStarter, jobs: ServiceJobs):
    doomed = run("worker").wait_until_ready()
    begun = jobs.insert("test.until", 3)
    jobs.wait_for_starts(3)
    doomed.process.kill()
    rest = jobs.insert("test.nap", 20)

    other = run("worker").wait_until_ready()

    jobs.wait_for_reaping()
    eventually(lambda: len(other.log_lines("reaper.requeued")) == 3, message=lambda: other.process.text)
    jobs.release_jobs()
    jobs.wait_for_counts({"succeeded": 23})
    for job in begun:
        assert jobs.row(job) == ("succeeded", 2)
        requeues = [reason for kind, reason in jobs.event_kinds(job) if kind == "requeue"]
        assert requeues in (["process_died"], ["lease_expired"])  # whichever is noticed first
    assert {jobs.row(job) for job in rest} == {("succeeded", 1)}
    assert len(jobs.trace_entries("ended")) == 23
    jobs.check_invariants()


def test_job_that_always_kills_its_worker_ends_lost(run: ServiceStarter, jobs: ServiceJobs):
    running = run("serve").wait_until_ready()
    (job,) = jobs.insert("test.until")
    query_rows(jobs.dsn, "UPDATE dl_jobs SET max_attempts = 2")
    for time in (1, 2):
        jobs.wait_for_starts(time)
        os.kill(running.worker_pid, signal.SIGKILL)
        jobs.wait_for_reaping(attempt=time)

    jobs.wait_for_counts({"lost": 1})
    assert jobs.row(job) == ("lost", 2)
    jobs.check_invariants()


def test_a_killed_gunicorn_worker_is_replaced(run: ServiceStarter, jobs: ServiceJobs):
    running = run("serve").wait_until_ready()
    (job,) = jobs.insert("test.until")
    jobs.wait_for_starts(1)
    before = running.worker_pid

    os.kill(before, signal.SIGKILL)

    jobs.wait_for_reaping()
    jobs.wait_for_starts(2)
    jobs.release_jobs()
    jobs.wait_for_counts({"succeeded": 1})
    assert jobs.row(job) == ("succeeded", 2)
    assert running.worker_pid != before
    assert running.wait_until_ready().get("/health")[0] == 200
    assert running.stop() == 0
    jobs.check_invariants()


def test_worker_exits_cleanly_after_arbiter_death(start: Callable[..., Process], home: Path, tmp_path: Path):
    port = free_port()
    running = ServiceStarter(start, None)("serve", APP_PORT=str(port), DL_DATA_DIR=str(home)).wait_until_ready()
    jobs = ServiceJobs(_dsn_in(home), tmp_path)
    (job,) = jobs.insert("test.until")
    jobs.wait_for_starts(1)
    orphan = running.worker_pid

    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()

    eventually(lambda: not is_alive(orphan), message=lambda: running.process.text)
    assert postgres_pids_of(home) == []
    assert len(running.log_lines("pool.stopped")) == 1

    again = ServiceStarter(start, None)("serve", APP_PORT=str(port), DL_DATA_DIR=str(home)).wait_until_ready()
    jobs.release_jobs()
    jobs.wait_for_counts({"succeeded": 1})
    assert jobs.row(job) == ("succeeded", 1)
    jobs.check_invariants()
    assert again.stop() == 0
    assert postgres_pids_of(home) == []


def test_next_start_adopts_a_surviving_server(start: Callable[..., Process], home: Path, tmp_path: Path):
    running = ServiceStarter(start, None)("serve", DL_DATA_DIR=str(home)).wait_until_ready()
    jobs = ServiceJobs(_dsn_in(home), tmp_path)
    jobs.insert("test.until")
    jobs.wait_for_starts(1)
    (server,) = postgres_pids_of(home)

    running.process.kill()

    assert postgres_pids_of(home) == [server]
    again = ServiceStarter(start, None)("serve", APP_PORT=str(running.port), DL_DATA_DIR=str(home)).wait_until_ready()
    assert postgres_pids_of(home) == [server]
    jobs.wait_for_reaping()
    jobs.release_jobs()
    jobs.wait_for_counts({"succeeded": 1})
    jobs.check_invariants()
    assert again.stop() == 0
    assert postgres_pids_of(home) == []


def test_worker_thawed_after_its_lease_records_nothing(run: ServiceStarter, dsn: str, tmp_path: Path):
    jobs = ServiceJobs(dsn, tmp_path, lease=2)
    zombie = run("worker").wait_until_ready()
    patient = jobs.insert("test.until", 1)
    deaf = jobs.insert("test.deaf", 1)
    jobs.wait_for_starts(2)

    zombie.process.signal(signal.SIGSTOP)
    heir = run("worker").wait_until_ready()
    eventually(lambda: len(heir.log_lines("reaper.requeued")) == 2, message=lambda: heir.process.text)
    # The frozen process still holds the keys' locks: no one may start these jobs while it could wake up.
    assert jobs.status_counts() == {"queued": 2}
    query_rows(dsn, "UPDATE dl_jobs SET lease_ttl_sec = 30")  # the heir is not to lose them
    zombie.process.signal(signal.SIGCONT)
    eventually(lambda: jobs.trace_entries("stopped: lease_lost"))
    jobs.release_jobs()

    jobs.wait_for_counts({"succeeded": 2})
    eventually(lambda: len(zombie.log_lines("attempt.abandoned")) == 2, message=lambda: zombie.process.text)
    assert {jobs.row(job) for job in (*patient, *deaf)} == {("succeeded", 2)}
    results = query_rows(jobs.dsn, "SELECT DISTINCT result->>'attempt' FROM dl_jobs")
    assert results == [("2",)]
    jobs.check_invariants()


def test_job_process_ends_with_the_lease_of_a_frozen_worker(run: ServiceStarter, dsn: str, tmp_path: Path):
    jobs = ServiceJobs(dsn, tmp_path, lease=2)
    tasks = json.dumps({"sleeps": {"command": ["sleep", "600"]}})
    frozen = run("worker", DL_TASKS=tasks).wait_until_ready()
    jobs.insert("sleeps", 1)
    eventually(
        lambda: "sleep" in commands_of(frozen.process.pid),
        message=lambda: f"{commands_of(frozen.process.pid)} {frozen.process.text}",
    )
    family = psutil.Process(frozen.process.pid).children(recursive=True)

    frozen.process.signal(signal.SIGSTOP)

    eventually(lambda: not any(is_alive(it.pid) for it in family), message="no process of the job is left")
    frozen.process.signal(signal.SIGCONT)
    assert frozen.stop() == 0


def commands_of(pid: int) -> set[str]:
    return {it.name() for it in psutil.Process(pid).children(recursive=True)} - {psutil.Process().name()}


def test_crashed_thread_sets_the_exit_code(run: ServiceStarter, jobs: ServiceJobs):
    """A bug in a background thread: the tables it works on are gone."""
    running = run("worker").wait_until_ready()

    query_rows(jobs.dsn, "ALTER TABLE dl_workers RENAME TO dl_elsewhere")

    assert running.process.wait() == 70
    assert re.search(r"thread\.crashed", running.process.text)


def _dsn_in(home: Path) -> str:
    """The embedded server's, as anyone on this machine may find it."""
    return f"host={home / 'postgres' / 'run'} port=5432 user=dataloader dbname=postgres"
