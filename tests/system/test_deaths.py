"""Whatever is killed or frozen: every job is in one right place, and what is left can be started again."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.support import Process, eventually, free_port
from tests.support.running import Jobs, Runner, alive, ask, servers_of


def test_jobs_of_a_killed_worker_are_run_again_by_another(run: Runner, jobs: Jobs):
    doomed = run("worker").until_ready()
    begun = jobs.insert("test.until", 3)
    jobs.until_began(3)
    doomed.process.kill()
    rest = jobs.insert("test.nap", 20)

    other = run("worker").until_ready()

    jobs.until_taken_back()
    eventually(lambda: len(other.log("reaper.requeued")) == 3, message=lambda: other.process.text)
    jobs.let_go()
    jobs.until({"succeeded": 23})
    for job in begun:
        assert jobs.row(job) == ("succeeded", 2)
        assert ("requeue", "process_died") in jobs.events(job)
    assert {jobs.row(job) for job in rest} == {("succeeded", 1)}
    assert len(jobs.traced("ended")) == 23
    jobs.check()


def test_a_job_that_kills_its_worker_every_time_is_lost_in_the_end(run: Runner, jobs: Jobs):
    running = run("serve").until_ready()
    (job,) = jobs.insert("test.until")
    ask(jobs.dsn, "UPDATE dl_jobs SET max_attempts = 2")
    for time in (1, 2):
        jobs.until_began(time)
        os.kill(running.works_in, signal.SIGKILL)
        jobs.until_taken_back(attempt=time)

    jobs.until({"lost": 1})
    assert jobs.row(job) == ("lost", 2)
    jobs.check()


def test_a_killed_gunicorn_worker_is_replaced(run: Runner, jobs: Jobs):
    running = run("serve").until_ready()
    (job,) = jobs.insert("test.until")
    jobs.until_began(1)
    before = running.works_in

    os.kill(before, signal.SIGKILL)

    jobs.until_taken_back()
    jobs.until_began(2)
    jobs.let_go()
    jobs.until({"succeeded": 1})
    assert jobs.row(job) == ("succeeded", 2)
    assert running.works_in != before
    assert running.until_ready().get("/health")[0] == 200
    assert running.stop() == 0
    jobs.check()


def test_after_the_arbiters_death_its_worker_ends_cleanly_and_leaves_nothing_behind(
    start: Callable[..., Process], home: Path, tmp_path: Path
):
    port = free_port()
    running = Runner(start, None)("serve", APP_PORT=str(port), DL_DATA_DIR=str(home)).until_ready()
    jobs = Jobs(_dsn_in(home), tmp_path)
    (job,) = jobs.insert("test.until")
    jobs.until_began(1)
    orphan = running.works_in

    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()

    eventually(lambda: not alive(orphan), message=lambda: running.process.text)
    assert servers_of(home) == []
    assert len(running.log("pool.stopped")) == 1

    again = Runner(start, None)("serve", APP_PORT=str(port), DL_DATA_DIR=str(home)).until_ready()
    jobs.let_go()
    jobs.until({"succeeded": 1})
    assert jobs.row(job) == ("succeeded", 1)
    jobs.check()
    assert again.stop() == 0
    assert servers_of(home) == []


def test_after_the_death_of_everything_but_the_server_the_next_start_takes_it_over(
    start: Callable[..., Process], home: Path, tmp_path: Path
):
    running = Runner(start, None)("serve", DL_DATA_DIR=str(home)).until_ready()
    jobs = Jobs(_dsn_in(home), tmp_path)
    jobs.insert("test.until")
    jobs.until_began(1)
    (server,) = servers_of(home)

    running.process.kill()

    assert servers_of(home) == [server]
    again = Runner(start, None)("serve", APP_PORT=str(running.port), DL_DATA_DIR=str(home)).until_ready()
    assert servers_of(home) == [server]
    jobs.until_taken_back()
    jobs.let_go()
    jobs.until({"succeeded": 1})
    jobs.check()
    assert again.stop() == 0
    assert servers_of(home) == []


def test_a_frozen_worker_that_thaws_after_its_lease_records_nothing(run: Runner, dsn: str, tmp_path: Path):
    jobs = Jobs(dsn, tmp_path, lease=2)
    zombie = run("worker").until_ready()
    patient = jobs.insert("test.until", 1)
    deaf = jobs.insert("test.deaf", 1)
    jobs.until_began(2)

    zombie.process.signal(signal.SIGSTOP)
    heir = run("worker").until_ready()
    eventually(lambda: len(heir.log("reaper.requeued")) == 2, message=lambda: heir.process.text)
    # The frozen process still holds the keys' locks: nobody may start these jobs while it could wake up.
    assert jobs.counts() == {"queued": 2}
    ask(dsn, "UPDATE dl_jobs SET lease_ttl_sec = 30")  # the heir is not to lose them
    zombie.process.signal(signal.SIGCONT)
    eventually(lambda: jobs.traced("stopped: lease_lost"))
    jobs.let_go()

    jobs.until({"succeeded": 2})
    eventually(lambda: len(zombie.log("attempt.abandoned")) == 2, message=lambda: zombie.process.text)
    assert {jobs.row(job) for job in (*patient, *deaf)} == {("succeeded", 2)}
    results = ask(jobs.dsn, "SELECT DISTINCT result->>'attempt' FROM dl_jobs")
    assert results == [("2",)]
    jobs.check()


def test_the_process_of_a_job_ends_with_its_lease_when_its_worker_is_frozen(run: Runner, dsn: str, tmp_path: Path):
    jobs = Jobs(dsn, tmp_path, lease=2)
    tasks = json.dumps({"sleeps": {"command": ["sleep", "600"]}})
    frozen = run("worker", DL_TASKS=tasks).until_ready()
    jobs.insert("sleeps", 1)
    eventually(
        lambda: "sleep" in programs_of(frozen.process.pid),
        message=lambda: f"{programs_of(frozen.process.pid)} {frozen.process.text}",
    )
    family = psutil.Process(frozen.process.pid).children(recursive=True)

    frozen.process.signal(signal.SIGSTOP)

    eventually(lambda: not any(alive(it.pid) for it in family), message="nobody is left of the job")
    frozen.process.signal(signal.SIGCONT)
    assert frozen.stop() == 0


def programs_of(pid: int) -> set[str]:
    return {it.name() for it in psutil.Process(pid).children(recursive=True)} - {psutil.Process().name()}


def test_a_service_whose_thread_has_died_says_so_by_its_exit_code(run: Runner, jobs: Jobs):
    """A bug in a keeper: the tables it works on have gone."""
    running = run("worker").until_ready()

    ask(jobs.dsn, "ALTER TABLE dl_workers RENAME TO dl_elsewhere")

    assert running.process.wait() == 70
    assert re.search(r"(keeper|worker)\.died", running.process.text)


def _dsn_in(home: Path) -> str:
    """The embedded server's, as anybody on this machine may find it."""
    return f"host={home / 'postgres' / 'run'} port=5432 user=dataloader dbname=postgres"
