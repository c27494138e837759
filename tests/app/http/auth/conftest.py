"""An app with API keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg2
import pytest
from flask.testing import FlaskClient

from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.auth.api_keys import ApiKeys, NewApiKey, Scope
from dataloader.app.http.caches import KeyCache, KeyCacheTimes
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines

# Every request reads the keys again.
NOTHING_IS_OLD = KeyCacheTimes(refresh_after_sec=0.0, max_age_sec=0.0, unknown_key_interval_sec=0.0)


@pytest.fixture
def dsn(dsn: str) -> str:
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM dl_api_keys; DELETE FROM dl_audit")
    connection.close()
    return dsn


@pytest.fixture
def keys(pool: Pool) -> ApiKeys:
    return ApiKeys(pool)


@pytest.fixture
def make(keys: ApiKeys) -> Callable[..., str]:
    """A new key with these scopes."""

    def made(*scopes: Scope, name: str = "a key", **more: Any) -> str:
        return keys.create(NewApiKey(name=name, scopes=frozenset(scopes), created_by="test", **more))[1]

    return made


@pytest.fixture
def app(queue: JobQueue, pipelines: Pipelines, pool: Pool, keys: ApiKeys, monkeypatch) -> FlaskClient:
    monkeypatch.setattr("dataloader.app.http.app.KeyCache", lambda keys: KeyCache(keys, NOTHING_IS_OLD))
    return create_app(queue, pipelines, WebOptions(version="1"), pool=pool, keys=keys).test_client()
