"""Every refusal is problem+json with a stable code, and shows nothing it should not."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest

import dataloader.app.errors as tree
from dataloader.app.errors import (
    DatabaseUnavailable,
    DataloaderError,
    InvalidJob,
    PoolExhausted,
    SchemaMissing,
    SchemaTooNew,
)
from dataloader.app.http.problems import ProblemCode, problem_code

MEMBERS = ["type", "title", "status", "detail", "code", "request_id", "errors"]
JOB = "/api/v1/jobs/00000000-0000-0000-0000-000000000000"


def is_problem(response, status, code):
    assert response.status_code == status
    assert response.content_type == "application/problem+json"
    assert list(response.json)[:7] == MEMBERS
    assert response.json["status"] == status
    assert response.json["code"] == code
    assert response.json["type"] == f"/docs#{code}"
    assert response.json["detail"]
    assert response.json["request_id"] == response.headers["X-Request-ID"]
    return True


@pytest.mark.parametrize("path", ["/nowhere", "/api/v2/jobs", "/docs/", "/health/", "/static/no.css", "/API/v1/jobs"])
def test_an_unknown_address_is_a_404(app_without_database, path):
    assert is_problem(app_without_database().get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("get", "/api/v1/jobs/trigger", "OPTIONS, POST"),
        ("put", JOB, "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("put", "/health", "GET, HEAD, OPTIONS"),
        ("get", "/api/v1/feedback/like", "OPTIONS, POST"),
        ("post", JOB + "/status", "GET, HEAD, OPTIONS"),
    ],
)
def test_a_wrong_method_is_a_405_that_lists_the_right_ones(app_without_database, method, path, allowed):
    response = getattr(app_without_database(), method)(path)

    assert is_problem(response, 405, "method_not_allowed")
    assert response.headers["Allow"] == allowed


def test_browser_gets_a_page_for_an_unknown_address(app_without_database):
    browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}

    page = app_without_database().get("/nowhere", headers=browser)

    assert (page.status_code, page.mimetype) == (404, "text/html")
    assert "The path does not exist" in page.text


def test_options_lists_the_methods_and_asks_nothing_of_the_body(app_without_database):
    response = app_without_database().options("/api/v1/jobs/trigger")

    assert response.status_code == 200
    assert set(response.headers["Allow"].split(", ")) == {"POST", "OPTIONS"}


def test_head_is_get_without_a_body(client):
    response = client.head("/health")

    assert (response.status_code, response.data) == (200, b"")
    assert client.head("/nowhere").status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("post", "/api/v1/jobs/trigger"),
        ("get", JOB + "/status"),
        ("post", JOB + "/cancel"),
        ("post", JOB + "/retry"),
        ("get", "/api/v1/jobs"),
        ("get", JOB),
        ("get", JOB + "/events"),
    ],
)
def test_without_database_requests_get_503_with_retry_after(app_without_database, request_body, method, path):
    response = getattr(app_without_database(), method)(path, **({"json": request_body} if "trigger" in path else {}))

    assert is_problem(response, 503, "database_unavailable")
    assert int(response.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("method", "path", "is_unknown"),
    [
        ("get", "/api/v1/jobs", False),
        ("post", "/api/v1/bulk/count", False),
        ("post", JOB + "/cancel", True),
    ],
)
def test_only_a_change_has_an_unknown_outcome(app_without_database, method, path, is_unknown):
    body = {"json": {"action": "cancel", "filter": {"text": "x"}}} if path.endswith("count") else {}

    response = getattr(app_without_database(), method)(path, **body)

    assert is_problem(response, 503, "database_unavailable")
    assert ("outcome is unknown" in response.json["detail"]) is is_unknown


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (DatabaseUnavailable("password=s3cret host=db"), 503, "database_unavailable"),
        (PoolExhausted("s3cret"), 503, "database_unavailable"),
        (SchemaMissing("s3cret"), 503, "schema_mismatch"),
        (SchemaTooNew("s3cret"), 503, "schema_mismatch"),
        (RuntimeError("s3cret"), 500, "internal"),
        (DataloaderError("s3cret"), 500, "internal"),
    ],
)
def test_internal_error_shows_only_its_code(app_without_database, broken, caplog, error, status, code):
    with caplog.at_level(logging.INFO):
        response = app_without_database(broken(error)).get(JOB)

    assert is_problem(response, status, code)
    assert "s3cret" not in response.text
    (result,) = [record for record in caplog.records if record.message == "api.error"]
    assert result.fields["status"] == status
    assert bool(result.exc_info) == (status == 500)


def test_retry_after_is_shorter_for_a_busy_pool_than_an_outage(app_without_database, broken):
    busy = app_without_database(broken(PoolExhausted("x"))).get(JOB)
    away = app_without_database(broken(DatabaseUnavailable("x"))).get(JOB)

    assert int(busy.headers["Retry-After"]) < int(away.headers["Retry-After"])


def test_value_rejected_by_the_database_is_a_400(app_without_database, broken, request_body):
    client = app_without_database(broken(InvalidJob("args holds a number PostgreSQL cannot keep")))

    response = client.post("/api/v1/jobs/trigger", json=request_body)

    assert is_problem(response, 400, "invalid_request")
    assert response.json["detail"] == "args holds a number PostgreSQL cannot keep"


def test_an_error_in_the_steps_around_a_request_is_internal_too(app_without_database):
    client = app_without_database()

    @client.application.before_request
    def fails() -> None:
        raise RuntimeError("s3cret")

    response = client.get("/health")

    assert is_problem(response, 500, "internal")
    assert "s3cret" not in response.text


def test_any_other_refusal_of_http_keeps_its_status(app_without_database):
    client = app_without_database()

    @client.application.before_request
    def refuses() -> None:
        from werkzeug.exceptions import ImATeapot

        raise ImATeapot

    assert is_problem(client.get("/health"), 418, "http_error")


def test_a_new_kind_of_a_known_error_is_answered_like_its_parent():
    class Stalled(DatabaseUnavailable):
        pass

    assert problem_code(Stalled("x")) is ProblemCode.DATABASE_UNAVAILABLE


# Met before there is a web, or by those who run jobs: no request can raise them.
ELSEWHERE = {"DataloaderError", "ConfigError", "EmbeddedServerError", "PortTaken", "AttemptLost", "SessionsRefused",
             "UnknownTarget", "InvalidApiKey", "ApiKeyNotFound", "NoOperatorKey", "ProgramMissing"}  # fmt: skip


def test_every_error_of_a_request_has_its_own_code():
    errors = [kind for kind in vars(tree).values() if isinstance(kind, type) and issubclass(kind, DataloaderError)]
    uncoded = {kind.__name__ for kind in errors if problem_code(kind.__new__(kind)) is ProblemCode.INTERNAL}

    assert uncoded <= ELSEWHERE, "a new error needs a line in the table of app/http/problems.py, or one above"


def test_the_conflict_names_its_job(app_without_database, broken, request_body):
    error = tree.IdempotencyConflict("daily", UUID(int=7))

    response = app_without_database(broken(error)).post("/api/v1/jobs/trigger", json=request_body)

    assert is_problem(response, 409, "idempotency_conflict")
    assert response.json["job_id"] == str(UUID(int=7))
