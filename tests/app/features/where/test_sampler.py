"""The sampler of a worker process: when it runs, and that each attempt that ran for long has an account."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dataloader.app.features.where import sampler as sampler_module
from dataloader.app.features.where.accounts import Accounts, StoredAccount
from dataloader.app.features.where.sampler import Sampler
from dataloader.app.features.where.sampler_options import Prices, SamplerOptions, WhereOptions
from dataloader.app.features.where.watched import WatchedAttempt
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Context, Pipelines, load_tasks
from dataloader.pipelines.portable import clock
from dataloader.workers.duties import MaintenanceOptions
from dataloader.workers.moments import LateLooks
from dataloader.workers.reports.secrets import SecretStore
from dataloader.workers.running_attempts import RunningAttempts
from tests.app.features.where.conftest import WhereFixture
from tests.support.claimed_jobs import attempt_with
from tests.support.waiting import eventually

SECRET = "swordfish_2f1d"
QUICK = SamplerOptions(
    after_sec=0.1, interval_sec=0.05, write_interval_sec=0.1, prices=Prices(run_hour=3600.0, currency="EUR")
)


def wait_for_file(args: dict[str, Any], ctx: Context) -> None:
    while not os.path.exists(args["file"]):
        ctx.sleep(0.01)


def fail_after_file(args: dict[str, Any], ctx: Context) -> None:
    wait_for_file(args, ctx)
    raise ValueError("no good")


def hold_after_file(args: dict[str, Any], ctx: Context) -> None:
    """Native code that holds the interpreter, up to the end of the attempt."""
    wait_for_file(args, ctx)
    max(itertools.repeat(0, 200_000_000))


def tasks() -> Pipelines:
    made = Pipelines()
    made.register("waits")(wait_for_file)
    made.register("fails")(fail_after_file)
    made.register("holds")(hold_after_file)
    return made


def start_pool(where: WhereFixture, options: SamplerOptions, pipelines: Pipelines | None = None, **more: Any) -> None:
    features = {"where": WhereOptions(sampler=options)}
    where.pools.listening_pool(
        pipelines=pipelines or tasks(), maintenance=MaintenanceOptions(features=features), heartbeat_sec=0.05, **more
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


def test_timed_out_attempt_is_in_the_totals(where: WhereFixture):
    start_pool(where, QUICK)
    args = {"file": str(where.release_file)}
    job_id = where.pools.add_job("waits", args=args, max_attempts=1, time_limit_sec=1)
    where.pools.wait_for_status(job_id, Status.FAILED)

    account = account_of(where, job_id)

    assert where.pools.queue_fixture.job(job_id).error_fingerprint == "TimeoutError"
    assert account.wall_sec >= 1
    (day,) = Accounts(where.pools.queue_fixture.queue.executor).days(days=2, limit=10)
    assert (day.task, day.attempts, day.wall_sec) == ("waits", 1, account.wall_sec)


def test_native_code_until_the_end_is_named(tmp_path: Path):
    """The looks are the test's own: one that still writes its account when the task goes on sees too little."""
    release = tmp_path / "release"
    attempt = attempt_with(task="holds", args_text=json.dumps({"file": str(release)}))
    looked = threading.Event()
    thread = threading.Thread(target=lambda: (attempt.run(tasks().get("holds")), looked.wait()))  # a worker's lives on
    thread.start()
    eventually(lambda: attempt.thread_ident is not None, message="it runs")
    watched, late = WatchedAttempt(attempt, clock(), QUICK.interval_sec, clock()), LateLooks()
    watched.look(clock(), sys._current_frames(), 0.0, ())

    late.plan(clock() + QUICK.interval_sec)
    release.touch()
    eventually(lambda: attempt.ended_at is not None, 60, message="it has ended")
    watched.look(now := clock(), {}, late.late_sec(now), ())
    looked.set()
    thread.join()

    written = watched.encode(now, None, has_ended=True)
    watched.close()
    late.close()
    account = json.loads(written.account)
    kinds = account["kinds"]
    assert kinds.get("native", 0) + kinds.get("queued", 0) > 0.2, kinds
    assert account["watched_sec"] <= written.wall_sec


def test_secret_in_code_and_statement_is_masked(where: WhereFixture):
    made, names, looked_at = Pipelines(), {"wait": wait_for_file}, threading.Event()
    exec(f"def {SECRET}(args, ctx):\n    wait(args, ctx)\n", names)  # noqa: S102 - as programs do that write code

    @made.register("reveals")
    def reveal(args: dict[str, Any], ctx: Context) -> None:
        with ctx.connect("default") as connection, connection.cursor() as cursor:
            while not looked_at.is_set():
                cursor.execute(f"SELECT pg_sleep(0.2) AS {args['word']}, %s", [args["word"]])
        names[SECRET](args, ctx)

    start_pool(where, QUICK, made, secret_store=SecretStore({"DL_SECRET_WORD": SECRET}))
    job_id = where.start("reveals", word={"$secret": "word"})
    accounts = Accounts(where.pools.queue_fixture.queue.executor)
    eventually(lambda: "pg_sleep" in str(accounts.of_job(job_id)), 60, message="the statement is in the account")
    looked_at.set()
    stack = where.locate_at(job_id, "***")
    where.release()
    account = account_of(where, job_id)

    assert SECRET not in str(stack)
    entries = account.account["entries"]
    assert {"SELECT pg_sleep(…) AS ***, '…'"} == {entry["statement"] for entry in entries} - {None}
    assert SECRET not in str(where.pools.queue_fixture.sql("SELECT account FROM dl_accounts"))


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


def test_thread_waits_for_an_attempt_that_will_be_old(monkeypatch: pytest.MonkeyPatch):
    offset_sec = [0.0]
    monkeypatch.setattr(sampler_module, "clock", lambda: clock() + offset_sec[0])
    attempts, attempt = RunningAttempts(), attempt_with(None)
    attempts.add([attempt])
    attempt.started_at = clock()
    sampler = Sampler(None, attempts, SamplerOptions(after_sec=60.0))  # type: ignore[arg-type]  # it writes nothing

    running = []
    for sec in (0.0, 30.0):
        offset_sec[0] = sec
        sampler.start_if_needed()
        running.append(sampler.is_running)
    sampler.close()

    assert running == [False, True]  # at 30 s the next heartbeat is expected in 30 to 45 s, at 0 s it is not known when
    assert not sampler.is_running
