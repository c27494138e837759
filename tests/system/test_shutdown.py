"""The end of a process: under load, with pipelines that do not stop, in a hurry."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.support import eventually
from tests.support.running import Jobs, Runner

HOSTS = ("serve", "worker")


@pytest.mark.parametrize("host", HOSTS)
def test_a_stop_under_load_finishes_what_is_short_and_hands_back_what_is_long(host, run: Runner, jobs: Jobs):
    running = run(host).until_ready()
    short = jobs.insert("test.nap", 2, seconds=0.6)
    long = jobs.insert("test.until", 2)
    waiting = jobs.insert("test.nap", 30)
    jobs.until_began(4)

    code = running.stop()

    assert code == 0, running.process.text
    assert running.ended_by_itself(), running.process.text
    assert [jobs.row(job) for job in short] == [("succeeded", 1)] * 2
    assert [jobs.row(job) for job in long] == [("queued", 0)] * 2
    assert len(jobs.traced("stopped: shutdown")) == 2
    for job in long:
        assert jobs.events(job) == [("queued", None), ("picked", None), ("requeue", "shutdown")]
    assert all(jobs.row(job) in [("queued", 0), ("succeeded", 1)] for job in waiting)
    jobs.check()

    jobs.let_go()
    run(host).until_ready()

    jobs.until({"succeeded": 34})
    assert {jobs.row(job) for job in (*short, *long, *waiting)} == {("succeeded", 1)}
    jobs.check()


@pytest.mark.parametrize("host", HOSTS)
def test_a_pipeline_that_does_not_stop_is_left_behind_and_its_job_handed_back(host, run: Runner, jobs: Jobs):
    running = run(host).until_ready()
    (job,) = jobs.insert("test.deaf")
    jobs.until_began(1)

    code = running.stop()

    assert code == 0
    assert running.ended_by_itself(), running.process.text
    assert len(running.log("job.will.not.stop")) == 1
    assert jobs.row(job) == ("queued", 0)
    assert jobs.traced("ended") == []
    jobs.check()


@pytest.mark.parametrize("host", HOSTS)
def test_a_second_ctrl_c_does_not_wait_for_the_grace(host, run: Runner, jobs: Jobs):
    running = run(host, DL_SHUTDOWN_GRACE_SEC="600").until_ready()
    patient = jobs.insert("test.until", 2)
    deaf = jobs.insert("test.deaf", 1)
    jobs.until_began(3)
    running.process.signal(signal.SIGINT)
    running.process.wait_for("service.ending")

    code = running.stop(signal.SIGINT)

    assert code == 0
    assert running.ended_by_itself(), running.process.text
    assert [jobs.row(job) for job in (*patient, *deaf)] == [("queued", 0)] * 3
    jobs.check()


def test_no_request_is_taken_while_jobs_have_their_grace(run: Runner, jobs: Jobs):
    running = run("serve", DL_SHUTDOWN_GRACE_SEC="600").until_ready()
    jobs.insert("test.until")
    jobs.until_began(1)

    running.process.signal(signal.SIGTERM)

    def refused() -> bool:
        try:
            running.get("/health")
        except OSError:
            return True
        return False

    eventually(refused)
    jobs.let_go()
    assert running.process.wait() == 0
    assert jobs.counts() == {"succeeded": 1}


def test_a_client_that_never_ends_its_request_holds_nobody_up(run: Runner, jobs: Jobs):
    running = run("serve").until_ready()
    head = "POST /api/v1/jobs/trigger HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as slow:
        slow.sendall(head.encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 100"), "its head has been read"

        code = running.stop(timeout=60)
        answer = slow.recv(1000)

    assert code == 0
    assert "SIGKILL" not in running.process.text
    assert answer.startswith(b"HTTP/1.1 408"), "it was told, and no thread was in its hands"
    assert running.log("service.left") == []
