"""How soon a job begins: a plain INSERT by another service, and a job that falls due."""

from __future__ import annotations

import time

import pytest

from tests.support import eventually
from tests.support.running import Jobs, Runner, ask


@pytest.mark.parametrize("host", ["serve", "worker"])
def test_a_plain_insert_with_the_old_columns_wakes_an_idle_worker(host, run: Runner, jobs: Jobs, record_property):
    """Polling is off: only the notification can have told it. How long it takes is told, hardly judged."""
    run(host, DL_CLAIM_BACKOFF_SEC="3600").until_ready()
    late = []
    for number in range(1, 11):
        jobs.insert(seconds=0)
        inserted = time.time()
        jobs.until_began(number)
        eventually(lambda: jobs.counts().get("succeeded") == number)  # noqa: B023 - asked at once
        late.append(jobs.traced("began")[-1]["at"] - inserted)

    record_property("pick-up in ms", [round(seconds * 1000, 1) for seconds in late])
    print(f"pick-up by {host}: {', '.join(f'{seconds * 1000:.1f}' for seconds in sorted(late))} ms")  # noqa: T201
    assert sorted(late)[5] < 2, "the median of ten, in seconds"


def test_a_job_starts_when_it_falls_due_with_nothing_else_happening(run: Runner, jobs: Jobs):
    run("worker", DL_CLAIM_BACKOFF_SEC="3600").until_ready()
    jobs.insert()
    jobs.until({"succeeded": 1})
    ((due,),) = ask(
        jobs.dsn,
        "INSERT INTO dl_jobs (queue, task, lock_key, args, available_at)"
        " SELECT queue, task, 'later', args, clock_timestamp() + interval '1 s' FROM dl_jobs"
        " RETURNING extract(epoch FROM available_at)::float8",
    )

    jobs.until_began(2)

    late = jobs.traced("began")[1]["at"] - due
    print(f"late by {late * 1000:.1f} ms")  # noqa: T201
    assert -0.05 < late < 2
