"""A queue database for each test: see tests/support/queue_fixture.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import Databases
from tests.support.queue_fixture import LastingSessions, QueueFixture

# In the order of what refers to what. Not TRUNCATE, which makes a file for each table and index: 20 times the time.
TABLES = (
    "dl_job_events",
    "dl_graph_work",
    "dl_edges",
    "dl_graphs",
    "dl_slices",
    "dl_backfills",
    "dl_jobs",
    "dl_workers",
    "dl_notify_state",
    "dl_limits",
    "dl_limit_looks",
    "dl_limit_starts",
    "dl_breakers",
    "dl_firings",
    "dl_dataset_updates",
    "dl_schedules",
    "dl_checks",
    "dl_dataset_events",
    "dl_fair_weights",
)
EMPTY = "; ".join(["BEGIN", *(f"DELETE FROM {table}" for table in TABLES), "COMMIT"])


@pytest.fixture(scope="module")
def shared_dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def lasting_sessions(shared_dsn: str) -> Iterator[LastingSessions]:
    made = LastingSessions(shared_dsn)
    yield made
    made.close()


@pytest.fixture
def queue_db(shared_dsn: str, lasting_sessions: LastingSessions) -> Iterator[QueueFixture]:
    """An empty queue. Its database serves the whole module, so leave the tables' form alone."""
    lasting_sessions.renew()
    made = QueueFixture(shared_dsn, sessions=lasting_sessions)
    made.sql(EMPTY)
    yield made
    made.close()


@pytest.fixture
def own_dsn(databases: Databases) -> Iterator[str]:
    """A database of this test's own, also where `dsn` is one that the tests of a module share."""
    with databases.fresh() as dsn:
        yield dsn


@pytest.fixture
def own_queue_db(own_dsn: str) -> Iterator[QueueFixture]:
    """A queue database whose tables may be changed at will."""
    made = QueueFixture(own_dsn)
    yield made
    made.close()
