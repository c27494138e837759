"""Reading job logs, a page at a time or as it comes."""

from __future__ import annotations

import re
import threading
from uuid import UUID, uuid4

import pytest

from dataloader.app.features.jobs import log_routes as job_logs
from dataloader.app.queue.job_records import LogEntry
from tests.support import eventually


@pytest.fixture
def job_id(trigger):
    return trigger()


def say(queue, job_id, *lines, level="INFO", stream="log", attempt=1):
    queue.write_logs([LogEntry(UUID(job_id), attempt, 0.0, level, stream, line) for line in lines])


def ask(client, job_id, query=""):
    response = client.get(f"/api/v1/jobs/{job_id}/logs?{query}")
    assert response.status_code == 200, response.text
    return response.json


def lines(answer):
    return [line["line"] for line in answer["lines"]]


def test_a_log_is_read_page_by_page(client, queue, job_id):
    say(queue, job_id, "one", "two", "three")

    first = ask(client, job_id, "limit=2")
    second = ask(client, job_id, f"after={first['next']}")

    assert lines(first) == ["one", "two"]
    assert lines(second) == ["three"]
    assert first["lines"][0].keys() == {"log_id", "ts", "attempt", "run", "level", "stream", "line"}
    assert ask(client, job_id, f"after={second['next']}")["next"] == second["next"]


def test_its_end_and_its_graver_lines_can_be_asked_for(client, queue, job_id):
    say(queue, job_id, "one", "two")
    say(queue, job_id, "bad", level="ERROR", stream="stderr", attempt=2)

    assert lines(ask(client, job_id, "tail=2")) == ["two", "bad"]
    assert lines(ask(client, job_id, "level=WARNING")) == ["bad"]
    assert lines(ask(client, job_id, "attempt=1&stream=log")) == ["one", "two"]


@pytest.mark.parametrize("path", ["00000000-0000-4000-8000-000000000000", "yesterday", "x" * 36])
def test_an_unknown_job_has_no_log(client, path):
    response = client.get(f"/api/v1/jobs/{path}/logs")

    assert response.status_code == 404
    assert response.json["code"] == "job_not_found"


@pytest.mark.parametrize("query", ["tail=0", "after=-1", "wait=11", "level=LOUD", "stream=x", "attempt=x", "wait=nan"])
def test_a_query_that_makes_no_sense_is_a_400(lasting_client, query):
    response = lasting_client.get(f"/api/v1/jobs/{uuid4()}/logs?{query}")

    assert response.status_code == 400
    assert response.json["errors"][0]["field"] == query.partition("=")[0]


def test_who_waits_gets_the_next_line_when_it_comes(client, queue, job_id):
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(client, job_id, "wait=10")))

    asking.start()
    say(queue, job_id, "at last")
    asking.join(20)

    assert lines(answers[0]) == ["at last"]


def test_no_thread_waits_for_ended_job(client, queue, job_id):
    queue.cancel(UUID(job_id))
    assert not ask(client, job_id)["complete"]

    eventually(lambda: ask(client, job_id, "wait=0.5")["complete"], message="the log is complete")


def test_a_wait_has_an_end(client, job_id):
    answer = ask(client, job_id, "wait=0.1")

    assert answer == {"job_id": job_id, "lines": [], "next": 0, "complete": False}


class Quiet:
    """A database whose jobs say nothing until they have ended."""

    schema = "public"

    def __init__(self) -> None:
        self.looks = 0
        self.ended = False

    def execute(self, name, parameters=None):
        self.looks += 1
        return [(self.ended, *[None] * 6)]


def test_a_request_too_many_is_a_503_that_says_when_to_come_back(app_without_database):
    quiet = Quiet()
    client = app_without_database(quiet, max_waiters=1)
    path = f"/api/v1/jobs/{uuid4()}/logs"
    waiting = threading.Thread(target=lambda: client.get(f"{path}?wait=10"))
    waiting.start()
    eventually(lambda: quiet.looks > 1, message="somebody waits")

    refused = client.get(f"{path}?wait=0.01")
    quiet.ended = True
    waiting.join(20)

    assert refused.status_code == 503
    assert refused.json["code"] == "too_many_waiting"
    assert refused.headers["Retry-After"] == "1"
    assert client.get(f"{path}?wait=0.01").status_code == 200


def test_log_is_downloaded_as_text(client, queue, job_id):
    say(queue, job_id, "one")
    say(queue, job_id, "two", level="ERROR", stream="stderr", attempt=2)

    response = client.get(f"/api/v1/jobs/{job_id}/log.txt")

    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert response.headers["Content-Disposition"] == f'attachment; filename="{job_id}.log.txt"'
    first, second = response.text.splitlines()
    assert re.fullmatch(r"[\d-]+T[\d:.]+Z INFO       1 one", first)
    assert re.fullmatch(r"[\d-]+T[\d:.]+Z stderr     2 two", second)
    assert client.get(f"/api/v1/jobs/{job_id}/log.txt?level=ERROR&attempt=2&search=TW").text == f"{second}\n"
    assert client.get(f"/api/v1/jobs/{uuid4()}/log.txt").json["code"] == "job_not_found"


def test_long_download_says_that_it_ends_early(client, queue, job_id, monkeypatch):
    monkeypatch.setattr(job_logs, "MAX_DOWNLOADED_LINES", 2)
    monkeypatch.setattr(job_logs, "_CHUNK_LINES", 1)
    say(queue, job_id, *"abc")

    assert client.get(f"/api/v1/jobs/{job_id}/log.txt").text.splitlines()[-1] == "… only the first 2 lines …"


def test_too_many_downloads_are_refused(client, queue, job_id, monkeypatch):
    say(queue, job_id, "one")
    opened = [client.get(f"/api/v1/jobs/{job_id}/log.txt", buffered=False) for _ in range(job_logs.MAX_DOWNLOADS)]

    assert client.get(f"/api/v1/jobs/{job_id}/log.txt").json["code"] == "too_many_waiting"
    for response in opened:
        response.close()
    assert client.get(f"/api/v1/jobs/{job_id}/log.txt").status_code == 200
