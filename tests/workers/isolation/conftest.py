"""Fixtures of the fork server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataloader.workers.isolation.fork_server import ForkServer


@pytest.fixture
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for modules to preload."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path
