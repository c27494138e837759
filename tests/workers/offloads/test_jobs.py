"""Jobs that give work to a fake engine with faults. What holds on every engine is in test_job_scenarios.py."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.queue.job import Job, Status
from pipelines.contract import Pipelines
from pipelines.executors import Engines
from tests.support import offload_tasks
from tests.support.fake_engine import FakeEngine, FakeExecutor, install_entry_points
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture
from tests.workers.offloads.conftest import program, start_count
from workers.offloads import poller
from workers.pool import WorkerPool


@dataclass
class OffloadFixture:
    """Pools whose jobs use a fake engine."""

    pools: WorkerPoolFixture
    engine: FakeEngine
    folder: Path

    def start(self, *, isolation: Any = "thread", **options: Any) -> WorkerPool:
        options.setdefault("engines", Engines(executors={"fake": FakeExecutor({"address": self.engine.address})}))
        tasks = offload_tasks.register_all(Pipelines(), isolation=isolation)
        packages = ("tests.support.offload_tasks",)
        return self.pools.pool(pipelines=tasks, stop_step_sec=0.2, packages=packages, **options)

    def add(self, task: str, mode: str = "gate", *, options: Any = None, job: Any = None, **more: Any) -> UUID:
        args = {"entrypoint": program(mode, self.folder), "options": options or {}, **more}
        return self.pools.add_job(f"offload.{task}", args=args, **(job or {}))

    def name(self, job_id: UUID, call: str = "1") -> str:
        return f"dl-{job_id}-{call}"

    def wait_until_running(self, name: str) -> None:
        eventually(lambda: name in self.engine.programs and start_count(self.folder) > 0, message="it runs")

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def succeeded(self, job_id: UUID) -> Job:
        return self.pools.wait_for_status(job_id, Status.SUCCEEDED)

    def failed(self, job_id: UUID) -> Job:
        return self.pools.wait_for_status(job_id, Status.FAILED)

    def rows(self, job_id: UUID) -> list[tuple[Any, ...]]:
        """Names and outcomes."""
        text = "SELECT name, outcome FROM dl_offloads WHERE job_id = %s ORDER BY created_at"
        return self.pools.queue_fixture.sql(text, str(job_id))

    def log(self, job_id: UUID, stream: str) -> list[str]:
        text = "SELECT line FROM dl_job_logs WHERE job_id = %s AND stream = %s ORDER BY log_id"
        return [line for (line,) in self.pools.queue_fixture.sql(text, str(job_id), stream)]

    def is_alive(self, name: str) -> bool:
        return self.engine.programs[name].process.poll() is None


@pytest.fixture
def offloads(fast_polls: None, worker_pools: WorkerPoolFixture, engine: FakeEngine, tmp_path: Path) -> OffloadFixture:
    return OffloadFixture(worker_pools, engine, tmp_path)


# ── the usual course ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_job_takes_the_result_of_its_program(offloads: OffloadFixture, isolation: str, tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(install_entry_points(tmp_path)))
    engines = Engines({"fake": {"address": offloads.engine.address}})
    offloads.start(isolation=isolation, engines=engines)

    job_id = offloads.add("blocking", "quick")

    job = offloads.succeeded(job_id)
    assert job.result == {"rows": 3}
    assert job.progress["processed"] == 3
    assert job.progress["total"] == 4
    eventually(lambda: offloads.log(job_id, "fake")[:1] == ["begun"])
    assert offloads.rows(job_id) == [(offloads.name(job_id), "succeeded")]


def test_program_learns_its_job_and_its_token(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("blocking", "variables")

    answer = offloads.succeeded(job_id).result
    token = offloads.pools.queue_fixture.fetch_row("SELECT fence_token FROM dl_offloads")
    assert (answer["DL_JOB_ID"], answer["DL_OFFLOAD"]) == (str(job_id), offloads.name(job_id))
    assert answer["DL_FENCE_TOKEN"] == token
    assert answer["DL_RUN_ID"] == offloads.pools.queue_fixture.fetch_row("SELECT run_id::text FROM dl_offloads")


def test_key_names_the_work(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("blocking", "quick", options={"key": "train"})

    offloads.succeeded(job_id)
    assert offloads.rows(job_id) == [(offloads.name(job_id, "train"), "succeeded")]


def test_two_submissions_at_once_are_one_execution(offloads: OffloadFixture):
    offloads.engine.faults["POST"].append("twice")
    offloads.start()

    job_id = offloads.add("blocking", "quick")

    offloads.succeeded(job_id)
    assert start_count(offloads.folder) == 1


# ── shutdowns ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_shutdown_stops_what_asks_for_it(offloads: OffloadFixture):
    pool = offloads.start()
    job_id = offloads.add("blocking", "gate", options={"on_shutdown": "stop"})
    name = offloads.name(job_id)
    offloads.wait_until_running(name)

    pool.stop(grace=0)

    assert not offloads.is_alive(name)
    offloads.open_gate()
    offloads.start()
    offloads.succeeded(job_id)
    assert offloads.rows(job_id) == [(name, "stopped"), (f"{name}.2", "succeeded")]


# ── cancel and time limits ──────────────────────────────────────────────────────────────────────────────────────────


def test_cancel_stops_work_of_an_isolated_job(offloads: OffloadFixture, tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(install_entry_points(tmp_path)))
    offloads.start(isolation="process", engines=Engines({"fake": {"address": offloads.engine.address}}))
    job_id = offloads.add("blocking", "gate")
    name = offloads.name(job_id)
    offloads.wait_until_running(name)
    position = "SELECT log_position FROM dl_offloads"
    eventually(lambda: offloads.pools.queue_fixture.fetch_row(position) == "1", message="one line of its log is kept")

    offloads.pools.queue_fixture.queue.cancel(job_id)

    offloads.pools.wait_for_status(job_id, Status.CANCELED)
    assert not offloads.is_alive(name)
    assert offloads.rows(job_id) == [(name, "stopped")]


@pytest.mark.parametrize("stopper", ["attempt", "poller"])
def test_cancel_stops_work_that_begins_late(offloads: OffloadFixture, stopper: str):
    offloads.engine.faults["POST"].extend(["late", *["500"] * 100])
    pool = offloads.start()
    job_id = offloads.add("blocking", "gate")
    name = offloads.name(job_id)
    eventually(lambda: offloads.engine.count_requests("POST") > 0)

    if stopper == "poller":
        pool.stop(grace=0)
        offloads.pools.queue_fixture.queue.cancel(job_id)
        offloads.start()
    else:
        offloads.pools.queue_fixture.queue.cancel(job_id)

    offloads.pools.wait_for_status(job_id, Status.CANCELED)
    eventually(lambda: offloads.rows(job_id) == [(name, "stopped")])
    assert offloads.engine.starts[name] == 1
    assert not offloads.is_alive(name)


@pytest.mark.parametrize("stopper", ["attempt", "poller"])
def test_abandoned_work_that_begins_late_is_stopped(offloads: OffloadFixture, stopper: str):
    offloads.engine.faults["POST"].extend(["late", *["500"] * 100])
    pool = offloads.start()
    job_id = offloads.add("blocking", "gate", options={"grace": 0.1, "abandon": True})
    name = offloads.name(job_id)
    eventually(lambda: offloads.engine.count_requests("POST") > 0)

    if stopper == "poller":
        pool.stop(grace=0)
    offloads.pools.queue_fixture.queue.cancel(job_id)
    if stopper == "poller":
        offloads.start()

    eventually(lambda: offloads.engine.starts[name] == 1)
    eventually(lambda: not offloads.is_alive(name))
    eventually(lambda: offloads.rows(job_id)[0][1] is not None)


def test_stop_that_does_not_come_is_shown(offloads: OffloadFixture):
    offloads.engine.ignores_stop = True
    offloads.start(queues={"q": 2})
    job_id = offloads.add("blocking", "gate", options={"grace": 0.3}, job={"key": "shared"})
    other = offloads.add("unread", "quick", job={"key": "shared"})
    name = offloads.name(job_id)
    offloads.wait_until_running(name)

    offloads.pools.queue_fixture.queue.cancel(job_id)

    eventually(lambda: "stop_pending" in offloads.pools.queue_fixture.event_kinds(job_id))
    job = offloads.pools.queue_fixture.job(job_id)
    assert f"stop pending (cancel): fake {name} runs on" in (job.error or "")
    assert job.status is Status.RUNNING
    assert offloads.pools.queue_fixture.status(other) is Status.QUEUED, "the key is kept"
    offloads.engine.ignores_stop = False
    offloads.open_gate()
    offloads.pools.wait_for_status(job_id, Status.CANCELED)
    offloads.succeeded(other)


def test_abandoned_stop_is_not_waited_for(offloads: OffloadFixture):
    offloads.engine.ignores_stop = True
    offloads.start()
    job_id = offloads.add("blocking", "gate", options={"grace": 0.1, "abandon": True})
    offloads.wait_until_running(offloads.name(job_id))

    offloads.pools.queue_fixture.queue.cancel(job_id)

    offloads.pools.wait_for_status(job_id, Status.CANCELED)
    assert offloads.rows(job_id) == [(offloads.name(job_id), "abandoned")]
    assert offloads.is_alive(offloads.name(job_id))


def test_time_limit_stops_the_work(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "gate", job={"time_limit_sec": 1, "max_attempts": 1})

    job = offloads.failed(job_id)

    assert "time limit of 1 s" in (job.error or "")
    assert not offloads.is_alive(offloads.name(job_id))


def test_timeout_of_the_work_stops_it(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "gate", options={"timeout": 0.5}, job={"max_attempts": 1})

    job = offloads.failed(job_id)

    assert "has not ended within 0.5 s" in (job.error or "")
    assert not offloads.is_alive(offloads.name(job_id))


def test_job_that_ends_without_it_stops_its_work(offloads: OffloadFixture):
    offloads.start()
    ended, failed = offloads.add("unread", "gate"), offloads.add("fails_here", "gate")

    offloads.succeeded(ended)
    offloads.failed(failed)

    for job_id in (ended, failed):
        assert not offloads.is_alive(offloads.name(job_id))
        assert offloads.rows(job_id) == [(offloads.name(job_id), "stopped")]


# ── failures of the work ────────────────────────────────────────────────────────────────────────────────────────────


def test_each_attempt_submits_failed_work_under_a_new_name(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "fails", job={"max_attempts": 2})
    name = offloads.name(job_id)

    job = offloads.failed(job_id)

    assert "exit 1" in (job.error or "")
    assert "it broke" in (job.error or ""), "the end of its log"
    assert offloads.rows(job_id) == [(name, "failed"), (f"{name}.2", "failed")]
    offloads.pools.queue_fixture.queue.retry(job_id)
    eventually(lambda: len(offloads.rows(job_id)) == 4)
    assert offloads.rows(job_id)[2] == (f"{name}.3", "failed"), "a person's retry counts on"
    offloads.failed(job_id)


def test_lost_engine_worker_counts_as_a_crash(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("blocking", "fails", resources={"fails_as": "worker_lost"})

    job = offloads.failed(job_id)
    assert job.crashes == 2
    assert "poison" in (job.error or "")


def test_work_out_of_memory_is_a_memory_error(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("blocking", "fails", resources={"fails_as": "oom"}, job={"max_attempts": 1})

    assert (offloads.failed(job_id).error or "").startswith("RemoteOutOfMemory")


def test_refused_work_fails_the_job_at_once(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.pools.add_job("offload.blocking", args={"entrypoint": "refused"})
    unknown = offloads.add("blocking", "quick", engine="none")
    inside = offloads.add("in_transaction", "quick", job={"max_attempts": 1})

    assert offloads.failed(job_id).attempt == 1
    assert "no engine 'none' is known among fake, process" in (offloads.failed(unknown).error or "")
    assert "call them before" in (offloads.failed(inside).error or "")


def test_fresh_work_is_of_one_attempt(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add(
        "changed", "quick", then={"entrypoint": program("quick", offloads.folder)}, options={"fresh": True}
    )
    name = offloads.name(job_id)

    offloads.succeeded(job_id)

    assert [row[0] for row in offloads.rows(job_id)] == [name, f"{name}.2"]


# ── outages of the engine ───────────────────────────────────────────────────────────────────────────────────────────


def test_engine_that_stays_away_fails_the_attempt(offloads: OffloadFixture):
    offloads.engine.down()
    offloads.start()

    job_id = offloads.add("blocking", "quick", options={"engine_timeout": 0.3}, job={"max_attempts": 3})

    def is_retried() -> bool:
        return bool(offloads.pools.event_payloads(job_id, "requeue"))

    eventually(is_retried)
    assert "EngineUnavailable" in offloads.pools.event_payloads(job_id, "requeue")[0]["error"]
    offloads.engine.up()
    offloads.succeeded(job_id)
    assert offloads.rows(job_id) == [(offloads.name(job_id), "succeeded")], "the name stayed"


def test_engine_that_goes_away_fails_the_attempt(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "gate", options={"engine_timeout": 0.3}, job={"max_attempts": 3})
    offloads.wait_until_running(offloads.name(job_id))

    offloads.engine.down()

    eventually(lambda: bool(offloads.pools.event_payloads(job_id, "requeue")))
    assert "EngineUnavailable" in offloads.pools.event_payloads(job_id, "requeue")[0]["error"]
    offloads.engine.up()
    offloads.open_gate()
    offloads.succeeded(job_id)
    assert start_count(offloads.folder) == 1


def test_engine_that_forgets_each_time_is_given_up(offloads: OffloadFixture):
    offloads.engine.faults["GET"].extend(["unknown"] * 1_000)
    offloads.start()

    job_id = offloads.add("blocking", "quick", job={"max_attempts": 1})

    assert f"has forgotten {offloads.name(job_id)} 4 times" in (offloads.failed(job_id).error or "")
    assert offloads.engine.count_requests("POST") == 4


def test_lost_and_slow_answers_cost_no_execution(offloads: OffloadFixture):
    offloads.engine.faults["POST"].extend(["lost", "500"])
    offloads.engine.faults["GET"].extend(["500", "slow"])
    offloads.start()

    job_id = offloads.add("blocking", "quick")

    offloads.succeeded(job_id)
    assert start_count(offloads.folder) == 1


def test_forgotten_work_is_submitted_again(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "gate")
    name = offloads.name(job_id)
    offloads.wait_until_running(name)

    program_before = offloads.engine.programs.pop(name)
    eventually(lambda: start_count(offloads.folder) == 2)
    program_before.process.kill()
    program_before.process.wait()
    offloads.open_gate()

    assert offloads.succeeded(job_id).attempt == 1
    assert offloads.rows(job_id) == [(name, "succeeded")]


def test_refused_token_is_named_in_the_log_and_the_error(offloads: OffloadFixture):
    offloads.engine.token = "right"
    settings = {"ray": {"address": offloads.engine.address, "token": {"$secret": "of-ray"}}}
    offloads.start(engines=Engines(settings, read_secret=lambda name: "wrong"))

    limits = {"engine_timeout": 0.3, "grace": 0.1}
    job_id = offloads.add("blocking", "quick", engine="ray", options=limits, job={"max_attempts": 1})

    expected = 'does not accept the setting "token" of this engine in DL_EXECUTORS'
    assert expected in (offloads.failed(job_id).error or "")
    eventually(lambda: any(expected in line for line in offloads.log(job_id, "note")))


# ── a wait without a thread ─────────────────────────────────────────────────────────────────────────────────────────


def test_waiting_job_holds_no_thread(offloads: OffloadFixture):
    offloads.start(queues={"q": 1})
    job_id = offloads.add("waiting", "gate")
    eventually(lambda: offloads.pools.queue_fixture.wait_state(job_id) == "waiting")

    offloads.succeeded(offloads.add("blocking", "quick"))

    assert offloads.pools.queue_fixture.status(job_id) is Status.QUEUED
    offloads.open_gate()
    job = offloads.succeeded(job_id)
    assert job.result == {"attempt": 1, "result": {"rows": 3}}
    assert "released" in offloads.pools.queue_fixture.event_kinds(job_id)
    eventually(lambda: offloads.log(job_id, "fake").count("begun") == 1)


def test_waiting_job_is_polled_by_any_process(offloads: OffloadFixture):
    first = offloads.start()
    job_id = offloads.add("waiting", "gate")
    eventually(lambda: offloads.pools.queue_fixture.wait_state(job_id) == "waiting")
    first.stop(grace=1)
    offloads.open_gate()

    offloads.start()

    offloads.succeeded(job_id)
    assert start_count(offloads.folder) == 1


def test_log_of_a_waiting_job_commits_with_its_position(offloads: OffloadFixture):
    queue_db = offloads.pools.queue_fixture
    position = "SELECT log_position FROM dl_offloads"
    is_writing = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%dl_job_logs%%'"
    offloads.start()
    with queue_db.open_transaction() as step:
        step("LOCK TABLE dl_job_logs IN EXCLUSIVE MODE")
        job_id = offloads.add("waiting", "gate")
        for _ in range(2):  # also when they are written again
            eventually(lambda: queue_db.fetch_row(is_writing) == 1, message="its lines wait")
            assert queue_db.fetch_row(position) == ""
            eventually(lambda: queue_db.fetch_row(is_writing) == 0, message="the lock's time limit")

    eventually(lambda: queue_db.fetch_row(position) == "1")
    assert offloads.log(job_id, "fake") == ["begun"]
    offloads.open_gate()
    offloads.succeeded(job_id)
    eventually(lambda: '::result {"rows": 3}' in offloads.log(job_id, "fake"))
    assert offloads.log(job_id, "fake").count("begun") == 1


def test_waiting_job_learns_of_a_failure(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("waiting", "fails", job={"max_attempts": 1})

    assert "exit 1" in (offloads.failed(job_id).error or "")


def test_deadline_of_a_waiting_job_is_that_of_its_submission(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("waiting", "gate", options={"timeout": 60}, job={"max_attempts": 1})
    eventually(lambda: offloads.pools.queue_fixture.wait_state(job_id) == "waiting")

    offloads.pools.queue_fixture.sql("UPDATE dl_offloads SET deadline_at = now()")

    assert "has not ended within 60 s" in (offloads.failed(job_id).error or "")
    assert not offloads.is_alive(offloads.name(job_id))


def test_waiting_job_learns_that_the_engine_is_away(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("waiting", "gate", options={"engine_timeout": 0.3, "grace": 0.1}, job={"max_attempts": 1})
    eventually(lambda: offloads.pools.queue_fixture.wait_state(job_id) == "waiting")

    offloads.engine.down()

    assert "EngineUnavailable" in (offloads.failed(job_id).error or "")
    assert offloads.is_alive(offloads.name(job_id))
    offloads.engine.up()
    eventually(lambda: not offloads.is_alive(offloads.name(job_id)), message="the poller stops what the job has left")


# ── load ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class CountingExecutor(FakeExecutor):
    """Work that never ends; the requests are counted."""

    def __init__(self) -> None:
        super().__init__({"address": "none"})
        self.times: list[float] = []
        self.threads: set[str] = set()

    def _send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self.times.append(time.monotonic())
        self.threads.add(threading.current_thread().name)
        return 200, {"state": "running", "lines": []}


@pytest.fixture
def counting() -> CountingExecutor:
    return CountingExecutor()


def test_one_thread_polls_two_hundred_handles(counting: CountingExecutor):
    polls = poller.OffloadPoller(Engines(executors={"fake": counting}))

    polls.thread.start()
    for n in range(200):
        polls.watch(poller.Watch(f"dl-{n}", "fake", counting, position="", write_lines=lambda lines, position: None))
        eventually(lambda: len(counting.times) >= min(10, len(polls._watches) - 1))
    polls.thread.stop()
    polls.thread.join(30)

    assert counting.threads == {"offloads"}
    starts, ends = counting.times[2::2], counting.times[1::2]  # a poll sends two requests
    gaps = [start - end for start, end in zip(starts, ends, strict=False)]
    assert min(gaps) > 0.39, "five requests a second, also while watches are added"
