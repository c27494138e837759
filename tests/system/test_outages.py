"""PostgreSQL goes away in the middle of jobs, politely or not."""

from __future__ import annotations

import pytest

from tests.support import PrivateServer, eventually
from tests.support.running import Jobs, Runner

# Long enough to outlive an outage, short enough to be seen to run out.
LEASE = {"DL_DEFAULT_LEASE_TTL_SEC": "20"}


@pytest.fixture
def jobs_there(server: PrivateServer, tmp_path) -> Jobs:
    return Jobs(server.dsn, tmp_path, lease=20)


@pytest.mark.parametrize("outage", ["restart", "crash"])
@pytest.mark.parametrize("host", ["serve", "worker"])
def test_jobs_that_outlive_an_outage_finish_on_their_first_attempt(
    host, outage, run_there: Runner, jobs_there: Jobs, server: PrivateServer
):
    jobs = jobs_there
    running = run_there(host, **LEASE).until_ready()
    long = jobs.insert("test.until", 2)
    jobs.until_began(2)
    waiting = jobs.insert("test.nap", 40, seconds=0.01)

    if outage == "restart":
        server.restart()
    else:
        server.crash()
        server.start()
    later = jobs.insert("test.nap", 5, seconds=0.01)
    eventually(lambda: running.log("database.back") or jobs.counts().get("succeeded") == 45)
    jobs.let_go()

    jobs.until({"succeeded": 47})
    assert {jobs.row(job) for job in (*long, *later)} == {("succeeded", 1)}
    assert {status for status, _ in map(jobs.row, waiting)} == {"succeeded"}
    assert len(jobs.traced("began")) == len(jobs.traced("ended"))
    for job in long:
        assert jobs.events(job) == [("queued", None), ("picked", None), ("done", None)]
    assert "Traceback" not in running.process.text
    jobs.check()
    assert running.stop() == 0


def test_an_end_that_meets_a_dead_database_is_written_when_it_is_back(
    run_there: Runner, jobs_there: Jobs, server: PrivateServer
):
    jobs = jobs_there
    running = run_there("worker", **LEASE).until_ready()
    ended = jobs.insert("test.until", 3)
    jobs.until_began(3)

    server.crash()
    jobs.let_go()
    eventually(lambda: len(jobs.traced("ended")) == 3)
    running.process.wait_for('"keeper": "settler"')
    server.start()

    jobs.until({"succeeded": 3})
    assert {jobs.row(job) for job in ended} == {("succeeded", 1)}
    assert len(jobs.traced("began")) == 3
    jobs.check()


def test_an_end_is_given_up_once_the_lease_cannot_be_trusted(run_there: Runner, server: PrivateServer, tmp_path):
    """Nobody writes for a job that may be somebody else's by now: it is run again."""
    jobs = Jobs(server.dsn, tmp_path, lease=2)
    running = run_there("worker").until_ready()
    (job,) = jobs.insert("test.deaf")
    jobs.until_began(1)

    server.stop()
    running.process.wait_for("lease.lost")
    jobs.let_go()
    running.process.wait_for("attempt.abandoned")
    server.start()

    jobs.until({"succeeded": 1})
    assert jobs.row(job) == ("succeeded", 2)
    jobs.check()


def test_a_stop_while_the_database_is_away_ends_in_time(run_there: Runner, jobs_there: Jobs, server: PrivateServer):
    jobs = jobs_there
    running = run_there("serve", **LEASE).until_ready()
    jobs.insert("test.until", 2)
    jobs.until_began(2)
    server.stop()

    assert running.stop(timeout=60) == 0
    assert running.ended_by_itself(), running.process.text

    server.start()
    assert jobs.counts() == {"running": 2}, "nobody could write down that they were handed back"
    jobs.check()
