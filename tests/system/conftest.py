"""Real processes on a real server."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataloader.app.db.schema import migrate
from tests.support import PrivateServer, Process
from tests.support.private_server import copy_data_dir
from tests.support.real_service import ServiceJobs, ServiceStarter, postgres_pids_of, signal_all


@pytest.fixture
def jobs(dsn: str, tmp_path: Path) -> ServiceJobs:
    return ServiceJobs(dsn, tmp_path)


@pytest.fixture
def run(start: Callable[..., Process], dsn: str) -> ServiceStarter:
    """Start `serve` or `worker` on this test's database: `run("worker").until_ready()`."""
    migrate(dsn)  # the template was made from schema.sql alone, and has no version
    return ServiceStarter(start, dsn)


@pytest.fixture
def jobs_there(server: PrivateServer, tmp_path: Path) -> ServiceJobs:
    """On a server of this test's own."""
    return ServiceJobs(server.dsn, tmp_path)


@pytest.fixture
def run_there(start: Callable[..., Process], server: PrivateServer) -> ServiceStarter:
    migrate(server.dsn)
    return ServiceStarter(start, server.dsn)


@pytest.fixture
def home(run_folder: Path, ready_made: Path) -> Iterator[Path]:
    """A DL_DATA_DIR with the embedded server's data in it; nothing of it outlives the test."""
    folder = Path(tempfile.mkdtemp(prefix="home-", dir=run_folder))
    folder.chmod(0o755)
    place = folder / "postgres"
    place.mkdir()
    copy_data_dir(ready_made, place)
    with (place / "cluster/postgresql.conf").open("a", encoding="utf-8") as settings:
        settings.write("fsync = off\nshared_buffers = 16MB\n")  # no kernel dies here
    yield folder
    signal_all(postgres_pids_of(folder))
    shutil.rmtree(folder, ignore_errors=True)
