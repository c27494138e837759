"""A pooler in transaction mode is before PostgreSQL: the API goes through it, the workers past it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dataloader import Client
from dataloader.app.config import load_settings
from dataloader.app.db.schema import migrate
from dataloader.app.runtime.commands import run_doctor
from tests.support import Process
from tests.support.pgbouncer import running_pgbouncer
from tests.support.processes import free_port
from tests.support.real_service import RunningService, ServiceJobs, ServiceStarter, query_rows


@pytest.fixture
def bouncer(dsn: str, run_folder: Path) -> Iterator[str]:
    migrate(dsn)
    with running_pgbouncer(dsn, run_folder) as way:
        yield way


def client(running: RunningService) -> Client:
    return Client(f"http://127.0.0.1:{running.port}")


def trigger(running: RunningService, key: str) -> UUID:
    job = client(running).trigger("noop", {"sleep1": 0}, queue="q", lock_key=key, idempotency_key=key)
    return UUID(job["job_id"])


def test_the_api_works_through_it_and_the_workers_past_it(
    start: Callable[..., Process], dsn: str, bouncer: str, jobs: ServiceJobs
):
    running = ServiceStarter(start, bouncer)("serve", DL_WORKER_DSN=dsn).wait_until_ready()

    made = [trigger(running, f"key-{n}") for n in range(20)]
    again = [trigger(running, f"key-{n}") for n in range(20)]

    assert again == made
    jobs.wait_for_counts({"succeeded": 20})
    assert running.get(f"/api/v1/jobs/{made[0]}/status")[1]["status"] == "succeeded"
    assert running.get("/status")[1]["workers"]["listener"] == "listening"
    assert query_rows(bouncer, "SHOW statement_timeout") == [("0",)], (
        "what the API sets stays with its own transactions"
    )
    jobs.check_invariants()
    assert running.stop() == 0


def test_a_job_is_canceled_through_it(start: Callable[..., Process], dsn: str, bouncer: str, jobs: ServiceJobs):
    running = ServiceStarter(start, bouncer)("serve", DL_WORKER_DSN=dsn).wait_until_ready()
    (job,) = jobs.insert("test.until")
    jobs.wait_for_starts(1)

    client(running).cancel(UUID(job))

    jobs.wait_for_counts({"canceled": 1})
    assert running.stop() == 0


@pytest.mark.parametrize("host", ["serve", "worker"])
def test_worker_behind_it_stays_unready_and_starts_nothing(
    start: Callable[..., Process], bouncer: str, jobs: ServiceJobs, host: str
):
    probes = {"DL_PROBE_PORT": str(free_port())} if host == "worker" else {}
    running = ServiceStarter(start, bouncer)(host, **probes)
    port = int(probes.get("DL_PROBE_PORT", running.port))
    running.process.wait_for_line("worker.pooler_refused")
    running.process.wait_for_port(port)
    waiting = jobs.insert("test.nap")

    status, found = get(port, "/status" if host == "serve" else "/health/ready")

    assert status == 503
    if host == "serve":
        assert "DL_WORKER_DSN" in found["workers"]["detail"]
    assert [line for line in running.process.lines if "worker.pooler_refused" in line and '"ERROR"' in line.upper()]
    assert "listener.connected" not in running.process.text
    assert jobs.row(waiting[0]) == ("queued", 0)
    finding = [one for one in run_doctor(load_settings({"DL_DB_DSN": bouncer}, dotenv=None)) if one.check == "pooler"]
    assert "DL_WORKER_DSN" in finding[0].remedy
    assert running.stop() == 0


def get(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)
