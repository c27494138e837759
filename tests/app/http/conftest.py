"""The app on a real database, and what a caller needs to speak to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg2
import pytest
from flask.testing import FlaskClient
from psycopg2.extensions import connection as Connection
from werkzeug.test import TestResponse

from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import migrate
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Context, Pipelines
from tests.support import Databases

AppMaker = Callable[..., FlaskClient]


class PageResponse(TestResponse):
    """A response whose text has plain spaces: pages have others between a number and its unit."""

    @property
    def text(self) -> str:
        return super().text.replace("\u00a0", " ")


def with_plain_spaces(client: FlaskClient) -> FlaskClient:
    client.response_wrapper = type("PlainPageResponse", (PageResponse, client.response_wrapper), {})
    return client


@pytest.fixture(scope="module")
def migrated(databases: Databases) -> Iterator[str]:
    """One database for a module: its jobs are swept away between tests."""
    with databases.fresh() as dsn:
        migrate(dsn)
        yield dsn


@pytest.fixture(scope="module")
def kept_pool(migrated: str) -> Iterator[Pool]:
    made = Pool(migrated, size=2, overflow=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def kept_connection(migrated: str) -> Iterator[Connection]:
    """What empties the database: a new connection would read a hundred rows of the catalogs first."""
    with closing(psycopg2.connect(migrated)) as connection:
        yield connection


@pytest.fixture
def dsn(migrated: str, kept_connection: Connection) -> str:
    with kept_connection, kept_connection.cursor() as cursor:
        cursor.execute("DELETE FROM dl_jobs")
    return migrated


@pytest.fixture
def pool(kept_pool: Pool, dsn: str) -> Pool:
    """Connections to a database without jobs."""
    return kept_pool


@pytest.fixture
def queue(pool: Pool) -> JobQueue:
    return JobQueue(pool)


@pytest.fixture
def pipelines() -> Pipelines:
    known = Pipelines()

    @known.register("noop")
    def noop(args: dict[str, Any], ctx: Context) -> None:
        """Do nothing.

        And say nothing about it.
        """

    return known


@pytest.fixture
def client(queue: JobQueue, pipelines: Pipelines, pool: Pool) -> FlaskClient:
    app = create_app(queue, pipelines, WebOptions(version="1.2.3", queues=("etl",)), pool=pool)
    return with_plain_spaces(app.test_client())


@pytest.fixture(scope="module")
def lasting_client(kept_pool: Pool) -> FlaskClient:
    """One app for all the cases of a module that do not mind what is there."""
    app = create_app(JobQueue(kept_pool), Pipelines(), WebOptions(version="1.2.3"), pool=kept_pool)
    return with_plain_spaces(app.test_client())


@pytest.fixture
def app_without_database(pipelines: Pipelines) -> AppMaker:
    """An app whose database no one serves, or whose source of connections is handed in."""

    def make(
        source: Any = None, *, probe: Any = None, pool: Pool | None = None, collectors: Any = (), **options: Any
    ) -> FlaskClient:
        queue = JobQueue(source or Pool("host=127.0.0.1 port=1"))
        result = WebOptions(**{"version": "1.2.3", **options})
        return create_app(queue, pipelines, result, probe=probe, pool=pool, collectors=collectors).test_client()

    return make


class Broken:
    """A source of connections in which there is a bug, or an outage of a chosen kind."""

    schema = "public"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def execute(self, name: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        raise self.error


@pytest.fixture
def broken() -> type[Broken]:
    return Broken


@pytest.fixture
def captured(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Every log line, once, whatever was set up before. pytest itself listens to the root logger."""
    for name in ("", "dataloader.audit", "dataloader.metric"):
        caplog.set_level(logging.DEBUG, name or None)
        logger = logging.getLogger(name)
        if name and caplog.handler not in logger.handlers:
            monkeypatch.setattr(logger, "propagate", True)
    return caplog


@pytest.fixture
def request_body() -> dict[str, Any]:
    return {"queue": "etl", "task": "noop", "lock_key": "noop"}


@pytest.fixture
def trigger(client: FlaskClient, request_body: dict[str, Any]) -> Callable[..., str]:
    """Trigger a job over HTTP: its id."""

    def triggered(**fields: Any) -> str:
        response = client.post("/api/v1/jobs/trigger", json={**request_body, **fields})
        assert response.status_code == 200, response.text
        return str(response.json["job_id"])  # type: ignore[index] # json of a 200 is an object

    return triggered
