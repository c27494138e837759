"""Tiny jobs are claimed a moment ahead: what that exposes when a process goes, gently or not."""

from __future__ import annotations

import signal

import pytest

from tests.support import eventually
from tests.support.running import Jobs, Runner, ask

JOBS = 4_000
MOST_HELD = 400 + 500 + 10  # claimed ahead, ended and not yet written, in the hands of threads
FILL = (
    "INSERT INTO dl_jobs (queue, task, lock_key, lease_ttl_sec) SELECT 'q', 'noop', 'tiny ' || n, 30"
    " FROM generate_series(1, %s) n"
)


@pytest.fixture
def at_full_speed(run: Runner, jobs: Jobs):
    """A worker in the midst of very many tiny jobs."""
    worker = run("worker").until_ready()
    ask(jobs.dsn, FILL, JOBS)
    eventually(lambda: jobs.counts().get("succeeded", 0) > 200, message=lambda: worker.process.text, period=0.002)
    return worker


def test_a_killed_process_costs_no_more_than_a_moments_jobs_a_try(at_full_speed, run: Runner, jobs: Jobs):
    at_full_speed.process.kill()
    # A claim that was on its way is committed even so, over either hand.
    eventually(
        lambda: (
            not ask(
                jobs.dsn,
                "SELECT FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name ~ '^dataloader-(claim|settle):'",
            )
        )
    )
    held = jobs.counts().get("running", 0)
    ask(jobs.dsn, "UPDATE dl_jobs SET lease_expires_at = now() - interval '1 s' WHERE status = 'running'")

    run("worker").until_ready()
    jobs.until({"succeeded": JOBS})

    assert held <= MOST_HELD
    ((again, most),) = ask(jobs.dsn, "SELECT count(*) FILTER (WHERE attempt > 1), max(attempt) FROM dl_jobs")
    assert again == held
    assert most <= 2
    jobs.check()


def test_a_process_that_is_stopped_gives_back_what_it_has_not_begun_and_that_costs_no_try(
    at_full_speed, run: Runner, jobs: Jobs
):
    at_full_speed.process.signal(signal.SIGTERM)
    assert at_full_speed.process.wait() == 0

    assert jobs.counts().get("running", 0) == 0
    run("worker").until_ready()
    jobs.until({"succeeded": JOBS})
    assert ask(jobs.dsn, "SELECT DISTINCT attempt FROM dl_jobs") == [(1,)]
    jobs.check()
