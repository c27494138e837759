"""Jobs that give work to a fake engine with faults: one execution, whatever happens to worker, engine and network."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.queue.job import Job, Status
from pipelines.contract import Pipelines
from pipelines.executors import Engines
from tests.support import offload_tasks
from tests.support.fake_engine import FakeEngine, FakeExecutor
from tests.support.processes import Process
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture
from tests.workers.offloads.conftest import program, start_count
from workers.offloads import engine_calls, poller
from workers.pool import WorkerPool

REPOSITORY = Path(__file__).parents[3]


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


@pytest.fixture(autouse=True)
def fast_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (poller, engine_calls):
        monkeypatch.setattr(module, "MIN_POLL_SEC", 0.05)
        monkeypatch.setattr(module, "MAX_POLL_SEC", 0.3)
    monkeypatch.setattr(poller, "_REQUEST_INTERVAL_SEC", 0.01)
    monkeypatch.setattr(poller, "_CLAIM_INTERVAL_SEC", 0.1)


@pytest.fixture
def offloads(worker_pools: WorkerPoolFixture, engine: FakeEngine, tmp_path: Path) -> OffloadFixture:
    return OffloadFixture(worker_pools, engine, tmp_path)


# ── the usual course ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_job_takes_the_result_of_its_program(offloads: OffloadFixture, isolation: str, tmp_path: Path, monkeypatch):
    install_fake(tmp_path, monkeypatch)
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


# ── worker deaths ───────────────────────────────────────────────────────────────────────────────────────────────────


def install_fake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the fake an executor of another package, by its entry point."""
    package = folder / "site" / "fake_engine-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-engine\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[dataloader.executors]\nfake = tests.support.fake_engine:FakeExecutor\n")
    monkeypatch.syspath_prepend(str(package.parent))
    return package.parent


def worker_process(offloads: OffloadFixture, site: Path) -> Process:
    env = {
        "DL_DB_DSN": offloads.pools.dsn, "DL_PIPELINES": "tests.support.offload_tasks", "DL_MEMORY_HIGH": "0",
        "DL_HEARTBEAT_SEC": "0.5", "DL_REAPER_PERIOD_SEC": "0.5", "WORKERS_JSON": '[{"queue":"q","concurrency":2}]',
        "DL_EXECUTORS": json.dumps({"fake": {"address": offloads.engine.address}}),
        "PYTHONPATH": f"{site}:{REPOSITORY}",
    }  # fmt: skip
    return Process.dataloader("worker", env=env, output=offloads.folder / "worker")


def at_intent(offloads: OffloadFixture, job_id: UUID) -> None:
    eventually(lambda: offloads.engine.count_requests("POST") == 1)


def at_unread_end(offloads: OffloadFixture, job_id: UUID) -> None:
    """It has ended, and no answer shows it: each takes longer than the client waits."""
    offloads.wait_until_running(offloads.name(job_id))
    offloads.engine.faults["GET"].extend(["500"] * 100)
    time.sleep(0.1)
    offloads.open_gate()
    eventually(lambda: not offloads.is_alive(offloads.name(job_id)))


DEATHS: dict[str, tuple[str, Callable[[OffloadFixture, UUID], None]]] = {
    "after the intent": ("hang", at_intent),
    "after the submission": ("slow", at_intent),
    "while it runs": ("", lambda offloads, job_id: offloads.wait_until_running(offloads.name(job_id))),
    "after its end": ("", at_unread_end),
}


@pytest.mark.parametrize("moment", DEATHS)
def test_next_worker_takes_what_a_killed_one_began(offloads: OffloadFixture, moment: str, tmp_path: Path, monkeypatch):
    fault, wait_for_moment = DEATHS[moment]
    offloads.engine.faults["POST"].extend([fault] if fault else [])
    job_id = offloads.add("blocking", "gate")
    with worker_process(offloads, install_fake(tmp_path, monkeypatch)) as worker:
        wait_for_moment(offloads, job_id)
        worker.kill()
    offloads.engine.faults["GET"].clear()

    offloads.start()
    offloads.open_gate()

    job = offloads.succeeded(job_id)
    assert (job.result, job.attempt) == ({"rows": 3}, 2)
    assert start_count(offloads.folder) == 1, "one execution"
    assert offloads.rows(job_id) == [(offloads.name(job_id), "succeeded")]


def test_worker_that_is_killed_before_the_intent(offloads: OffloadFixture, tmp_path: Path, monkeypatch):
    queue_db = offloads.pools.queue_fixture
    job_id = offloads.add("blocking", "quick")
    site = install_fake(tmp_path, monkeypatch)
    with queue_db.open_transaction() as step, worker_process(offloads, site) as worker:
        step("LOCK TABLE dl_offloads IN EXCLUSIVE MODE")
        queue_db.wait_for_lock_waiters()
        worker.kill()
        queue_db.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    assert offloads.rows(job_id) == []
    assert offloads.engine.count_requests("POST") == 0, "nothing is submitted before the intent is durable"

    offloads.start()

    offloads.succeeded(job_id)
    assert start_count(offloads.folder) == 1


def test_lost_lease_stops_nothing(offloads: OffloadFixture, logged):
    offloads.start(heartbeat_sec=2)
    job_id = offloads.add("blocking", "gate")
    name = offloads.name(job_id)
    offloads.wait_until_running(name)
    queue_db = offloads.pools.queue_fixture

    queue_db.expire_lease(job_id)
    queue_db.reap(job_id)

    eventually(lambda: [fields["job"] for fields in logged("attempt.abandoned")] == [str(job_id)])
    assert offloads.is_alive(name)
    offloads.open_gate()
    assert offloads.succeeded(job_id).attempt == 2
    assert offloads.engine.count_requests("DELETE") == 0
    assert start_count(offloads.folder) == 1


def test_shutdown_detaches(offloads: OffloadFixture):
    pool = offloads.start()
    job_id = offloads.add("blocking", "gate")
    offloads.wait_until_running(offloads.name(job_id))

    pool.stop(grace=0)

    assert offloads.pools.queue_fixture.status(job_id) is Status.QUEUED
    assert offloads.is_alive(offloads.name(job_id))
    offloads.start()
    offloads.open_gate()
    assert offloads.succeeded(job_id).attempt == 1
    assert start_count(offloads.folder) == 1


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


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_cancel_stops_running_work(offloads: OffloadFixture, isolation: str, tmp_path: Path, monkeypatch):
    install_fake(tmp_path, monkeypatch)
    offloads.start(isolation=isolation, engines=Engines({"fake": {"address": offloads.engine.address}}))
    job_id = offloads.add("blocking", "gate")
    name = offloads.name(job_id)
    offloads.wait_until_running(name)

    offloads.pools.queue_fixture.queue.cancel(job_id)

    offloads.pools.wait_for_status(job_id, Status.CANCELED)
    assert not offloads.is_alive(name)
    assert offloads.rows(job_id) == [(name, "stopped")]


def test_cancel_of_a_waiting_job_stops_its_work(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("waiting", "gate")
    name = offloads.name(job_id)
    offloads.wait_until_running(name)
    eventually(lambda: offloads.pools.queue_fixture.wait_state(job_id) == "waiting")

    offloads.pools.queue_fixture.queue.cancel(job_id)

    assert offloads.pools.queue_fixture.status(job_id) is Status.CANCELED
    eventually(lambda: not offloads.is_alive(name), message="the poller stops it")
    eventually(lambda: offloads.rows(job_id) == [(name, "stopped")])


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


def test_too_large_result_fails_the_job(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "big")

    job = offloads.failed(job_id)

    assert (job.attempt, "write it to storage" in (job.error or "")) == (1, True)


def test_changed_arguments_replace_the_work(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("changed", "gate", then=program("quick", offloads.folder))
    name = offloads.name(job_id)

    assert offloads.succeeded(job_id).result == {"rows": 3}

    assert offloads.rows(job_id) == [(name, "stopped"), (f"{name}.2", "succeeded")]
    assert not offloads.is_alive(name)


def test_fresh_work_is_of_one_attempt(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("changed", "quick", then=program("quick", offloads.folder), options={"fresh": True})
    name = offloads.name(job_id)

    offloads.succeeded(job_id)

    assert [row[0] for row in offloads.rows(job_id)] == [name, f"{name}.2"]


# ── outages of the engine ───────────────────────────────────────────────────────────────────────────────────────────


def test_engine_that_comes_back_is_waited_for(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "gate")
    offloads.wait_until_running(offloads.name(job_id))

    offloads.engine.down()

    def shows_outage() -> bool:
        return "unavailable since" in str(offloads.pools.queue_fixture.job(job_id).progress.get("engine"))

    eventually(shows_outage)
    offloads.open_gate()
    offloads.engine.up()
    job = offloads.succeeded(job_id)
    assert (job.result, job.attempt, job.progress["engine"]) == ({"rows": 3}, 1, "available")
    assert start_count(offloads.folder) == 1


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


def test_waiting_job_learns_of_a_failure(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("waiting", "fails", job={"max_attempts": 1})

    assert "exit 1" in (offloads.failed(job_id).error or "")


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
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingExecutor:
    monkeypatch.undo()  # polls at their real pace
    return CountingExecutor()


def test_one_thread_polls_two_hundred_handles(counting: CountingExecutor):
    polls = poller.OffloadPoller(Engines(executors={"fake": counting}))
    watches = [
        poller.Watch(f"dl-{n}", "fake", counting, position="", write_lines=lambda lines: None) for n in range(200)
    ]
    for watch in watches:
        polls.watch(watch)

    polls.thread.start()
    time.sleep(4)
    polls.thread.stop()
    polls.thread.join(5)

    assert counting.threads == {"offloads"}
    assert 16 <= len(counting.times) <= 24, "five requests a second"


def test_log_of_the_work_has_the_job_logs_cap(offloads: OffloadFixture):
    from workers.logs.writer import JobLogLimits

    offloads.start(log_limits=JobLogLimits(max_bytes=2_000))

    job_id = offloads.add("blocking", "lines")

    offloads.succeeded(job_id)
    eventually(lambda: any("reached 2,000" in line for line in log_of(offloads, job_id)))
    assert sum(map(len, log_of(offloads, job_id))) < 20_000


def log_of(offloads: OffloadFixture, job_id: UUID) -> list[str]:
    rows = offloads.pools.queue_fixture.sql("SELECT line FROM dl_job_logs WHERE job_id = %s", str(job_id))
    return [line for (line,) in rows]
