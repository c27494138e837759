"""Fixtures of the worker tests; see tests/support/worker_pool_fixture.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from dataloader.workers.isolation.fork_server import NO_FORK_SERVER, ForkServer
from tests.support import claimed_jobs
from tests.support.queue_fixture import QueueFixture
from tests.support.schedule_fixture import ScheduleFixture
from tests.support.worker_pool_fixture import WorkerPoolFixture


@pytest.fixture
def worker_pools(dsn: str) -> Iterator[WorkerPoolFixture]:
    """Yield a fixture that starts pools on an empty queue; after the test the events must agree with the rows."""
    made = WorkerPoolFixture(dsn)
    try:
        yield made
        made.gate.open()
        for pool in made.pools:
            pool.stop(grace=10)
        assert made.crashes == []
        made.queue_fixture.check_invariants()
    finally:
        made.close()


@pytest.fixture
def queue_db(dsn: str) -> Iterator[QueueFixture]:
    """An empty queue."""
    made = QueueFixture(dsn)
    yield made
    made.close()


@pytest.fixture
def schedule_db(queue_db: QueueFixture) -> ScheduleFixture:
    """An empty queue whose schedules are fired by hand."""
    return ScheduleFixture(queue_db)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[dict[str, object]]]:
    """Return a function that lists the fields of each log record of an event."""
    caplog.set_level(logging.DEBUG)

    def fields(event: str) -> list[dict[str, object]]:
        return [record.__dict__["fields"] for record in list(caplog.records) if record.getMessage() == event]

    return fields


class LastingForkServer(ForkServer):
    """A fork server of many pools, each of which closes its own when it stops."""

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="session")
def shared_fork_server() -> Iterator[ForkServer]:
    server = LastingForkServer()
    yield server
    server.end()


@pytest.fixture(autouse=True)
def forked_attempts(shared_fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of attempts, as a service does: a fresh interpreter takes five times the processor time."""
    monkeypatch.setattr(claimed_jobs, "fork_server", shared_fork_server)


@pytest.fixture(params=["forked", pytest.param("fresh", marks=pytest.mark.full)])
def start_method(
    request: pytest.FixtureRequest, shared_fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> str:
    """How the processes of attempts are started: forked, and in the full suite as fresh interpreters too."""
    method: str = request.param
    monkeypatch.setattr(claimed_jobs, "fork_server", shared_fork_server if method == "forked" else NO_FORK_SERVER)
    return method
