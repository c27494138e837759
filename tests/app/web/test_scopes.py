"""Every operation says who may call it, and the document tells it."""

from __future__ import annotations

from app.queue.keys import Scope
from app.web.application import OPERATIONS
from app.web.openapi import template
from app.web.operations import OPEN

ANYBODYS = {
    "GET /health",
    "GET /health/ready",
    "GET /health/consuming",
    "GET /health/started",
    "GET /status",
    "GET /login",
    "POST /login",
    "POST /logout",
}


def test_every_operation_says_who_may_call_it(client):
    forgotten = [f"{op.method} {op.path}" for op in client.application.extensions[OPERATIONS] if not op.declared]

    assert forgotten == [], "give it scope=Scope.…, ANY_KEY or OPEN"


def test_only_what_must_be_is_open_to_everybody(client):
    opened = {f"{op.method} {op.path}" for op in client.application.extensions[OPERATIONS] if op.access == OPEN}

    assert opened == ANYBODYS


def test_what_changes_something_takes_more_than_reading(client):
    harmless = {"like", "dislike", "log_in", "log_out", "bulk_count"}
    for operation in client.application.extensions[OPERATIONS]:
        if operation.method != "GET" and operation.name not in harmless:
            assert Scope.READ not in operation.access, operation.path


def test_the_document_tells_the_scopes(client):
    paths = client.get("/openapi.json").json["paths"]

    assert paths["/health"]["get"]["security"] == []
    assert paths["/api/v1/jobs/trigger"]["post"]["security"] == [{"key": ["trigger"]}, {"session": ["trigger"]}]
    for operation in client.application.extensions[OPERATIONS]:
        path = template(operation.path)
        told = {
            scope for way in paths[path][operation.method.lower()]["security"] for of in way.values() for scope in of
        }
        assert told == {scope.value for scope in operation.access}, path
