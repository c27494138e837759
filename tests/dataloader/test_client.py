from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest

from dataloader import Client, Conflict, FieldError, NotFound, Refused, ServiceFault, ServiceUnavailable
from dataloader._address import parse_url
from tests.app.cli.fake_service import AT, BUSY, HANG_UP, STALL, Answer, Standin, problem, standing_in

NOOP: dict[str, Any] = {"task": "noop", "queue": "etl.default", "lock_key": "noop"}
KEYED: dict[str, Any] = {**NOOP, "idempotency_key": "once"}


@pytest.fixture
def service() -> Iterator[Standin]:
    with standing_in() as standin:
        yield standin


class Pauses(list[float]):
    def __call__(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def client(service: Standin, pauses: Pauses) -> Client:
    return Client(service.url, sleep=pauses)


@pytest.fixture
def no_one() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_trigger_sends_only_what_was_given(client, service):
    triggered = client.trigger(**NOOP)

    assert triggered["status"] == "queued"
    assert triggered["job_id"] in service.jobs
    assert service.asked[0].body == {"queue": "etl.default", "task": "noop", "lock_key": "noop", "args": {}}


def test_a_time_is_sent_in_utc(client, service):
    moscow = timezone(timedelta(hours=3))
    client.trigger(queue="q", task="t", lock_key="k", available_at=datetime(2026, 11, 21, 9, tzinfo=moscow), priority=0)

    assert service.asked[0].body["available_at"] == "2026-11-21T06:00:00+00:00"
    assert service.asked[0].body["priority"] == 0


def test_a_job_is_followed_through_status_cancel_and_retry(client, service):
    job_id = UUID(service.add({"status": "running", "attempt": 1, "started_at": AT, "progress": {"processed": 1}}))

    state = client.status(job_id)
    service.jobs[str(job_id)]["status"] = "queued"

    assert (state["status"], state["attempt"], state["progress"]) == ("running", 1, {"processed": 1})
    assert state["started_at"] == AT
    assert state["finished_at"] is None
    assert client.cancel(job_id)["status"] == "canceled"
    assert client.retry(job_id)["status"] == "queued"


def test_jobs_are_listed_by_what_is_asked_for(client, service):
    service.add(queue="other")
    wanted = service.add(queue="etl & co", status="failed", error="ValueError: no")

    (line,) = client.jobs(queue="etl & co", status="failed", task="noop", limit=7)

    assert (line["job_id"], line["error"], line["max_attempts"]) == (wanted, "ValueError: no", 5)
    assert service.asked[0].query["limit"] == ["7"]


def test_the_journal_is_read_in_order(client, service):
    events = client.events(UUID(service.add()))

    assert [(e["kind"], e["payload"]) for e in events] == [("queued", {}), ("picked", {"n": 1})]


def test_a_path_before_the_api_is_kept(service, pauses):
    with pytest.raises(ServiceFault, match="has nothing at /api/v1/jobs"):
        Client(service.url + "/behind/", sleep=pauses).jobs()

    assert service.asked[0].path == "/behind/api/v1/jobs"


def test_a_missing_job_is_named(client):
    job_id = uuid4()

    with pytest.raises(NotFound, match=str(job_id)):
        client.status(job_id)


def test_invalid_request_has_error_for_each_field(client):
    with pytest.raises(Refused) as refused:
        client.trigger(queue="q", task="bad", lock_key="k")

    assert refused.value.code == "invalid_request"
    assert refused.value.errors == (FieldError("args.x", "is required"),)


def test_a_key_of_another_request_is_a_conflict(client):
    client.trigger(**KEYED)

    with pytest.raises(Conflict) as conflict:
        client.trigger(queue="q", task="other", lock_key="k", idempotency_key="once")

    assert conflict.value.code == "idempotency_conflict"
    assert "job_id" in conflict.value.problem


def test_keyed_trigger_is_repeated_and_makes_one_job(client, service, pauses):
    client.trigger(**KEYED)
    service.unruly.extend([HANG_UP, BUSY])
    client.trigger(**KEYED)

    assert len(service.asked) == 4
    assert len(service.jobs) == 1
    assert pauses == [0.2, 0.4]


@pytest.mark.parametrize("trouble", [HANG_UP, BUSY], ids=["hangs up", "503"])
def test_a_trigger_without_a_key_is_sent_only_once(client, service, trouble):
    service.unruly.append(trouble)

    with pytest.raises(ServiceUnavailable):
        client.trigger(**NOOP)
    assert len(service.asked) == 1


def test_a_retry_is_sent_only_once(client, service):
    service.unruly.append(BUSY)

    with pytest.raises(ServiceUnavailable, match="the database does not answer"):
        client.retry(UUID(service.add(status="failed")))
    assert len(service.asked) == 1


def test_retry_after_is_obeyed(client, service, pauses):
    service.unruly.append(Answer(503, BUSY.body, {"Retry-After": "3"}))

    client.status(UUID(service.add()))

    assert pauses == [3.0]


def test_retry_after_beyond_timeout_is_not_waited_for(client, service, pauses):
    service.unruly.append(Answer(429, {}, {"Retry-After": "3600"}))

    with pytest.raises(ServiceUnavailable) as away:
        client.status(UUID(service.add()))
    assert away.value.retry_after_sec == 3600
    assert pauses == []


def test_a_retry_after_that_is_a_date_is_as_good_as_none(client, service, pauses):
    service.unruly.append(Answer(503, BUSY.body, {"Retry-After": "Sat, 21 Nov 2026 10:00:00 GMT"}))

    client.status(UUID(service.add()))

    assert pauses == [0.2]


def test_a_refused_connection_is_tried_again_whatever_was_asked(no_one):
    pauses, result = Pauses(), list[ServiceUnavailable]()

    def start_late(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    client = Client(no_one, sleep=start_late, on_retry=result.append)

    with pytest.raises(KeyboardInterrupt):
        client.trigger(**NOOP)
    assert pauses == [0.2, 0.4, 0.8]
    assert [outage.sent for outage in result] == [False] * 3


def test_refused_connection_without_timeout_fails_at_once(no_one):
    with pytest.raises(ServiceUnavailable, match=rf"cannot connect to {no_one}: Connection refused"):
        Client(no_one, retry_timeout_sec=0).jobs()


def test_unresolvable_name_is_reported():
    with pytest.raises(ServiceUnavailable, match="cannot connect"):
        Client(f"http://{'x' * 70}.invalid", retry_timeout_sec=0).jobs()


def test_a_service_that_stalls_is_given_up_after_the_timeout(service):
    service.unruly.append(STALL)

    with pytest.raises(ServiceUnavailable, match="timed out") as stalled:
        Client(service.url, timeout_sec=0.1, retry_timeout_sec=0).jobs()
    assert stalled.value.sent


def test_response_that_is_not_http_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            other, _ = listener.accept()
            with other:
                other.recv(1000)
                other.sendall(b"SSH-2.0-OpenSSH\r\n\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(ServiceUnavailable, match="no answer"):
            Client(f"http://127.0.0.1:{listener.getsockname()[1]}", retry_timeout_sec=0).jobs()
        thread.join(10)


def test_tls_to_service_without_tls_is_reported(service):
    with pytest.raises(ServiceUnavailable, match="no answer from https"):
        Client(service.url.replace("http:", "https:"), timeout_sec=5, retry_timeout_sec=0).jobs()


@pytest.mark.parametrize(
    "answer",
    [
        problem(500, "internal", "a bug of ours"),
        Answer(200, raw=b"<html>"),
        Answer(200, body=[]),
        Answer(302, headers={"Location": "https://elsewhere"}),
        Answer(404, raw=b"not here"),
        Answer(400, raw=b"[" * 100_000),
        Answer(200, body={}),
        Answer(200, body={"jobs": ["1"]}),
        Answer(200, body={"jobs": 5}),
    ],
    ids=["500", "html", "list", "redirect", "other 404", "deep", "empty", "no jobs", "no list"],
)
def test_foreign_answer_is_a_fault_with_the_address(client, service, answer):
    service.unruly.append(answer)

    with pytest.raises(ServiceFault, match=service.url):
        client.jobs()


def test_problem_without_details_is_still_reported(client, service):
    service.unruly.append(Answer(422, {"code": "odd", "errors": "no list"}))

    with pytest.raises(Refused, match="the service answered 422") as refused:
        client.jobs()
    assert refused.value.errors == ()


def test_conflict_without_problem_document_has_a_code(client, service):
    service.unruly.append(Answer(409, raw=b"", headers={}))

    with pytest.raises(Conflict) as conflict:
        client.jobs()
    assert conflict.value.code == "http_409"


def test_field_errors_of_a_strange_shape_are_left_out(client, service):
    service.unruly.append(problem(400, "invalid_request", "no", errors=["text", {"field": "a", "message": "b"}]))

    with pytest.raises(Refused) as refused:
        client.jobs()
    assert refused.value.errors == (FieldError("a", "b"),)


def test_watching_shows_each_change_once_and_ends_with_the_job(client, service, pauses):
    half = {"status": "running", "attempt": 1, "progress": {"processed": 1, "total": 2}}
    job_id = UUID(service.add({}, half, half, half, {"status": "succeeded", "finished_at": AT}))

    seen = list(client.watch(job_id))

    assert [state["status"] for state in seen] == ["queued", "running", "succeeded"]
    assert pauses[1] < pauses[2] < pauses[3]


def test_watching_goes_on_through_an_outage(service, pauses):
    outages: list[str] = []
    job_id = UUID(service.add({}, BUSY, BUSY, {"status": "failed"}))

    watching = Client(service.url, retry_timeout_sec=0, sleep=pauses).watch(
        job_id, on_outage=lambda o: outages.append(str(o))
    )

    assert [state["status"] for state in watching] == ["queued", "failed"]
    assert len(outages) == 2


def test_watching_ends_when_the_outage_lasts_too_long(service, pauses):
    job_id = UUID(service.add({}, BUSY))
    watching = Client(service.url, retry_timeout_sec=0, sleep=pauses).watch(job_id, outage_timeout_sec=0)

    assert next(watching)["status"] == "queued"
    with pytest.raises(ServiceUnavailable):
        next(watching)


def test_watching_a_service_that_was_never_there_ends_at_once(no_one):
    with pytest.raises(ServiceUnavailable):
        next(Client(no_one, retry_timeout_sec=0).watch(uuid4()))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8081",
        "ftp://a",
        "http://",
        "http://a:port",
        "http://a?x=1",
        "http://a#x",
        "http://a b",
        "http://ä",
    ],
)
def test_what_is_no_address_is_refused_by_name(url):
    with pytest.raises(ValueError, match="address"):
        parse_url(url)


def test_password_in_url_is_refused_and_not_repeated():
    with pytest.raises(ValueError, match="no user name or password") as refused:
        Client("http://me:hunter2@127.0.0.1")
    assert "hunter2" not in str(refused.value)


def test_truncated_response_is_reported(client, service):
    service.unruly.append(Answer(200, raw=b"{}", headers={"Content-Length": "10"}))

    with pytest.raises(ServiceUnavailable, match="no answer"):
        Client(service.url, retry_timeout_sec=0).jobs()
