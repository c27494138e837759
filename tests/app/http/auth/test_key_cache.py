"""The keys that a process remembers: what they cost, and what holds without the database."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dataloader.app.errors import DatabaseUnavailable, SchemaMissing
from dataloader.app.http.app import create_app
from dataloader.app.http.auth.api_keys import ApiKeys, Scope
from dataloader.app.http.caches import KeyCache, KeyCacheTimes
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from tests.support import eventually

JOBS = "/api/v1/jobs"
NOTHING_IS_OLD = KeyCacheTimes(refresh_after_sec=0.0, max_age_sec=0.0, unknown_key_interval_sec=0.0)


def code(response: Any) -> tuple[int, str | None]:
    return response.status_code, response.json.get("code")


class CountingExecutor:
    """Records the statements, and raises `error` if it is set."""

    schema = "public"

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.statements: list[str] = []
        self.error: Exception | None = None

    def execute(self, name: str, parameters: Any = None, **more: Any) -> Any:
        self.statements.append(name)
        if self.error is not None:
            raise self.error
        return self.executor.execute(name, parameters, **more)


def test_thousand_requests_read_the_keys_once(pool, make):
    token, executor = make(Scope.READ), CountingExecutor(pool)
    key_cache = KeyCache(ApiKeys(executor))

    for _ in range(1000):
        assert key_cache.find(token)

    assert executor.statements.count("active_api_keys") <= 2, "the second one to note its use"


def test_key_use_is_recorded_once_a_minute(pool, make, keys):
    token, executor = make(Scope.READ), CountingExecutor(pool)
    key_cache = KeyCache(ApiKeys(executor), NOTHING_IS_OLD)

    for _ in range(20):
        key_cache.find(token)

    eventually(lambda: keys.all()[0].last_used_at is not None)
    for _ in range(20):
        key_cache.find(token)
    assert executor.statements.count("record_key_use") == 1


def test_outage_accepts_known_keys_and_rejects_unknown_ones(pool, make):
    token, executor = make(Scope.READ), CountingExecutor(pool)
    key_cache = KeyCache(
        ApiKeys(executor), KeyCacheTimes(refresh_after_sec=0.0, max_age_sec=0.0, retry_interval_sec=0.0)
    )
    assert key_cache.find(token)

    executor.error = DatabaseUnavailable("gone")

    assert key_cache.find(token)
    assert key_cache.find(f"dlk_000000000000_{'0' * 48}") is None


def test_known_key_expires_with_the_outage_limit(pool, make):
    token, executor = make(Scope.READ), CountingExecutor(pool)
    key_cache = KeyCache(
        ApiKeys(executor),
        KeyCacheTimes(refresh_after_sec=0.0, max_age_sec=0.0, retry_interval_sec=0.0, max_outage_sec=0.0),
    )
    executor.error = DatabaseUnavailable("gone")

    with pytest.raises(DatabaseUnavailable):
        key_cache.find(token)


def test_key_revoked_in_an_outage_is_rejected_after_it(pool, make, keys):
    token, executor = make(Scope.READ), CountingExecutor(pool)
    key_cache = KeyCache(
        ApiKeys(executor), KeyCacheTimes(refresh_after_sec=0.0, max_age_sec=0.0, retry_interval_sec=0.0)
    )
    key = key_cache.find(token)
    assert key is not None
    eventually(lambda: executor.statements[-1] == "record_key_use", message="the use is recorded")
    executor.error = DatabaseUnavailable("gone")
    keys.revoke(key.id)
    assert key_cache.find(token), "no request has read the change yet"

    executor.error = None

    assert key_cache.find(token) is None
    assert KeyCacheTimes().max_outage_sec <= 300, "docs/security.md promises it"


def test_service_that_never_read_its_keys_answers_503(queue, pipelines, app_without_database):
    executor = CountingExecutor(None)
    executor.error = DatabaseUnavailable("gone")
    client: Any = create_app(
        JobQueue(executor), pipelines, WebOptions(version="1"), keys=ApiKeys(executor)
    ).test_client()

    assert code(client.get(JOBS)) == (503, "database_unavailable")
    assert code(client.get("/api/v1/tasks")) == (503, "database_unavailable")
    assert client.get("/health").status_code == 200


def test_tables_without_keys_mean_no_keys(pool):
    executor = CountingExecutor(pool)
    executor.error = SchemaMissing("no such table")

    assert KeyCache(ApiKeys(executor)).has_keys is False


def test_bug_in_the_refresh_rejects_requests(pool, caplog):
    executor = CountingExecutor(pool)
    executor.error = RuntimeError("a bug")

    with pytest.raises(DatabaseUnavailable):
        _ = KeyCache(ApiKeys(executor)).has_keys
    assert "auth.keys_failed" in caplog.text


def test_silent_database_delays_one_request_only(pool, make):
    token = make(Scope.READ)
    silent, answers = threading.Event(), CountingExecutor(pool)

    class Silent(ApiKeys):
        def active(self) -> Any:
            silent.wait(20)
            return super().active()

    key_cache = KeyCache(Silent(answers), KeyCacheTimes(wait_timeout_sec=0.05))
    try:
        for _ in range(40):  # each after the first at once
            with pytest.raises(DatabaseUnavailable):
                key_cache.find(token)
    finally:
        silent.set()

    def finds_key() -> bool:
        try:
            return key_cache.find(token) is not None
        except DatabaseUnavailable:
            return False

    eventually(finds_key)
