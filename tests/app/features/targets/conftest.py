"""A queue, a target database, and the app whose settings name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask.testing import FlaskClient
from psycopg2.extensions import make_dsn

from dataloader.app.db.pool import Pool
from dataloader.app.features.targets.servers import TargetServers
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from tests.support import Databases
from tests.support.databases import another_role
from tests.support.queue_fixture import QueueFixture
from tests.support.target_fixture import TargetFixture

AppFactory = Callable[[], FlaskClient]


@pytest.fixture
def dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as fresh:
        yield fresh


@pytest.fixture
def queue_db(dsn: str) -> Iterator[QueueFixture]:
    made = QueueFixture(dsn)
    yield made
    made.close()


@pytest.fixture
def target(queue_db: QueueFixture, databases: Databases) -> Iterator[TargetFixture]:
    with databases.fresh(schema=False) as target_dsn:
        yield TargetFixture(queue_db, target_dsn)


@pytest.fixture
def other_role(target: TargetFixture) -> Iterator[str]:
    """The target's DSN with a role that may not create tables."""
    with another_role(target.dsn) as role:
        yield make_dsn(target.dsn, user=role, password="x")


@pytest.fixture
def open_app(target: TargetFixture) -> Iterator[AppFactory]:
    """Make an app with the targets of the fixture; each has answers of its own."""
    pool = Pool(target.queue_db.dsn, size=2, overflow=2)

    def made() -> FlaskClient:
        servers = TargetServers(target.targets, queue_dsn=target.queue_db.dsn)
        options = WebOptions(version="1", features={"targets": servers})
        return create_app(JobQueue(pool), target.tasks, options, pool=pool).test_client()

    yield made
    pool.close()
