"""A stream lasts, and so does the question whether its caller would still be let in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from dataloader.app.db.pool import Pool
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.http.app import create_app
from dataloader.app.http.auth.api_keys import ApiKey, ApiKeys, NewApiKey, Scope
from dataloader.app.http.caches import KeyCache, KeyCacheTimes
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines

NOTHING_IS_OLD = KeyCacheTimes(refresh_after_sec=0.0, max_age_sec=0.0, unknown_key_interval_sec=0.0)
STREAM = "/api/v1/stream"
LONG = 60  # seconds that a stream would last by itself


@pytest.fixture
def keys(pool: Pool, dsn: str) -> ApiKeys:
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM dl_api_keys")
    connection.close()
    return ApiKeys(pool)


@pytest.fixture
def make(keys: ApiKeys) -> Callable[..., tuple[ApiKey, str]]:
    def made(*scopes: Scope, name: str = "k", **more: Any) -> tuple[ApiKey, str]:
        return keys.create(NewApiKey(name=name, scopes=frozenset(scopes), created_by="test", **more))

    return made


@pytest.fixture
def app(queue: JobQueue, pipelines: Pipelines, pool: Pool, keys: ApiKeys, monkeypatch) -> Any:
    monkeypatch.setattr("dataloader.app.http.app.KeyCache", lambda keys: KeyCache(keys, NOTHING_IS_OLD))
    monkeypatch.setattr("dataloader.app.features.jobs.event_routes._REVALIDATE_SEC", 0.0)
    monkeypatch.setattr("dataloader.app.features.jobs.event_routes._POLL_INTERVAL_SEC", 0.05)
    return create_app(queue, pipelines, WebOptions(version="1"), pool=pool, keys=keys)


def begun(client: Any, **how: Any) -> Iterator[bytes]:
    answer = client.get(f"{STREAM}?seconds={how.pop('seconds', LONG)}", **how)
    assert answer.status_code == 200, answer.text
    result: Iterator[bytes] = iter(answer.response)
    assert next(result).startswith(b"retry:")
    return result


def ends_early(result: Iterator[bytes]) -> bool:
    began = time.monotonic()
    list(result)
    return time.monotonic() - began < LONG / 2


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_it_ends_when_its_key_is_revoked_and_others_go_on(app, make, keys):
    key, token = make(Scope.READ)
    _, another = make(Scope.READ, name="another")
    began = time.monotonic()
    ending, staying = (
        begun(app.test_client(), headers=bearer(token)),
        begun(app.test_client(), headers=bearer(another), seconds=1.5),
    )

    keys.revoke(key.id)

    assert ends_early(ending)
    list(staying)
    assert time.monotonic() - began >= 1.5, "it lasted for as long as it was asked to"


def test_it_ends_when_its_key_runs_out(app, make, dsn):
    _, token = make(Scope.READ, ttl_sec=3600.0)
    result = begun(app.test_client(), headers=bearer(token))

    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("UPDATE dl_api_keys SET expires_at = clock_timestamp()")

    assert ends_early(result)


def test_it_ends_with_the_key_of_a_session_and_with_the_session(app, make, keys, monkeypatch):
    key, token = make(Scope.READ)
    client = app.test_client()
    assert client.post("/login", data={"key": token}).status_code == 303
    first, second = begun(client), begun(client)

    now = time.time()
    with monkeypatch.context() as later:
        later.setattr("dataloader.app.http.auth.guard.time.time", lambda: now + 13 * 3600)
        assert ends_early(first)
    keys.revoke(key.id)
    assert ends_early(second)


def test_without_keys_it_lasts_until_there_is_one(app, make):
    result = begun(app.test_client())

    make(Scope.READ)

    assert ends_early(result)


def test_stream_in_outage_lasts_while_key_is_trusted(queue, pipelines, pool, keys, make, monkeypatch):
    _, token = make(Scope.READ)
    away = threading.Event()

    class Shaky(ApiKeys):
        def active(self) -> Any:
            if away.is_set():
                raise DatabaseUnavailable("away")
            return super().active()

    monkeypatch.setattr("dataloader.app.features.jobs.event_routes._REVALIDATE_SEC", 0.0)
    monkeypatch.setattr("dataloader.app.features.jobs.event_routes._POLL_INTERVAL_SEC", 0.05)
    times = KeyCacheTimes(refresh_after_sec=0.0, max_age_sec=0.0, max_outage_sec=1.0, retry_interval_sec=0.0)
    monkeypatch.setattr("dataloader.app.http.app.KeyCache", lambda keys: KeyCache(keys, times))
    client = create_app(queue, pipelines, WebOptions(version="1"), pool=pool, keys=Shaky(pool)).test_client()
    result = begun(client, headers=bearer(token))

    away.set()

    assert ends_early(result)


def test_stream_with_auth_disabled_is_not_revalidated(queue, pipelines, pool, keys, make, monkeypatch):
    make(Scope.READ)
    monkeypatch.setattr("dataloader.app.features.jobs.event_routes._REVALIDATE_SEC", 0.0)
    client = create_app(
        queue, pipelines, WebOptions(version="1", auth_disabled=True), pool=pool, keys=keys
    ).test_client()
    began = time.monotonic()

    list(begun(client, seconds=1))

    assert time.monotonic() - began > 0.9
