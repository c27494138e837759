"""The app on a real database, and the command line: the fixtures of `tests/app/http` and `tests/app/cli`."""

from __future__ import annotations

from tests.app.cli.conftest import run, service
from tests.app.http.conftest import (
    app_without_database,
    broken,
    captured,
    client,
    dsn,
    kept_connection,
    kept_pool,
    lasting_client,
    migrated,
    pipelines,
    pool,
    queue,
    request_body,
    trigger,
)

__all__ = [
    "app_without_database", "broken", "captured", "client", "dsn", "kept_connection", "kept_pool", "lasting_client",
    "migrated", "pipelines", "pool", "queue", "request_body", "run", "service", "trigger",
]  # fmt: skip
