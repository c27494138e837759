"""The sampler of a worker process: when it runs, and that each attempt that ran for long has an account."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from dataloader.app.features.where.accounts import Accounts, StoredAccount
from dataloader.app.features.where.sampler_options import Prices, SamplerOptions, WhereOptions
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Context, Pipelines, load_tasks
from dataloader.workers.duties import MaintenanceOptions
from tests.app.features.where.conftest import WhereFixture
from tests.support.waiting import eventually

QUICK = SamplerOptions(
    after_sec=0.1, interval_sec=0.05, write_interval_sec=0.1, prices=Prices(run_hour=3600.0, currency="EUR")
)


def wait_for_file(args: dict[str, Any], ctx: Context) -> None:
    while not os.path.exists(args["file"]):
        ctx.sleep(0.01)


def fail_after_file(args: dict[str, Any], ctx: Context) -> None:
    wait_for_file(args, ctx)
    raise ValueError("no good")


def tasks() -> Pipelines:
    made = Pipelines()
    made.register("waits")(wait_for_file)
    made.register("fails")(fail_after_file)
    return made


def start_pool(where: WhereFixture, options: SamplerOptions, pipelines: Pipelines | None = None) -> None:
    features = {"where": WhereOptions(sampler=options)}
    where.pools.listening_pool(
        pipelines=pipelines or tasks(), maintenance=MaintenanceOptions(features=features), heartbeat_sec=0.05
    )


def sampler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sampler"]


def wait_until_looked_at(where: WhereFixture, job_id: Any) -> None:
    """The account of the running attempt is written with something in it."""
    accounts = Accounts(where.pools.queue_fixture.queue.executor)
    eventually(lambda: any(found.account["kinds"] for found in accounts.of_job(job_id)), 60, message="it was looked at")


def account_of(where: WhereFixture, job_id: Any) -> StoredAccount:
    accounts = Accounts(where.pools.queue_fixture.queue.executor)

    def ended() -> StoredAccount | None:
        found = accounts.of_job(job_id)
        return found[0] if found and found[0].ended_at is not None else None

    account = eventually(ended, 60, message="the account is written")
    assert account is not None
    return account


@pytest.mark.parametrize(("task", "status"), [("waits", Status.SUCCEEDED), ("fails", Status.FAILED)])
def test_thread_exists_while_an_attempt_is_old(where: WhereFixture, task: str, status: Status):
    start_pool(where, QUICK)
    assert sampler_threads() == []

    job_id = where.start(task)
    wait_until_looked_at(where, job_id)
    assert sampler_threads()
    where.release()
    where.pools.wait_for_status(job_id, status)

    account = account_of(where, job_id)
    eventually(lambda: not sampler_threads(), message="the sampler has ended")
    assert account.account["entries"][0]["kind"] == "sleep"
    assert account.account["entries"][0]["place"].startswith("wait_for_file in where/test_sampler.py:")
    assert account.cost == pytest.approx(account.wall_sec, rel=0.01)
    assert account.cpu_sec is not None
    assert account.cpu_sec < account.wall_sec


def test_canceled_attempt_has_an_account(where: WhereFixture):
    start_pool(where, QUICK)
    job_id = where.start("waits")
    wait_until_looked_at(where, job_id)

    where.pools.queue_fixture.queue.cancel(job_id)
    where.pools.wait_for_status(job_id, Status.CANCELED)

    assert account_of(where, job_id).account["kinds"]


@pytest.mark.parametrize("options", [SamplerOptions(), SamplerOptions(after_sec=0.0, interval_sec=0.0)])
def test_nothing_runs_for_young_attempts_or_when_off(where: WhereFixture, options: SamplerOptions):
    start_pool(where, options)
    job_id = where.start("waits")
    heartbeats = where.pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_heartbeats")
    eventually(
        lambda: where.pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_heartbeats") > heartbeats + 2,
        message="heartbeats were sent",
    )

    assert sampler_threads() == []
    where.release()
    where.pools.wait_for_status(job_id, Status.SUCCEEDED)
    assert Accounts(where.pools.queue_fixture.queue.executor).of_job(job_id) == []


def test_program_has_an_account(where: WhereFixture, tmp_path: Path):
    made = Pipelines()
    wait = f"while [ ! -e '{where.release_file}' ]; do sleep 0.2; done"
    assert load_tasks((), {"program": {"command": ["sh", "-c", wait]}}, known_tasks=made) == {}
    start_pool(where, QUICK, made)
    job_id = where.start("program")
    wait_until_looked_at(where, job_id)
    where.release()

    account = account_of(where, job_id)

    assert account.account["entries"][0]["place"] in ("sleep (a program)", "sh (a program)")
    assert account.peak_memory_mb is not None
    assert account.cpu_sec is not None
