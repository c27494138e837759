"""The end of a process: under load, with pipelines that do not stop, in a hurry."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.support import eventually
from tests.support.real_service import ServiceJobs, ServiceStarter

HOSTS = ("serve", "worker")


@pytest.mark.parametrize("host", HOSTS)
def test_stop_under_load_finishes_short_and_releases_long_jobs(host, run: ServiceStarter, jobs: ServiceJobs):
    running = run(host).wait_until_ready()
    short = jobs.insert("test.nap", 2, seconds=0.6)
    long = jobs.insert("test.until", 2)
    waiting = jobs.insert("test.nap", 30)
    jobs.wait_for_starts(4)

    code = running.stop()

    assert code == 0, running.process.text
    assert running.check_clean_exit(), running.process.text
    assert [jobs.row(job) for job in short] == [("succeeded", 1)] * 2
    assert [jobs.row(job) for job in long] == [("queued", 0)] * 2
    assert len(jobs.trace_entries("stopped: shutdown")) == 2
    for job in long:
        assert jobs.event_kinds(job) == [("queued", None), ("picked", None), ("requeue", "shutdown")]
    assert all(jobs.row(job) in [("queued", 0), ("succeeded", 1)] for job in waiting)
    jobs.check_invariants()

    jobs.release_jobs()
    run(host).wait_until_ready()

    jobs.wait_for_counts({"succeeded": 34})
    assert {jobs.row(job) for job in (*short, *long, *waiting)} == {("succeeded", 1)}
    jobs.check_invariants()


@pytest.mark.parametrize("host", HOSTS)
def test_unstoppable_pipeline_is_abandoned_and_job_released(host, run: ServiceStarter, jobs: ServiceJobs):
    running = run(host).wait_until_ready()
    (job,) = jobs.insert("test.deaf")
    jobs.wait_for_starts(1)

    code = running.stop()

    assert code == 0
    assert running.check_clean_exit(), running.process.text
    assert len(running.log_lines("job.stop_timeout")) == 1
    assert jobs.row(job) == ("queued", 0)
    assert jobs.trace_entries("ended") == []
    jobs.check_invariants()


@pytest.mark.parametrize("host", HOSTS)
def test_second_ctrl_c_skips_the_grace_period(host, run: ServiceStarter, jobs: ServiceJobs):
    running = run(host, DL_SHUTDOWN_GRACE_SEC="600").wait_until_ready()
    patient = jobs.insert("test.until", 2)
    deaf = jobs.insert("test.deaf", 1)
    jobs.wait_for_starts(3)
    running.process.signal(signal.SIGINT)
    running.process.wait_for_line("service.stopping")

    code = running.stop(signal.SIGINT)

    assert code == 0
    assert running.check_clean_exit(), running.process.text
    assert [jobs.row(job) for job in (*patient, *deaf)] == [("queued", 0)] * 3
    jobs.check_invariants()


def test_no_request_is_taken_while_jobs_have_their_grace(run: ServiceStarter, jobs: ServiceJobs):
    running = run("serve", DL_SHUTDOWN_GRACE_SEC="600").wait_until_ready()
    jobs.insert("test.until")
    jobs.wait_for_starts(1)

    running.process.signal(signal.SIGTERM)

    def refused() -> bool:
        try:
            running.get("/health")
        except OSError:
            return True
        return False

    eventually(refused)
    jobs.release_jobs()
    assert running.process.wait() == 0
    assert jobs.status_counts() == {"succeeded": 1}


def test_unfinished_request_does_not_delay_shutdown(run: ServiceStarter, jobs: ServiceJobs):
    running = run("serve").wait_until_ready()
    head = "POST /api/v1/jobs/trigger HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as slow:
        slow.sendall(head.encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 100"), "its head has been read"

        code = running.stop(timeout=60)
        answer = slow.recv(1000)

    assert code == 0
    assert "SIGKILL" not in running.process.text
    assert answer.startswith(b"HTTP/1.1 408"), "it was answered, and it held no thread"
    assert running.log_lines("service.stop_timeout") == []
