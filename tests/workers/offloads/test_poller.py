"""The thread that polls: jobs that wait without a thread, and many handles."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from dataloader.app import log
from dataloader.app.features.offload.rows import DuePoll
from dataloader.app.queue.job import Status
from dataloader.pipelines.executors import Engines
from dataloader.workers.offloads import poller
from dataloader.workers.reports.secrets import SecretStore
from tests.support.fake_engine import FakeExecutor
from tests.support.waiting import eventually
from tests.workers.offloads.offload_fixture import OffloadFixture, start_count


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


def test_poll_that_a_stop_interrupted_is_due_at_once(offloads: OffloadFixture, monkeypatch: pytest.MonkeyPatch):
    is_reading, may_end = threading.Event(), threading.Event()

    def read_slowly(executor: FakeExecutor, name: str, after: str) -> tuple[list[str], str]:
        is_reading.set()
        may_end.wait(60)
        return [], after

    monkeypatch.setattr(FakeExecutor, "logs", read_slowly)
    first = offloads.start()
    offloads.add("waiting", "gate")
    assert is_reading.wait(30)

    first.stop(grace=0)
    may_end.set()

    due = "SELECT next_poll_at <= clock_timestamp() FROM dl_offloads"
    assert offloads.pools.queue_fixture.fetch_row(due) is True


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


class CountingExecutor(FakeExecutor):
    """Work that never ends; the requests are counted."""

    def __init__(self) -> None:
        super().__init__({"address": "none"})
        self.times: list[float] = []
        self.paths: list[str] = []
        self.threads: set[str] = set()

    def _send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self.times.append(time.monotonic())
        self.paths.append(path)
        self.threads.add(threading.current_thread().name)
        return 200, {"state": "running", "lines": []}


@pytest.fixture
def counting() -> CountingExecutor:
    return CountingExecutor()


class SlowLogExecutor(CountingExecutor):
    """Work that never ends, and whose log takes until the test ends."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reading, self.may_end = threading.Event(), threading.Event()

    def logs(self, name: str, after: str) -> tuple[list[str], str]:
        self.is_reading.set()
        self.may_end.wait(60)
        return [], after


def test_slow_log_holds_no_poll(fast_polls: None):
    slow = SlowLogExecutor()
    polls = poller.OffloadPoller(Engines(executors={"fake": slow}))
    for thread in (polls.thread, polls.logs.thread):
        thread.start()
    watches = [
        poller.Watch(f"dl-{n}", "fake", slow, position="", write_lines=lambda lines, position: None) for n in range(2)
    ]

    for watch in watches:
        polls.watch(watch)

    assert slow.is_reading.wait(20)
    before = len(slow.times)
    eventually(lambda: len(slow.times) >= before + 4, message="the states are polled meanwhile")
    slow.may_end.set()
    for thread in (polls.thread, polls.logs.thread):
        thread.stop()
        thread.join(30)


def test_one_thread_polls_two_hundred_handles(counting: CountingExecutor):
    polls = poller.OffloadPoller(Engines(executors={"fake": counting}))

    polls.thread.start()
    for n in range(200):
        polls.watch(poller.Watch(f"dl-{n}", "fake", counting, position="", write_lines=lambda lines, position: None))
        eventually(lambda: len(counting.times) >= min(10, n))  # noqa: B023
    polls.thread.stop()
    polls.thread.join(30)

    assert counting.threads == {"offloads"}
    gaps = [later - earlier for earlier, later in itertools.pairwise(counting.times)]
    assert min(gaps) > 0.19, "five requests a second, also while watches are added"


def test_log_of_a_waiting_job_has_no_secrets(offloads: OffloadFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log, "register_secret", lambda forms, holder=None: None)  # by another process than ran the job
    offloads.start(secret_store=SecretStore({"DL_SECRET_WORD": "begun"}))

    job_id = offloads.add("waiting", "gate", word=[{"$secret": "word"}])

    eventually(lambda: offloads.log(job_id, "fake") == [log.MASK])
    offloads.open_gate()
    offloads.succeeded(job_id)


class ClaimedPolls:
    """Has polls that are due, and records none."""

    def __init__(self, due: list[DuePoll]) -> None:
        self._due = due

    def claim_polls(self, engines: Any, *, limit: int) -> list[DuePoll]:
        return self._due

    def record_poll(self, name: str, **_: Any) -> None: ...


def test_log_is_not_read_without_the_secrets_of_its_job(counting: CountingExecutor):
    store = SecretStore({"DL_SECRET_WORD": "a word"}, task_patterns={"word": ("t",)})
    values = dict.fromkeys(field.name for field in fields(DuePoll))
    values |= {"name": "dl-1", "engine": "fake", "task": "t", "secrets": ["word"], "log_position": "7", "waited_sec": 1}
    due = DuePoll(**values)  # type: ignore[arg-type]

    def poll(due: DuePoll) -> int:
        """Poll it once; return how often its log was read."""
        make: Any = poller.OffloadPoller
        logs = SimpleNamespace(flush=lambda: True)  # gets no line: the executor has none
        engines = Engines(executors={"fake": counting})
        polls = make(engines, offloads=ClaimedPolls([due]), logs=logs, secret_store=store)
        before = len(counting.paths)
        polls.run_once()
        polls.logs.run_once()
        return counting.paths[before:].count("dl-1/logs=7")

    assert poll(due) == 1
    assert poll(replace(due, task="other")) == 0
    assert poll(replace(due, secrets=["word", "lost"])) == 0


def test_lines_read_after_the_attempt_are_left_to_the_next(counting: CountingExecutor):
    written: list[str] = []
    polls = poller.OffloadPoller(Engines(executors={"fake": counting}))
    watch = poller.Watch(
        "dl-1", "fake", counting, position="7", write_lines=lambda lines, position: written.extend(lines)
    )
    polls.watch(watch)

    assert polls.unwatch(watch) == "7"
    watch.record_lines(["late"], "8")

    assert (written, watch.position) == ([], "7")
