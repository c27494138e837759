"""PostgreSQL goes away in the middle of jobs, politely or not."""

from __future__ import annotations

import pytest

from tests.support import PrivateServer, eventually
from tests.support.real_service import ServiceJobs, ServiceStarter

# Long enough to outlive an outage, short enough to be seen to run out.
LEASE_SETTINGS = {"DL_DEFAULT_LEASE_TTL_SEC": "20"}


@pytest.fixture
def jobs_there(server: PrivateServer, tmp_path) -> ServiceJobs:
    return ServiceJobs(server.dsn, tmp_path, lease=20)


@pytest.mark.parametrize(
    ("host", "outage"),
    [
        ("serve", "crash"),
        ("worker", "restart"),
        pytest.param("serve", "restart", marks=pytest.mark.full),
        pytest.param("worker", "crash", marks=pytest.mark.full),
    ],
)
def test_jobs_outliving_an_outage_finish_on_first_attempt(
    host, outage, run_there: ServiceStarter, jobs_there: ServiceJobs, server: PrivateServer
):
    jobs = jobs_there
    running = run_there(host, **LEASE_SETTINGS).wait_until_ready()
    long = jobs.insert("test.until", 2)
    jobs.wait_for_starts(2)
    waiting = jobs.insert("test.nap", 40, seconds=0.01)

    if outage == "restart":
        server.restart()
    else:
        server.crash()
        server.start()
    later = jobs.insert("test.nap", 5, seconds=0.01)
    eventually(lambda: running.log_lines("database.available") or jobs.status_counts().get("succeeded") == 45)
    jobs.release_jobs()

    jobs.wait_for_counts({"succeeded": 47})
    assert {jobs.row(job) for job in (*long, *later)} == {("succeeded", 1)}
    assert {status for status, _ in map(jobs.row, waiting)} == {"succeeded"}
    assert len(jobs.trace_entries("began")) == len(jobs.trace_entries("ended"))
    for job in long:
        assert jobs.event_kinds(job) == [("queued", None), ("picked", None), ("done", None)]
    assert "Traceback" not in running.process.text
    jobs.check_invariants()
    assert running.stop() == 0


def test_settlement_is_retried_until_the_database_is_back(
    run_there: ServiceStarter, jobs_there: ServiceJobs, server: PrivateServer
):
    jobs = jobs_there
    running = run_there("worker", **LEASE_SETTINGS).wait_until_ready()
    ended = jobs.insert("test.until", 3)
    jobs.wait_for_starts(3)

    server.crash()
    jobs.release_jobs()
    eventually(lambda: len(jobs.trace_entries("ended")) == 3)
    running.process.wait_for_line('"thread": "settler"')
    server.start()

    jobs.wait_for_counts({"succeeded": 3})
    assert {jobs.row(job) for job in ended} == {("succeeded", 1)}
    assert len(jobs.trace_entries("began")) == 3
    jobs.check_invariants()


def test_settlement_is_abandoned_once_lease_is_untrusted(run_there: ServiceStarter, server: PrivateServer, tmp_path):
    """No one writes for a job that may be someone else's by now: it is run again."""
    jobs = ServiceJobs(server.dsn, tmp_path, lease=2)
    running = run_there("worker").wait_until_ready()
    (job,) = jobs.insert("test.deaf")
    jobs.wait_for_starts(1)

    server.stop()
    running.process.wait_for_line("lease.lost")
    jobs.release_jobs()
    running.process.wait_for_line("attempt.abandoned")
    server.start()

    jobs.wait_for_counts({"succeeded": 1})
    assert jobs.row(job) == ("succeeded", 2)
    jobs.check_invariants()


def test_a_stop_while_the_database_is_away_ends_in_time(
    run_there: ServiceStarter, jobs_there: ServiceJobs, server: PrivateServer
):
    jobs = jobs_there
    running = run_there("serve", **LEASE_SETTINGS).wait_until_ready()
    jobs.insert("test.until", 2)
    jobs.wait_for_starts(2)
    server.stop()

    assert running.stop(timeout=60) == 0
    assert running.check_clean_exit(), running.process.text

    server.start()
    assert jobs.status_counts() == {"running": 2}, "their release could not be recorded"
    jobs.check_invariants()
