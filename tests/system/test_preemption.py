"""A machine that is to be taken away gives its jobs back at their checkpoints."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dataloader.app.runtime.preemption import RESERVE_SEC
from tests.support import eventually
from tests.support.real_service import ServiceJobs, ServiceStarter

GRACE_SEC = 1.0
POLL_SEC = 2.0  # between two looks for the notice
MAX_GAP_SEC = 20.0  # far below the grace of two minutes


@pytest.mark.full
def test_preempted_job_resumes_elsewhere_at_its_checkpoint(run: ServiceStarter, jobs: ServiceJobs, tmp_path: Path):
    notice = tmp_path / "notice"
    options = ("--preemption-notice", f"file:{notice}", "--notice-time", f"{RESERVE_SEC + GRACE_SEC:.0f}s")
    spot = run("worker", *options, DL_SHUTDOWN_GRACE_SEC="120").wait_until_ready()
    (job,) = jobs.insert("test.steps", seconds=60.0)
    eventually(lambda: len(jobs.trace_entries("step")) >= 3)
    run("worker").wait_until_ready()

    notice.touch()
    noticed_at = time.time()
    jobs.wait_for_starts(2)
    jobs.release_jobs()
    jobs.wait_for_counts({"succeeded": 1})

    first, second = jobs.trace_entries("began")
    (stopped,) = jobs.trace_entries("stopped")
    assert spot.process.wait(60) == 0
    assert first["pid"] == spot.worker_pid != second["pid"]
    assert stopped["what"] == "stopped: shutdown"
    assert second["at"] - (noticed_at + POLL_SEC + GRACE_SEC) < MAX_GAP_SEC
    assert second["at"] - stopped["at"] < MAX_GAP_SEC
    assert jobs.row(job) == ("succeeded", 1), "the attempt was given back"
    steps = [int(entry["what"].split()[1]) for entry in jobs.trace_entries("step")]
    assert sorted(set(steps)) == list(range(1, len(set(steps)) + 1)), "no step is left out"
    assert len(steps) - len(set(steps)) <= 1, "at most the one that was interrupted is repeated"
