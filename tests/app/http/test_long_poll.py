from __future__ import annotations

import json
import threading
import time
from uuid import UUID

import pytest

from dataloader.app.http.app import create_app
from dataloader.app.http.jobs.watcher import JobWatcher
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.job import new_run_ids
from dataloader.app.queue.jobs import JobQueue
from tests.support import eventually


@pytest.fixture
def closing():
    return threading.Event()


@pytest.fixture
def executor(pool):
    return CountingExecutor(pool)


@pytest.fixture
def service(executor, pipelines, pool, closing):
    options = WebOptions(version="1", max_waiters=1, max_streams=1)
    return create_app(JobQueue(executor), pipelines, options, pool=pool, closing=closing)


class Asked(threading.Thread):
    """A request that waits, in a thread of its own."""

    def __init__(self, service, address, **headers):
        super().__init__(daemon=True)
        self._client, self._address, self._headers = service.test_client(), address, headers
        self.response = None
        self.start()

    def run(self):
        self.response = self._client.get(self._address, headers=self._headers)

    def answer(self):
        self.join(30)
        assert self.response is not None, "it still waits"
        return self.response


class CountingExecutor:
    """Counts the statements that pass through it."""

    def __init__(self, pool):
        self._pool, self.count = pool, 0

    def __getattr__(self, name):
        return getattr(self._pool, name)

    def execute(self, *args, **kwargs):
        self.count += 1
        return self._pool.execute(*args, **kwargs)


def test_status_waits_for_the_end_and_a_second_wait_is_rejected(service, executor, trigger, queue):
    job_id = trigger()
    asked = Asked(service, f"/api/v1/jobs/{job_id}/status?wait=30")
    eventually(lambda: executor.count > 1, message="it polls")

    rejected = service.test_client().get(f"/api/v1/jobs/{job_id}/status?wait=30")
    queue.cancel(UUID(job_id))

    assert asked.answer().json["status"] == "canceled"
    assert (rejected.status_code, rejected.json["code"]) == (503, "too_many_waiting")
    assert rejected.headers["Retry-After"] == "1"
    assert service.test_client().get(f"/api/v1/jobs/{job_id}/status?wait=30").json["status"] == "canceled"


def test_status_with_etag_waits_for_any_change(service, executor, trigger, queue):
    job_id = trigger()
    client = service.test_client()
    tag = client.get(f"/api/v1/jobs/{job_id}/status").headers["ETag"]
    assert client.get(f"/api/v1/jobs/{job_id}/status?wait=0.3", headers={"If-None-Match": tag}).status_code == 304

    before = executor.count
    asked = Asked(service, f"/api/v1/jobs/{job_id}/status?wait=30", **{"If-None-Match": tag})
    eventually(lambda: executor.count > before + 1, message="it polls")
    queue.claim("etl", ["noop"], new_run_ids(1), "w")

    assert asked.answer().json["status"] == "running"


def test_shutdown_ends_all_waits(service, executor, trigger, closing):
    asked = Asked(service, f"/api/v1/jobs/{trigger()}/status?wait=30")
    eventually(lambda: executor.count > 1, message="it polls")
    started_at = time.monotonic()

    closing.set()

    assert asked.answer().json["status"] == "queued"
    assert time.monotonic() - started_at < 15


def test_error_of_a_poll_ends_the_wait_and_frees_its_slot(closing):
    watcher = JobWatcher(1, closing)
    for _ in range(2):
        values = iter([1])
        with pytest.raises(StopIteration):
            watcher.wait(lambda: next(values), lambda _: False, 30)  # noqa: B023 - called before the next round


def lines_of(response, stop):
    """The lines of a stream, until one fits."""
    lines: list[str] = []
    for chunk in response.response:
        lines += (chunk if isinstance(chunk, str) else chunk.decode()).splitlines()
        if any(stop(line) for line in lines):
            return lines
    return lines


def test_event_stream_resumes_after_the_last_event_id(service, trigger):
    client = service.test_client()
    stream = client.get("/api/v1/stream?queue=etl&kind=queued", buffered=False)
    assert service.test_client().get("/api/v1/stream").json["code"] == "too_many_waiting"
    job_id = trigger()
    trigger(queue="other")

    lines = lines_of(stream, lambda line: line.startswith("data:"))
    stream.close()

    result = json.loads(next(line for line in lines if line.startswith("data:")).removeprefix("data:"))
    assert (result["job_id"], result["kind"], result["queue"]) == (job_id, "queued", "etl")
    assert "event: queued" in lines
    place = lines[0 if lines[0].startswith("id:") else 1].removeprefix("id: ")
    resumed = client.get("/api/v1/stream?seconds=1", headers={"Last-Event-ID": place}).text
    assert job_id in resumed
    assert client.get("/api/v1/stream?after=x").status_code == 400


def test_event_stream_ends_at_shutdown_and_after_its_time(service, closing):
    client = service.test_client()
    assert client.get("/api/v1/stream?seconds=0.1").text.startswith("retry: 2000\nid: ")
    stream = client.get("/api/v1/stream", buffered=False)
    chunks = iter(stream.response)
    next(chunks)

    closing.set()

    assert list(chunks) == []
    stream.close()
