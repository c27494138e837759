"""Every operation names who may call it, and so does the document."""

from __future__ import annotations

from dataloader.app.http.app import OPERATIONS
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.openapi import route_template
from dataloader.app.http.routing import OPEN

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
    forgotten = [f"{op.method} {op.path}" for op in client.application.extensions[OPERATIONS] if op.scope is None]

    assert forgotten == [], "give it scope=Scope.…, ANY_KEY or OPEN"


def test_only_listed_operations_are_open(client):
    opened = {
        f"{op.method} {op.path}" for op in client.application.extensions[OPERATIONS] if op.required_scopes == OPEN
    }

    assert opened == ANYBODYS


def test_changing_operations_need_more_than_read(client):
    harmless = {"like_service", "dislike_service", "log_in", "log_out", "count_bulk_jobs", "preview_new_schedule"}
    for operation in client.application.extensions[OPERATIONS]:
        if operation.method != "GET" and operation.name not in harmless:
            assert Scope.READ not in operation.required_scopes, operation.path


def test_document_lists_the_scopes(client):
    paths = client.get("/openapi.json").json["paths"]

    assert paths["/health"]["get"]["security"] == []
    assert paths["/api/v1/jobs/trigger"]["post"]["security"] == [{"key": ["trigger"]}, {"session": ["trigger"]}]
    described = [op for op in client.application.extensions[OPERATIONS] if route_template(op.path) in paths]
    for operation in described:
        path = route_template(operation.path)
        result = {
            scope for way in paths[path][operation.method.lower()]["security"] for of in way.values() for scope in of
        }
        assert result == {scope.value for scope in operation.required_scopes}, path
