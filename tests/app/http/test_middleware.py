"""What happens around every request."""

from __future__ import annotations

import logging
import re

import pytest

from dataloader.app import log


@pytest.fixture
def logged(captured):
    """The lines logged under a name: (event, fields)."""

    def result(logger: str) -> list[tuple[str, dict[str, object]]]:
        return [(record.message, dict(record.fields)) for record in captured.records if record.name == logger]

    return result


@pytest.mark.parametrize("result", ["abc", "A-1_2.3:4+5/6=7@8", "0" * 128])
def test_a_request_id_that_is_given_is_kept(client, result):
    assert client.get("/health", headers={"X-Request-ID": result}).headers["X-Request-ID"] == result


@pytest.mark.parametrize("result", ["", " ", "a b", "x" * 129, "é", '"', "<script>", "-x"])
def test_a_request_id_that_could_do_harm_is_replaced(client, result):
    given = client.get("/health", headers={"X-Request-ID": result}).headers["X-Request-ID"]

    assert re.fullmatch(r"[0-9a-f]{32}", given)


def test_each_request_has_an_id_of_its_own(client):
    assert len({client.get("/health").headers["X-Request-ID"] for _ in range(5)}) == 5


def test_request_id_is_in_log_lines_of_its_request_only(app_without_database):
    bound = []

    def probe() -> dict[str, object]:
        bound.append(log.bound_fields())
        return {}

    client = app_without_database(probe=probe)

    client.get("/status", headers={"X-Request-ID": "mine"})

    assert bound == [{"request_id": "mine"}]
    assert log.bound_fields() == {}


def test_nothing_stays_bound_after_an_error(app_without_database, broken):
    app_without_database(broken(RuntimeError("x"))).get("/api/v1/jobs")

    assert log.bound_fields() == {}


def test_every_request_has_a_line_with_its_route_and_outcome(client, logged):
    client.get("/api/v1/jobs/7/status?x=s3cret")
    client.get("/nowhere")

    lines = [fields for event, fields in logged("dataloader.app.http") if event == "http.request"]
    assert [(line["method"], line["path"], line["route"], line["status"]) for line in lines] == [
        ("GET", "/api/v1/jobs/7/status", "/api/v1/jobs/{job_id}/status", 404),
        ("GET", "/nowhere", "unknown", 404),
    ]
    assert all(line["duration_ms"] >= 0 for line in lines)
    assert "s3cret" not in str(lines)


def test_polled_paths_are_not_logged_at_level_info(client, caplog):
    with caplog.at_level(logging.INFO):
        client.get("/health")
        client.get("/static/dashboard.css").close()

    assert [record.message for record in caplog.records if record.name == "dataloader.app.http"] == []
    assert [record for record in caplog.records if record.name == "dataloader.audit"] == []


def test_audit_file_has_caller_request_and_status(client, logged, trigger):
    job_id = trigger(producer="me")
    client.post(f"/api/v1/jobs/{job_id}/cancel", headers={"User-Agent": "curl"})
    client.post(f"/api/v1/jobs/{job_id}/retry")

    lines = logged("dataloader.audit")
    assert [event for event, _ in lines] == [
        *("request.started", "job.triggered", "request.finished"),
        *("request.started", "job.canceled", "request.finished"),
        *("request.started", "job.retried", "request.finished"),
    ]
    triggered, canceled = lines[1][1], lines[4][1]
    assert triggered["producer"] == "me"
    assert triggered["created"] is True
    assert str(triggered["job_id"]) == job_id
    assert (canceled["remote"], canceled["agent"], canceled["status"]) == ("127.0.0.1", "curl", "canceled")


def test_each_request_has_a_line_among_the_numbers(client, logged):
    client.get("/health")

    ((event, fields),) = logged("dataloader.metric")
    assert event == "request.finished"
    assert (fields["route"], fields["status"]) == ("/health", 200)


@pytest.mark.parametrize("path", ["/health", "/nowhere", "/api/v1/tasks", "/", "/docs", "/openapi.json"])
def test_answers_are_not_sniffed_framed_or_kept(client, path):
    headers = client.get(path).headers

    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == ("private, no-cache" if "/api/" in path else "no-store")
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_content_policy_of_pages_and_of_json(client):
    assert client.get("/docs").headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert client.get("/health").headers["Content-Security-Policy"].startswith("default-src 'none';")
