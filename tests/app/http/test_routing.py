"""What comes in is validated before anything else happens; whatever it is, the answer is never a 500."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

TRIGGER = "/api/v1/jobs/trigger"
GOOD = {"queue": "etl", "task": "noop", "lock_key": "noop"}


def body(extra: str = "") -> bytes:
    """A good request with one more member, written as it is."""
    return (json.dumps(GOOD)[:-1] + (f", {extra}" if extra else "") + "}").encode()


def send(client: Any, data: bytes, content_type: str = "application/json") -> Any:
    return client.post(TRIGGER, data=data, content_type=content_type)


HOSTILE = [
    (r'"producer": "a\u0000b"', "producer"),
    (r'"producer": "\ud800"', "producer"),
    (r'"args": {"deep": [{"key": "\u0000"}]}', "args.deep[0].key"),
    (r'"args": {"\u0000": 1}', r'args["\u0000"]'),
    (r'"args": {"x": "\udfff\ud800"}', "args.x"),
    ('"args": {"x": 1e5000}', "args.x"),
    ('"args": {"x": -1e5000}', "args.x"),
    ('"args": {"x": ' + "9" * 5000 + "}", "args.x"),
    ('"args": {"x": NaN}', "args.x"),
    ('"args": {"x": [Infinity]}', "args.x[0]"),
    ('"args": {"x": 1, "x": 2}', "args.x"),
    ('"queue": "again"', "queue"),
    ('"args": {"x": ' + "[" * 100 + "]" * 100 + "}", "args.x" + "[0]" * 62),
    ('"args": {"x": ' + "[" * 20000 + "]" * 20000 + "}", "args"),
    ('"args": {"x": ' + '{"a":' * 9000 + "1" + "}" * 9000 + "}", "args"),
    ('"args": null', "args"),
    ('"args": []', "args"),
    ('"priority": 2147483648', "priority"),
    ('"priority": -1', "priority"),
    ('"priority": ' + "1" * 4999, "priority"),
    ('"priority": 1.5', "priority"),
    ('"priority": 1e2', "priority"),
    ('"priority": true', "priority"),
    ('"priority": NaN', "priority"),
    ('"max_attempts": 0', "max_attempts"),
    ('"max_attempts": 99999999999999999999', "max_attempts"),
    ('"lease_ttl_sec": 19', "lease_ttl_sec"),
    ('"lease_ttl_sec": 2147483648', "lease_ttl_sec"),
    ('"available_at": "2030-01-31T08:00:00"', "available_at"),
    ('"available_at": "0001-01-01T00:00:00+23:59"', "available_at"),
    ('"available_at": "9999-12-31T23:59:59-23:59"', "available_at"),
    ('"available_at": 0', "available_at"),
    ('"idempotency_key": ""', "idempotency_key"),
    ('"idempotency_key": "' + "x" * 1001 + '"', "idempotency_key"),
    ('"partition_key": "' + "я" * 1001 + '"', "partition_key"),
    ('"idempotency_key": "' + "😀" * 1000 + '"', "idempotency_key"),
    (r'"idempotency_key": "x\n"', "idempotency_key"),
    ('"unknown": 1', "unknown"),
    ('"\\u0000": 1', r'"\u0000"'),
    ('"": 1', '""'),
]


@pytest.mark.parametrize(("extra", "field"), HOSTILE, ids=[f"{n}-{field[:20]}" for n, (_, field) in enumerate(HOSTILE)])
def test_a_hostile_field_gets_a_400_that_names_it(lasting_client, extra, field):
    response = send(lasting_client, body(extra))

    assert response.status_code == 400, response.text
    assert response.content_type == "application/problem+json"
    assert response.json["code"] == "invalid_request"
    assert field in [error["field"] for error in response.json["errors"]]
    assert response.json["errors"][0]["message"]


@pytest.mark.parametrize(
    "extra",
    [
        '"args": {"x": 1e22, "y": -0.0, "z": 1e-400, "n": ' + "9" * 300 + "}",
        '"args": {"x": ' + "[" * 62 + "]" * 62 + "}",
        r'"args": {"😀": "\ud83d\ude00\u2028\u200f", "": ""}',
        '"available_at": "0002-01-01T00:00:00-23:59", "priority": 2147483647',
        '"available_at": "9998-12-31T23:59:59-23:59", "max_attempts": 2147483647'.replace("31T", "30T"),
        '"lease_ttl_sec": 2147483647, "partition_key": "", "producer": "", "consumer_group": ""',
        '"idempotency_key": "' + "😀" * 500 + '", "partition_key": "' + "😀" * 500 + '"',
        '"idempotency_key": "%s %(x)s {} \\" \\\\ \'; --"',
    ],
)
def test_unusual_values_are_stored_and_returned(lasting_client, extra):
    sent = json.loads(body(extra))

    response = send(lasting_client, body(extra))
    assert response.status_code == 200, response.text

    result = lasting_client.get(f"/api/v1/jobs/{response.json['job_id']}")
    assert result.status_code == 200, result.text
    assert result.json["args"] == sent.get("args", {})
    assert result.json["partition_key"] == sent.get("partition_key", "")


def test_errors_of_a_request_are_reported_together(lasting_client):
    response = send(lasting_client, rb'{"queue": "\u0000", "args": {"x": NaN}, "priority": -1, "more": 1}')

    assert {error["field"] for error in response.json["errors"]} == {
        "queue", "args.x", "priority", "more", "task", "lock_key",
    }  # fmt: skip
    assert "and 3 more" in response.json["detail"]


def test_unparsable_field_is_reported_once(lasting_client):
    response = send(lasting_client, body('"priority": NaN'))

    assert [error["field"] for error in response.json["errors"]] == ["priority"]


def test_a_report_of_faults_has_an_end(lasting_client):
    response = send(lasting_client, json.dumps({f"field{n}": n for n in range(5000)}).encode())

    assert response.status_code == 400
    assert len(response.json["errors"]) == 20


@pytest.mark.parametrize("data", [b"", b"   ", b"{", b"\xff\xfe{}", b"nul", b'{"queue": "x" "task"}', b"\x80"])
def test_invalid_json_is_a_400(lasting_client, data):
    response = send(lasting_client, data)

    assert response.status_code == 400
    assert response.json["code"] == "invalid_json"


@pytest.mark.parametrize("data", [b"[]", b"null", b'"x"', b"7", b"true", b"NaN", b"[" * 5000])
def test_json_that_is_no_object_is_an_invalid_request(lasting_client, data):
    response = send(lasting_client, data)

    assert response.status_code == 400
    assert response.json["code"] == "invalid_request"
    assert [error["field"] for error in response.json["errors"]] == ["body"]


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON ; charset=UTF8",
        'application/json;charset="utf-8"',
    ],
)
def test_json_may_be_announced_in_several_ways(lasting_client, content_type):
    assert send(lasting_client, body(), content_type).status_code == 200


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
     "application/json; charset=utf-16", "application/xml", "application/jsonp", "json"],
)  # fmt: skip
def test_anything_else_is_a_415(lasting_client, content_type):
    response = lasting_client.post(TRIGGER, data=body(), content_type=content_type)

    assert response.status_code == 415
    assert response.json["code"] == "unsupported_media_type"


def test_a_compressed_body_is_a_415(lasting_client):
    response = lasting_client.post(
        TRIGGER, data=body(), content_type="application/json", headers={"Content-Encoding": "gzip"}
    )

    assert response.status_code == 415


@pytest.fixture
def small_client(app_without_database):
    """An app that takes bodies of 100 bytes, and has no database: whatever passes the door becomes a 503."""
    return app_without_database(max_body_bytes=100)


def test_a_body_over_the_limit_is_a_413(small_client):
    response = send(small_client, body('"producer": "' + "x" * 100 + '"'))

    assert response.status_code == 413
    assert response.json["code"] == "body_too_large"


def test_a_body_that_only_claims_to_be_large_is_a_413_too(small_client):
    response = small_client.post(
        TRIGGER,
        input_stream=io.BytesIO(body()),
        content_type="application/json",
        environ_overrides={"CONTENT_LENGTH": "101"},
    )

    assert response.status_code == 413


def test_chunked_body_is_limited(small_client):
    chunked = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": ""}

    def chunks(data: bytes) -> Any:
        return small_client.post(
            TRIGGER, input_stream=io.BytesIO(data), content_type="application/json", environ_overrides=chunked
        )

    assert chunks(body().ljust(101)).status_code == 413
    assert chunks(body().ljust(100)).status_code == 503
    assert chunks(body()).status_code == 503


def test_body_shorter_than_its_content_length_is_a_400(small_client):
    response = small_client.post(
        TRIGGER,
        input_stream=io.BytesIO(b"{"),
        content_type="application/json",
        environ_overrides={"CONTENT_LENGTH": "90"},
    )

    assert response.status_code == 400


def test_no_more_is_read_than_was_announced(small_client):
    response = small_client.post(
        TRIGGER,
        input_stream=io.BytesIO(body() + b"x" * 500),
        content_type="application/json",
        environ_overrides={"CONTENT_LENGTH": str(len(body()))},
    )

    assert response.status_code == 503


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=1.5", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("status=gone", "status"),
        ("status=", "status"),
        ("queue=a&queue=b", "queue"),
        ("queue=%00", "queue"),
        ("nonsense=1", "nonsense"),
    ],
)
def test_a_hostile_query_gets_a_400_that_names_it(lasting_client, query, field):
    response = lasting_client.get(f"/api/v1/jobs?{query}")

    assert response.status_code == 400
    assert [error["field"] for error in response.json["errors"]] == [field]


def test_a_query_in_bytes_that_are_no_utf_8_finds_nothing(lasting_client):
    response = lasting_client.get("/api/v1/jobs", environ_overrides={"QUERY_STRING": "queue=%ff%fe"})

    assert response.status_code == 200
    assert response.json["jobs"] == []


@pytest.mark.parametrize(
    "path", ["/api/v1/jobs/%00/status", "/api/v1/jobs/%ff", "/%00", "/api/v1/jobs/" + "x" * 5000, "/api/v1/jobs/../x"]
)
def test_a_hostile_address_is_a_404(lasting_client, path):
    response = lasting_client.get(path)

    assert response.status_code == 404
    assert response.json["code"] in ("not_found", "job_not_found")


@pytest.mark.parametrize("path", ["/tasks/a%00b", "/queues/a%00b", "/api/v1/limits/a%00b", "/api/v1/tasks/%00/breaker"])
def test_name_with_nul_in_an_address_is_a_404(lasting_client, path):
    assert lasting_client.get(path).status_code == 404
