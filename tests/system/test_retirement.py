"""Worker processes that end by their age or size, and start again under a supervisor."""

from __future__ import annotations

import pytest

from tests.support import eventually
from tests.support.real_service import ServiceJobs, ServiceStarter


def test_old_worker_ends_its_jobs_and_exits_with_zero(run: ServiceStarter, jobs: ServiceJobs):
    old = run("worker", "--max-hours", "0.001").wait_until_ready()  # 3.6 s
    (job,) = jobs.insert("test.until")
    jobs.wait_for_starts(1)
    old.process.wait_for_line("worker.retiring")
    (later,) = jobs.insert()

    assert old.process.exit_code is None, "its job may take as long as it does"
    assert jobs.row(later) == ("queued", 0)
    jobs.release_jobs()
    assert old.process.wait() == 0
    (retiring,) = old.log_lines("worker.retiring")
    assert retiring["reason"] == "age"
    assert jobs.row(job) == ("succeeded", 1)

    run("worker").wait_until_ready()  # as its supervisor does
    jobs.wait_for_counts({"succeeded": 2})
    assert jobs.row(later) == ("succeeded", 1)


@pytest.mark.full  # the size counts after 15 s
def test_large_worker_ends_its_jobs_and_exits_with_zero(run: ServiceStarter, jobs: ServiceJobs):
    large = run("worker", "--max-rss", "1MB").wait_until_ready()
    (job,) = jobs.insert("test.until")
    jobs.wait_for_starts(1)

    (retiring,) = eventually(lambda: large.log_lines("worker.retiring"), 60)
    jobs.release_jobs()

    assert large.process.wait() == 0
    assert retiring["reason"] == "size"
    assert retiring["rss_bytes"] > 1024**2
    assert jobs.row(job) == ("succeeded", 1)
