"""The app on a real database, and what a caller needs to speak to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.queue.jobqueue import JobQueue
from app.queue.pool import Pool
from app.queue.schema import migrate
from app.web import WebOptions, create_app
from pipelines.contract import Context, Pipelines
from tests.support import Databases

AppMaker = Callable[..., FlaskClient]


@pytest.fixture
def pool(dsn: str) -> Iterator[Pool]:
    migrate(dsn)
    made = Pool(dsn, size=2, overflow=2)
    yield made
    made.close()


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
    return create_app(queue, pipelines, WebOptions(version="1.2.3", queues=("etl",)), pool=pool).test_client()


@pytest.fixture(scope="module")
def lasting_client(databases: Databases) -> Iterator[FlaskClient]:
    """One app and database for all the cases of a module that leave nothing behind, or do not mind what is there."""
    with databases.fresh() as dsn:
        migrate(dsn)
        pool = Pool(dsn, size=2, overflow=2)
        yield create_app(JobQueue(pool), Pipelines(), WebOptions(version="1.2.3"), pool=pool).test_client()
        pool.close()


@pytest.fixture
def app_without_database(pipelines: Pipelines) -> AppMaker:
    """An app whose database nobody serves, or whose source of connections is handed in."""

    def make(
        source: Any = None, *, probe: Any = None, pool: Pool | None = None, collectors: Any = (), **options: Any
    ) -> FlaskClient:
        queue = JobQueue(source or Pool("host=127.0.0.1 port=1"))
        told = WebOptions(**{"version": "1.2.3", **options})
        return create_app(queue, pipelines, told, probe=probe, pool=pool, collectors=collectors).test_client()

    return make


class Broken:
    """A source of connections in which there is a bug, or an outage of a chosen kind."""

    schema = "public"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def ask(self, name: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        raise self.error


@pytest.fixture
def broken() -> type[Broken]:
    return Broken


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
