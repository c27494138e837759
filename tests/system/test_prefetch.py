"""Tiny jobs are claimed a moment ahead: what that exposes when a process goes, gently or not."""

from __future__ import annotations

import signal

import pytest

from tests.support import eventually
from tests.support.real_service import ServiceJobs, ServiceStarter, query_rows

JOBS = 4_000
MAX_CLAIMED = 400 + 500 + 10  # claimed ahead, ended and not yet written, in the hands of threads
FILL = (
    "INSERT INTO dl_jobs (queue, task, lock_key, lease_ttl_sec) SELECT 'q', 'noop', 'tiny ' || n, 30"
    " FROM generate_series(1, %s) n"
)


@pytest.fixture
def at_full_speed(run: ServiceStarter, jobs: ServiceJobs):
    """A worker that runs very many tiny jobs."""
    worker = run("worker").wait_until_ready()
    query_rows(jobs.dsn, FILL, JOBS)
    eventually(
        lambda: jobs.status_counts().get("succeeded", 0) > 200, message=lambda: worker.process.text, interval_sec=0.002
    )
    return worker


def test_killed_process_costs_few_prefetched_attempts(at_full_speed, run: ServiceStarter, jobs: ServiceJobs):
    at_full_speed.process.kill()
    # A claim that was on its way is committed even so, over either hand.
    eventually(
        lambda: (
            not query_rows(
                jobs.dsn,
                "SELECT FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name ~ '^dataloader-(claim|settle):'",
            )
        )
    )
    held = jobs.status_counts().get("running", 0)
    query_rows(jobs.dsn, "UPDATE dl_jobs SET lease_expires_at = now() - interval '1 s' WHERE status = 'running'")

    run("worker").wait_until_ready()
    jobs.wait_for_counts({"succeeded": JOBS})

    assert held <= MAX_CLAIMED
    ((again, last_attempt),) = query_rows(
        jobs.dsn, "SELECT count(*) FILTER (WHERE attempt > 1), max(attempt) FROM dl_jobs"
    )
    assert again == held
    assert last_attempt <= 2
    jobs.check_invariants()


def test_stopped_process_releases_prefetched_jobs_for_free(at_full_speed, run: ServiceStarter, jobs: ServiceJobs):
    at_full_speed.process.signal(signal.SIGTERM)
    assert at_full_speed.process.wait() == 0

    assert jobs.status_counts().get("running", 0) == 0
    run("worker").wait_until_ready()
    jobs.wait_for_counts({"succeeded": JOBS})
    assert query_rows(jobs.dsn, "SELECT DISTINCT attempt FROM dl_jobs") == [(1,)]
    jobs.check_invariants()
