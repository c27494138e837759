"""How the processes of attempts are started: forked, and in the full suite as fresh interpreters too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dataloader.workers.isolation.fork_server import NO_FORK_SERVER, ForkServer
from tests.support import claimed_jobs


@pytest.fixture(scope="package")
def shared_fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(params=["forked", pytest.param("fresh", marks=pytest.mark.full)])
def start_method(
    request: pytest.FixtureRequest, shared_fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> str:
    method: str = request.param
    monkeypatch.setattr(claimed_jobs, "fork_server", shared_fork_server if method == "forked" else NO_FORK_SERVER)
    return method
