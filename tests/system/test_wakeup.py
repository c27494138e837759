"""How soon a job begins: a plain INSERT by another service, and a job that falls due."""

from __future__ import annotations

import time

import pytest

from tests.support import eventually
from tests.support.real_service import ServiceJobs, ServiceStarter, query_rows


@pytest.mark.parametrize("host", ["serve", "worker"])
def test_plain_insert_with_old_columns_wakes_idle_worker(host, run: ServiceStarter, jobs: ServiceJobs, record_property):
    """Polling is off: only the notification can have started it. How long it takes is printed, hardly judged."""
    run(host, DL_CLAIM_BACKOFF_SEC="3600").wait_until_ready()
    late = []
    for number in range(1, 11):
        jobs.insert(seconds=0)
        inserted = time.time()
        jobs.wait_for_starts(number)
        eventually(lambda: jobs.status_counts().get("succeeded") == number)  # noqa: B023 - asked at once
        late.append(jobs.trace_entries("began")[-1]["at"] - inserted)

    record_property("pick-up in ms", [round(seconds * 1000, 1) for seconds in late])
    print(f"pick-up by {host}: {', '.join(f'{seconds * 1000:.1f}' for seconds in sorted(late))} ms")  # noqa: T201
    assert sorted(late)[5] < 2, "the median of ten, in seconds"


def test_due_job_starts_without_any_other_event(run: ServiceStarter, jobs: ServiceJobs):
    run("worker", DL_CLAIM_BACKOFF_SEC="3600").wait_until_ready()
    jobs.insert()
    jobs.wait_for_counts({"succeeded": 1})
    ((due,),) = query_rows(
        jobs.dsn,
        "INSERT INTO dl_jobs (queue, task, lock_key, args, available_at)"
        " SELECT queue, task, 'later', args, clock_timestamp() + interval '1 s' FROM dl_jobs"
        " RETURNING extract(epoch FROM available_at)::float8",
    )

    jobs.wait_for_starts(2)

    late = jobs.trace_entries("began")[1]["at"] - due
    print(f"late by {late * 1000:.1f} ms")  # noqa: T201
    assert -0.05 < late < 20
