"""The page of API keys, without scripts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from flask.testing import FlaskClient

from dataloader.app.http.app import create_app
from dataloader.app.http.auth.api_keys import TOKEN_PATTERN, ApiKeys, NewApiKey, Scope
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.support.databases import execute_sql


@pytest.fixture
def keys(dsn: str, pool) -> ApiKeys:
    execute_sql(dsn, "TRUNCATE dl_api_keys")
    return ApiKeys(pool)


@pytest.fixture
def guarded(keys: ApiKeys, pool) -> Callable[[Scope], FlaskClient]:
    """A client with a key of this scope."""

    def make(scope: Scope) -> FlaskClient:
        _, token = keys.create(NewApiKey(name=scope.value, scopes=frozenset({scope}), created_by="test"))
        made = create_app(JobQueue(pool), Pipelines(), WebOptions(version="1"), pool=pool, keys=keys).test_client()
        made.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {token}"
        return made

    return make


def test_key_is_created_shown_once_listed_and_revoked(client, keys):
    keys.create(NewApiKey(name="boss", scopes=frozenset({Scope.ADMIN}), created_by="test"))

    made = client.post(
        "/keys", data={"name": "billing", "scopes": "trigger", "tasks": "load.sales, load.rates", "ttl_sec": "90d"}
    )

    assert made.status_code == 200
    assert re.search(TOKEN_PATTERN.pattern, made.text)
    billing = next(key for key in keys.all() if key.name == "billing")
    assert (set(billing.tasks or ()), billing.scopes) == ({"load.sales", "load.rates"}, (Scope.TRIGGER,))
    assert billing.expires_at is not None
    page = client.get("/keys").text
    assert "load.rates" in page
    assert not re.search(TOKEN_PATTERN.pattern, page)
    assert client.post("/keys/revoke", data={"key_id": billing.id}).status_code == 303
    assert "revoked" in client.get("/keys").text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "first", "scopes": "read"}, "would have none"),
        ({"name": "none"}, "needs a scope"),
        ({"name": "", "scopes": "admin"}, "printable text"),
        ({"name": "odd", "scopes": "admin", "tasks": "t"}, "limit what a key may trigger"),
    ],
)
def test_refused_key_is_explained_and_not_created(client, keys, values, message):
    refused = client.post("/keys", data=values)

    assert (refused.status_code, message in refused.text) == (422, True)
    assert keys.all() == []


def test_refused_lifetime_is_marked_at_its_field(client, keys):
    refused = client.post("/keys", data={"name": "a", "scopes": "admin", "ttl_sec": "long"})

    assert (refused.status_code, 'id="submit_key-ttl_sec-error"' in refused.text) == (422, True)


def test_last_operator_key_is_not_revoked_by_the_page(client, keys):
    only, _ = keys.create(NewApiKey(name="boss", scopes=frozenset({Scope.OPERATE}), created_by="test"))
    keys.create(NewApiKey(name="reader", scopes=frozenset({Scope.READ}), created_by="test"))

    refused = client.post("/keys/revoke", data={"key_id": only.id})

    assert (refused.status_code, "no other valid API key" in refused.text) == (422, True)
    assert client.post("/keys/revoke", data={"key_id": "unknown"}).status_code == 409


def test_pages_of_administrators_need_the_scope_admin(guarded):
    operator = guarded(Scope.OPERATE)

    assert operator.get("/keys").status_code == 403
    assert operator.post("/keys", data={"name": "a", "scopes": "admin"}).status_code == 403
    assert operator.post("/webhooks", data={"url": "https://hooks.example.com/x"}).status_code == 403
    assert guarded(Scope.ADMIN).get("/keys").status_code == 200
