"""A queue database for each test: see tests/support/queue_fixture.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import Databases
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def dsn(own_dsn: str) -> str:
    return own_dsn


@pytest.fixture(scope="module")
def shared_dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as dsn:
        yield dsn


@pytest.fixture
def queue_db(shared_dsn: str) -> Iterator[QueueFixture]:
    """An empty queue. Its database serves the whole module, so leave the tables' form alone."""
    made = QueueFixture(shared_dsn)
    made.sql("TRUNCATE dl_jobs, dl_job_events, dl_workers, dl_notify_state")
    yield made
    made.close()


@pytest.fixture
def own_queue_db(dsn: str) -> Iterator[QueueFixture]:
    """A queue database whose tables may be changed at will."""
    made = QueueFixture(dsn)
    yield made
    made.close()
