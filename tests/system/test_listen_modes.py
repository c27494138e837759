"""DL_LISTEN=host with real processes: the one that listens for its host is killed."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support import eventually
from tests.support.real_service import ServiceJobs, ServiceStarter, query_rows

LISTENERS = (
    "SELECT w.pid FROM pg_stat_activity a JOIN dl_workers w ON a.application_name = 'dataloader-listen:' || w.worker_id"
    " WHERE a.datname = current_database()"
)
SETTINGS = {"DL_LISTEN": "host", "DL_CLAIM_BACKOFF_SEC": "3600", "DL_HEARTBEAT_SEC": "10", "DL_REAPER_PERIOD_SEC": "10"}
SOON = 20.0  # far below the poll and the silence after which a process would look for jobs by itself


@pytest.mark.full
def test_job_after_the_kill_of_the_hosts_listener_starts_soon(run: ServiceStarter, jobs: ServiceJobs):
    for _ in range(3):
        run("worker", **SETTINGS).wait_until_ready()
    eventually(lambda: _listening_pids(jobs), message="one listens")
    (elected,) = _listening_pids(jobs)
    jobs.insert(seconds=0)
    jobs.wait_for_counts({"succeeded": 1}, SOON)

    os.kill(elected, signal.SIGKILL)
    jobs.insert(seconds=0)

    jobs.wait_for_counts({"succeeded": 2}, SOON)
    (next_one,) = eventually(lambda: [pid for pid in _listening_pids(jobs) if pid != elected], SOON)
    assert next_one != elected
    jobs.insert(seconds=0)
    jobs.wait_for_counts({"succeeded": 3}, SOON)


def _listening_pids(jobs: ServiceJobs) -> list[int]:
    return [pid for (pid,) in query_rows(jobs.dsn, LISTENERS)]
