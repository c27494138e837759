"""Accounts of attempts in processes of their own: stopped, and in another interpreter; and what `why` says of one."""

from __future__ import annotations

import os
import signal
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.features.where.accounts import Accounts
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Pipelines, load_tasks
from tests.app.features.where.conftest import WhereFixture, isolated
from tests.app.features.where.test_sampler import QUICK, account_of, start_pool, wait_until_looked_at
from tests.support import where_tasks
from tests.support.accounts import make_account
from tests.support.waiting import eventually
from tests.workers.isolation.old_project import OLDEST

STOPPED_SEC = 2.5


def kinds_of(where: WhereFixture, job_id: UUID) -> dict[str, float]:
    found = Accounts(where.pools.queue_fixture.queue.executor).of_job(job_id)
    return found[0].account["kinds"] if found else {}


def test_process_that_is_stopped_says_so(where: WhereFixture):
    start_pool(where, QUICK, isolated("where.apart"), packages=(where_tasks.__name__,))
    job_id = where.start("where.apart")
    wait_until_looked_at(where, job_id)
    (process,) = where.locate_at(job_id, "wait_for")["processes"]

    os.kill(process["pid"], signal.SIGSTOP)
    try:
        eventually(lambda: kinds_of(where, job_id).get("stopped", 0) > STOPPED_SEC, 60, message="it is stopped")
    finally:
        os.kill(process["pid"], signal.SIGCONT)
    where.release()

    account = account_of(where, job_id).account
    stops = [entry for entry in account["entries"] if entry["kind"] == "stopped"]  # by line: a moment may come late
    assert sum(entry["sec"] for entry in stops) > STOPPED_SEC
    assert {entry["place"].partition(":")[0] for entry in stops} == {"wait_for in support/where_tasks.py"}


def test_interpreter_of_its_own_has_an_account(where: WhereFixture):
    where.release_file.parent.joinpath("loads.py").write_text(
        "import os, time\n\n\ndef load(args, ctx):\n    while not os.path.exists(args['file']):\n"
        "        time.sleep(0.01)\n",
        encoding="utf-8",
    )
    tasks = Pipelines()
    definition = {"call": "loads:load", "python": OLDEST, "cwd": str(where.release_file.parent)}
    assert load_tasks((), {"legacy": definition}, known_tasks=tasks) == {}
    start_pool(where, QUICK, tasks)
    job_id = where.start("legacy")
    eventually(lambda: kinds_of(where, job_id).get("sleep"), 60, message="its sleep was seen")
    where.release()

    account = account_of(where, job_id)

    (slept,) = [entry for entry in account.account["entries"] if entry["kind"] == "sleep"]
    assert slept["place"].startswith("load in ")
    assert "loads.py:" in slept["place"]
    assert account.peak_memory_mb is not None
    assert account.cpu_sec is not None


@pytest.mark.parametrize("history", [3, 2])
def test_why_compares_a_running_job_with_its_history(where: WhereFixture, history: int):
    queue_db = where.pools.queue_fixture
    for number in range(history):
        run = queue_db.enqueue_and_claim(f"key-{number}", task="waits")
        Accounts(where.app_pool).write([make_account(run, 0.4)])
        queue_db.settle(run)
    start_pool(where, QUICK)
    job_id = where.start("waits")

    def slower() -> list[Any]:
        answer = where.client.get(f"/api/v1/jobs/{job_id}/why").get_json()
        return [reason for reason in answer["reasons"] if reason["code"] == "slower_than_usual"]

    if history >= 3:
        (reason,) = eventually(slower, 60, message="it is slower than usual") or [{}]
        beginning, _, cause = reason["message"].partition(" more went into: ")
        assert beginning.startswith("The attempt is already ")
        assert "slower than usual (400 ms, the median of 3 runs): " in beginning
        assert cause.startswith("sleep in wait_for_file in where/test_sampler.py:")
        assert reason["details"]["usual_runs"] == 3
        page = where.client.get(f"/jobs/{job_id}").get_data(as_text=True)
        assert reason["message"].partition(":")[0].rpartition(" is ")[0] in page
    else:
        eventually(lambda: kinds_of(where, job_id).get("sleep", 0) > 1.5, 60, message="it has run for longer")
        assert slower() == []
    where.release()
    where.pools.wait_for_status(job_id, Status.SUCCEEDED)
