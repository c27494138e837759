"""A pooler in transaction mode stands before PostgreSQL: the API goes through it, the workers past it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from app.client import Client, Request
from app.queue.schema import migrate
from tests.support import Process, eventually
from tests.support.pgbouncer import pooled
from tests.support.running import Jobs, Runner, Running, ask


@pytest.fixture
def bouncer(dsn: str, run_folder: Path) -> Iterator[str]:
    migrate(dsn)
    with pooled(dsn, run_folder) as way:
        yield way


def client(running: Running) -> Client:
    return Client(f"http://127.0.0.1:{running.port}")


def trigger(running: Running, key: str) -> UUID:
    request = Request(queue="q", task="noop", lock_key=key, idempotency_key=key, args={"sleep1": 0})
    return client(running).trigger(request).job_id


def test_the_api_works_through_it_and_the_workers_past_it(
    start: Callable[..., Process], dsn: str, bouncer: str, jobs: Jobs
):
    running = Runner(start, bouncer)("serve", DL_WORKER_DSN=dsn).until_ready()

    made = [trigger(running, f"key-{n}") for n in range(20)]
    again = [trigger(running, f"key-{n}") for n in range(20)]

    assert again == made
    jobs.until({"succeeded": 20})
    assert running.get(f"/api/v1/jobs/{made[0]}/status")[1]["status"] == "succeeded"
    assert running.get("/status")[1]["workers"]["listener"] == "listening"
    assert ask(bouncer, "SHOW statement_timeout") == [("0",)], "what the API sets stays with its own transactions"
    jobs.check()
    assert running.stop() == 0


def test_a_job_is_canceled_through_it(start: Callable[..., Process], dsn: str, bouncer: str, jobs: Jobs):
    running = Runner(start, bouncer)("serve", DL_WORKER_DSN=dsn).until_ready()
    (job,) = jobs.insert("test.until")
    jobs.until_began(1)

    client(running).cancel(UUID(job))

    jobs.until({"canceled": 1})
    assert running.stop() == 0


def test_a_worker_behind_it_says_that_it_hears_nothing(start: Callable[..., Process], bouncer: str, jobs: Jobs):
    running = Runner(start, bouncer)("serve")
    running.process.wait_for_port(running.port)

    eventually(lambda: (running.get("/status")[1]["workers"] or {}).get("listener") == "deaf", 40, period=0.1)
