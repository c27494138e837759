from __future__ import annotations

import json
import threading
import time
from uuid import UUID

import pytest

from app.queue.lists import Lists
from app.web import WebOptions, create_app
from app.web.problems import TooManyWaiting
from app.web.waiting import Waiting
from tests.support import eventually


@pytest.fixture
def closing():
    return threading.Event()


@pytest.fixture
def service(queue, pipelines, pool, closing):
    options = WebOptions(version="1", most_waiting=1, most_streams=1)
    return create_app(queue, pipelines, options, pool=pool, closing=closing)


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


def waits(service):
    return any(thread.name == "web-waiting" for thread in threading.enumerate())


def test_a_status_waits_for_the_end_of_its_job_and_a_second_one_finds_no_room(service, trigger, queue):
    job_id = trigger()
    asked = Asked(service, f"/api/v1/jobs/{job_id}/status?wait=30")
    eventually(lambda: waits(service), message="it waits")

    refused = service.test_client().get(f"/api/v1/jobs/{job_id}/status?wait=30")
    queue.cancel(UUID(job_id))

    assert asked.answer().json["status"] == "canceled"
    assert (refused.status_code, refused.json["code"]) == (503, "too_many_waiting")
    assert refused.headers["Retry-After"] == "1"
    assert service.test_client().get(f"/api/v1/jobs/{job_id}/status?wait=30").json["status"] == "canceled"


def test_with_the_tag_of_the_answer_before_it_waits_for_any_other(service, trigger, queue):
    job_id = trigger()
    client = service.test_client()
    tag = client.get(f"/api/v1/jobs/{job_id}/status").headers["ETag"]
    assert client.get(f"/api/v1/jobs/{job_id}/status?wait=0.3", headers={"If-None-Match": tag}).status_code == 304

    asked = Asked(service, f"/api/v1/jobs/{job_id}/status?wait=30", **{"If-None-Match": tag})
    eventually(lambda: waits(service), message="it waits")
    from app.queue.ids import draw_runs

    queue.claim("etl", ["noop"], draw_runs(1), "w")

    assert asked.answer().json["status"] == "running"


def test_the_end_of_the_service_ends_all_waiting(service, trigger, closing):
    asked = Asked(service, f"/api/v1/jobs/{trigger()}/status?wait=30")
    eventually(lambda: waits(service), message="it waits")
    began = time.monotonic()

    closing.set()

    assert asked.answer().json["status"] == "queued"
    assert time.monotonic() - began < 15


def test_whoever_waits_is_rung_when_the_database_goes_away(broken, closing):
    waiting = Waiting(Lists(broken(OSError("gone"))), 1, closing)
    threading.excepthook, before = lambda _: None, threading.excepthook
    try:
        assert waiting.change(UUID(int=1), "1", time.monotonic() + 30)
    finally:
        threading.excepthook = before
    with waiting.place(), pytest.raises(TooManyWaiting), waiting.place():
        pass


def lines_of(response, stop):
    """The lines of a stream, until one fits."""
    lines: list[str] = []
    for chunk in response.response:
        lines += (chunk if isinstance(chunk, str) else chunk.decode()).splitlines()
        if any(stop(line) for line in lines):
            return lines
    return lines


def test_a_stream_tells_what_happens_and_goes_on_where_another_one_ended(service, trigger):
    client = service.test_client()
    stream = client.get("/api/v1/stream?queue=etl&kind=queued", buffered=False)
    assert service.test_client().get("/api/v1/stream").json["code"] == "too_many_waiting"
    job_id = trigger()
    trigger(queue="other")

    lines = lines_of(stream, lambda line: line.startswith("data:"))
    stream.close()

    told = json.loads(next(line for line in lines if line.startswith("data:")).removeprefix("data:"))
    assert (told["job_id"], told["kind"], told["queue"]) == (job_id, "queued", "etl")
    assert "event: queued" in lines
    place = lines[0 if lines[0].startswith("id:") else 1].removeprefix("id: ")
    resumed = client.get("/api/v1/stream?seconds=1", headers={"Last-Event-ID": place}).text
    assert job_id in resumed
    assert client.get("/api/v1/stream?after=x").status_code == 400


def test_a_stream_ends_with_the_service_and_at_its_time(service, closing):
    client = service.test_client()
    assert client.get("/api/v1/stream?seconds=0.1").text.startswith("retry: 2000\nid: ")
    stream = client.get("/api/v1/stream", buffered=False)
    chunks = iter(stream.response)
    next(chunks)

    closing.set()

    assert list(chunks) == []
    stream.close()
